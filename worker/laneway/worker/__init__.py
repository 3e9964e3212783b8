"""The service that claims jobs and runs them on an engine. Read ports.py first, then app.py, service.py and attempt.py."""
