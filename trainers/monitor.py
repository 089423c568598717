"""Progress that a person can follow, and numbers that tools can read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trajgym.trainers.alarms import Alarms
from trajgym.trainers.diagnose import Severity, advise, explain_error
from trajgym.trainers.runfolder import RunFolder
from trajgym.trainers.telling import say
from trajgym.trainers.writers import Writer, offline_line

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
    """Prints one line per update, and warnings, and writes ``metrics.jsonl``; other writers get the same numbers.

    Args:
        run: The run's folder.
        total: Number of updates of the whole run.
        first: Updates that were done before, when the run is resumed.
        writers: Where numbers go besides the run folder.
        epochs: Passes over the data in the whole run, for lines; at least 1.
        options: The run's options by name, for advice; the model's number of parameters may be added as
            ``model_parameters``.
        fault_alarm: Share of an update's episodes lost to faults above which to warn, where ``options`` is not given.
        print_every: Updates per printed line; everything else is done for each update.
    """

    def __init__(
        self,
        run: RunFolder,
        *,
        total: int,
        first: int,
        writers: Sequence[Writer] = (),
        epochs: int = 1,
        options: Mapping[str, Any] | None = None,
        fault_alarm: float = 1.0,
        print_every: int = 1,
    ) -> None:
        self._run, self._total, self._first = run, total, first
        self._start = time.monotonic()
        self._writers, self._epochs = writers, epochs
        self._printed, self._print_every = 0, print_every
        self._options = {"fault_alarm": fault_alarm} if options is None else dict(options)
        self._alarms = Alarms(run.history(), self._options)

    def begin(self) -> None:
        """Warn of options that are unwise."""
        for finding in advise(self._options):
            if finding.severity is not Severity.NOTE:
                say(f"  ! {finding.text} [{finding.rule}]")

    def update(self, metrics: dict[str, Any], *, faults: str = "", skipped: Sequence[str] = ()) -> None:
        """Report one finished update.

        Args:
            metrics: Numbers by name; ``"update"`` counts from 1.
            faults: How many episodes failed and with what; see :func:`trajgym.rollout.fault_summary`.
            skipped: Why there was nothing to learn from, for this update and the ones just before it.
        """
        self._run.log(metrics)
        for writer in self._writers:
            writer.log(metrics, int(metrics["update"]))
        if int(metrics["update"]) % self._print_every == 0 or metrics["update"] == self._total:
            if self._options.get("progress") == "line":
                say(offline_line(metrics, epochs=self._epochs, total=self._total))
            else:
                self._print_row(metrics)
        if skipped:
            say(f"  ! Skipped, {len(skipped)} in a row; see fault_limit. {skipped[-1]}")
        for finding in self._alarms.check(metrics):
            if finding.rule != "faults":
                say(f"  ! {finding.text} [{finding.rule}]")
            elif not skipped:  # or the reason was given just now
                say(f"  ! {faults or finding.evidence} {finding.advice} [{finding.rule}]")

    def explain(self, error: BaseException) -> None:
        """Say what an error that ends the run means and what to change, where that is known."""
        finding = explain_error(error, self._options)
        if finding is not None:
            say(f"  ! {finding.text} [{finding.rule}]")

    def saved(self, checkpoint: Path) -> None:
        """Tell the writers of a finished checkpoint."""
        for writer in self._writers:
            writer.saved(checkpoint)

    def _print_row(self, metrics: dict[str, Any]) -> None:
        if self._printed % 20 == 0:
            say("   update  " + "  ".join(title.rjust(width) for title, _, _, width in _COLUMNS) + "     left")
        self._printed += 1
        say(self._line(metrics))

    def _line(self, metrics: dict[str, Any]) -> str:
        update = int(metrics["update"])
        cells = []
        for _, name, form, width in _COLUMNS:
            value = metrics.get(name)
            cells.append(("–" if value is None else form.format(value)).rjust(width))
        seconds = time.monotonic() - self._start
        share = metrics.get("fault_share", 0.0)
        faults = f"  faults {share:.1%}" if share else ""
        left = seconds / (update - self._first) * (self._total - update)
        return f"{update:4d}/{self._total:<4d}  " + "  ".join(cells) + f"  {_clock(left):>7}" + faults

    def close(self, checkpoint: Path | None = None) -> None:
        """Let the writers write what is left.

        Args:
            checkpoint: The newest one of a run that came to its end; ``None`` of one that did not.
        """
        for writer in self._writers:
            writer.close(checkpoint)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
