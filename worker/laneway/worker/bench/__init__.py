"""Measurements and trials: applications that stand on both sides of the queue."""
