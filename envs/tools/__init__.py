"""Placeholder docstring; see the files in this folder."""
