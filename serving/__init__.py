"""Serving: a trained model behind an address."""
