"""Progress that a person can follow, and numbers that tools can read."""

from __future__ import annotations

import time
from typing import Any

from trajgym.trainers.runfolder import RunFolder, storage_errors

__all__ = ["Monitor"]

# (title, metric, format, width)
_COLUMNS = (
    ("reward", "reward", "{:.3f}", 7),
    ("return", "return", "{:.3f}", 7),
    ("success", "success", "{:.0%}", 7),
    ("KL/token", "kl", "{:.4f}", 8),
    ("entropy", "entropy", "{:.3f}", 7),
    ("turns", "turns", "{:.1f}", 5),
    ("calls", "calls", "{:.1f}", 5),
    ("errors", "call_error_share", "{:.1%}", 6),
    ("grad", "grad_norm", "{:.2f}", 6),
    ("tok/s", "time/tokens_per_second", "{:,.0f}", 7),
)


class Monitor:
    """Prints one line per update and writes ``metrics.jsonl`` and TensorBoard events.

    Args:
        run: The run's folder.
        total: Number of updates of the whole run.
        first: Updates that were done before, when the run is resumed.
        tensorboard: Whether to write TensorBoard events.
    """

    def __init__(self, run: RunFolder, *, total: int, first: int, tensorboard: bool) -> None:
        self._run, self._total, self._first = run, total, first
        self._start = time.monotonic()
        self._writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            with storage_errors(run.path):
                self._writer = SummaryWriter(str(run.path), purge_step=first + 1)
        self._printed = 0

    def update(self, metrics: dict[str, Any]) -> None:
        """Report one finished update.

        Args:
            metrics: Numbers by name; ``"update"`` counts from 1.
        """
        self._run.log(metrics)
        if self._writer is not None:
            with storage_errors(self._run.path):
                for name, value in metrics.items():
                    self._writer.add_scalar(f"train/{name}", value, metrics["update"])
                self._writer.flush()
        if self._printed % 20 == 0:
            print("   update  " + "  ".join(title.rjust(width) for title, _, _, width in _COLUMNS) + "     left")
        self._printed += 1
        print(self._line(metrics), flush=True)

    def _line(self, metrics: dict[str, Any]) -> str:
        update = int(metrics["update"])
        cells = []
        for _, name, form, width in _COLUMNS:
            value = metrics.get(name)
            cells.append(("–" if value is None else form.format(value)).rjust(width))
        seconds = time.monotonic() - self._start
        left = seconds / (update - self._first) * (self._total - update)
        return f"{update:4d}/{self._total:<4d}  " + "  ".join(cells) + f"  {_clock(left):>7}"

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
