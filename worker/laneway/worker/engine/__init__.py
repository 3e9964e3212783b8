"""Engines behind the `Engine` port. Only this folder imports vLLM, torch and transformers."""
