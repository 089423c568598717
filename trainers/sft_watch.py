"""What happens beside the steps of supervised training: numbers, alarms, checkpoints, Ctrl-C, steps that are none."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trajgym.trainers.interrupt import Interrupt
from trajgym.trainers.monitor import Monitor
from trajgym.trainers.sft_config import SFTConfig
from trajgym.trainers.step_watch import StepWatch

__all__ = ["HeldOutLoss", "Watch"]

HeldOutLoss = Callable[[int, int, float], None]
"""Told of finished steps, the steps of the whole run, and the loss on the held-out rows; may raise to end the run."""

_NAMES = {"mean_token_accuracy": "token_accuracy", "eval_mean_token_accuracy": "eval_token_accuracy"}
_TAKEN = ("loss", "grad_norm", "learning_rate", "epoch", "entropy", "token_accuracy")
_TAKEN_HELD_OUT = ("eval_loss", "eval_entropy", "eval_token_accuracy")


class Watch(StepWatch):
    """Follows a run of transformers' trainer, step by step.

    Args:
        config: All options.
        open_monitor: Makes the monitor once it is known how long the run is, from ``(total, first)``: its optimiser
            steps, and how many of them were done before.
        interrupt: Asked between steps.
        held_out: Whether there are rows for ``eval_loss``.
        data: Fingerprint of all rows; a resumed run must have the same ones.
        on_held_out: Told of the loss on those rows.
    """

    def __init__(
        self,
        config: SFTConfig,
        open_monitor: Callable[[int, int], Monitor],
        interrupt: Interrupt,
        *,
        held_out: bool,
        data: str,
        on_held_out: HeldOutLoss | None = None,
    ) -> None:
        super().__init__("Look at the rows, lower learning_rate, or take float32 as dtype.")
        self.monitor: Monitor | None = None
        self._config, self._open, self._interrupt, self._held_out = config, open_monitor, interrupt, held_out
        self._data, self._on_held_out = data, on_held_out
        self._row: dict[str, Any] | None = None  # waits for its eval_loss
        self._tokens = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know."""
        return {"skipped": self.guard.in_a_row, "data": self._data}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.guard.in_a_row = int(state["skipped"])

    def saved(self, checkpoint: Path) -> None:
        """Tell the writers of a finished checkpoint."""
        assert self.monitor is not None
        self.monitor.saved(checkpoint)

    def begin(self) -> None:
        """Open the monitor."""
        self.monitor = self._open(self.total, self.step)
        self.monitor.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say what is to be done after this step."""
        self.step = step = state.global_step
        last = step == self.total
        if self._interrupt.requested:
            control.should_training_stop = True
        control.should_evaluate = self._held_out and (last or step % self._config.eval_every == 0)
        control.should_save = last or step % self._config.save_every == 0 or self._interrupt.requested

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        """Report a step; where the held-out rows are looked at, once that is done."""
        if "loss" not in logs:
            return
        seconds = time.perf_counter() - self.start
        tokens, self._tokens = logs["num_tokens"] - self._tokens, logs["num_tokens"]
        found = {_NAMES.get(name, name): value for name, value in logs.items()}
        self._row = {"update": state.global_step, **{name: found[name] for name in _TAKEN if name in found}}
        self._row |= {"tokens": tokens, "skipped_steps": self.guard.skipped}
        self._row |= {"time/update": seconds, "time/tokens_per_second": tokens / seconds}
        if not control.should_evaluate:
            self._report()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any], **kwargs: Any) -> None:
        """Add what was found on the held-out rows."""
        found = {_NAMES.get(name, name): value for name, value in metrics.items()}
        assert self._row is not None
        self._row |= {name: found[name] for name in _TAKEN_HELD_OUT if name in found}
        self._report()

    def _report(self) -> None:
        assert self.monitor is not None
        assert self._row is not None
        self.monitor.update(self._row)
        if "eval_loss" in self._row:
            print(f"  Held-out loss: {self._row['eval_loss']:.3f}", flush=True)
            if self._on_held_out is not None:
                self._on_held_out(self.step, self.total, float(self._row["eval_loss"]))
        self._row = None
