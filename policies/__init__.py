"""Policies: who acts. Importing this package needs no torch; the engines do."""

from __future__ import annotations

from pathlib import Path

from trajgym.policies.base import Policy, SampledTurn, Sampler, TextPolicy

__all__ = ["Policy", "SampledTurn", "Sampler", "TextPolicy", "tiny_path"]


def tiny_path() -> Path:
    """Return the folder of the embedded model, in Hugging Face's format."""
    return Path(__file__).parent / "tiny_model"
