"""Optimiser steps that are not numbers: one is skipped and counted, several in a row end the run."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch
from torch import Tensor

from trajgym.errors import TrainingError

__all__ = ["StepGuard"]

_LIMIT = 3

_log = logging.getLogger(__name__)


class StepGuard:
    """Counts unusable steps of one set of weights.

    Args:
        what: Whose steps, for messages, e.g. ``"policy"``.
        remedy: What to change when they go on.
    """

    def __init__(self, what: str, remedy: str) -> None:
        self._what, self._remedy = what, remedy
        self.in_a_row = 0
        self.skipped = 0  # in this update

    def done(self) -> None:
        """Note a step that was taken."""
        self.in_a_row = 0

    def skip(self, reason: str, parameters: Iterable[Tensor]) -> None:
        """Note a step that was left out; its gradients are dropped.

        Args:
            reason: What was not a number.
            parameters: The weights. Where they are damaged themselves, no later step can be better.

        Raises:
            TrainingError: When it is the third in a row, or the weights are damaged.
        """
        weights = list(parameters)
        for p in weights:
            p.grad = None
        self.in_a_row += 1
        self.skipped += 1
        _log.warning("A step of the %s is left out, %d in a row: %s", self._what, self.in_a_row, reason)
        damaged = not all(bool(torch.isfinite(p).all()) for p in weights)
        if damaged or self.in_a_row >= _LIMIT:
            times = "its weights are not finite numbers" if damaged else f"{self.in_a_row} steps in a row were skipped"
            raise TrainingError(
                f"The {self._what} cannot be trained on: {times}. The last one: {reason} {self._remedy} The "
                "checkpoints are intact."
            )
