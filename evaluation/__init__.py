"""Evaluation: playing held-out tasks, and numbers with intervals."""
