"""Decisions, and nothing but: (state, now) -> decision. No clock, no I/O, no randomness, no event loop."""
