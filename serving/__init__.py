"""Serving: a trained policy behind an address. Nothing lives here yet."""
