"""What every run on a trainer of transformers has beside its steps: the rate that was asked for, a clock, a guard."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import TrainerCallback

from trajgym.trainers.step_guard import StepGuard

__all__ = ["StepWatch"]


class StepWatch(TrainerCallback):  # type: ignore[misc]  # transformers carries no types
    """Follows a run step by step.

    Args:
        remedy: What to do about steps whose gradient is no number.

    Attributes:
        step: Finished optimiser steps.
        total: Optimiser steps of the whole run.
        guard: Counts steps that were left out.
        start: When the current step began, in seconds of the performance counter.
    """

    def __init__(self, remedy: str) -> None:
        self.step, self.total = 0, 0
        self.guard = StepGuard("model", remedy)
        self.start = time.perf_counter()

    def begin(self) -> None:
        """Prepare for the first step, now that it is known how long the run is."""

    def on_train_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any, lr_scheduler: Any, **kwargs: Any
    ) -> None:
        """Begin; a run that goes on at another rate than before takes the new one, not the saved."""
        lr_scheduler.base_lrs = [args.learning_rate for _ in lr_scheduler.base_lrs]
        for group, factor in zip(optimizer.param_groups, lr_scheduler.lr_lambdas, strict=True):
            group["lr"] = args.learning_rate * factor(lr_scheduler.last_epoch)
        lr_scheduler._last_lr = [group["lr"] for group in optimizer.param_groups]  # what is logged
        self.step, self.total = state.global_step, state.max_steps
        self.begin()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self.start = time.perf_counter()
        self.guard.skipped = 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        """Leave out a step whose gradient is not a number; it would spoil the weights for good."""
        trained = [p for p in model.parameters() if p.grad is not None]
        if all(bool(torch.isfinite(p.grad).all()) for p in trained):
            self.guard.done()
        else:
            self.guard.skip(f"The gradient of step {state.global_step + 1} is not a finite number.", trained)
