"""Environments; filled in below."""
