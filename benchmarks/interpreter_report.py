"""How the benchmark of the code interpreter shows its figures: tables for a person, JSON for a machine."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from interpreter_contenders import Probes
from machine import Machine
from rich.console import Console
from rich.table import Table
from rounds import Estimate, Sample

__all__ = ["Contest", "Line", "show", "write_json"]


@dataclass(frozen=True, slots=True)
class Line:
    """One figure, and the target it has to meet where there is one.

    Args:
        what: What was measured.
        unit: Of the estimate and the bounds.
        estimate: None when it could not be measured; ``note`` says why.
        least: The target is at least this.
        most: The target is at most this.
        note: A remark.
    """

    what: str
    unit: str
    estimate: Estimate | None
    least: float = -math.inf
    most: float = math.inf
    note: str = ""

    @property
    def target(self) -> str:
        """The target in words, or nothing."""
        if math.isfinite(self.least):
            return f"≥ {self.least:,g} {self.unit}"
        return f"≤ {self.most:,g} {self.unit}" if math.isfinite(self.most) else ""

    @property
    def verdict(self) -> str:
        """``pass`` or ``fail`` when the whole interval says so, ``unclear`` otherwise, nothing without a target."""
        if not self.target:
            return ""
        if self.estimate is None:
            return "unclear"
        met = {self.least <= end <= self.most for end in (self.estimate.low, self.estimate.high)}
        return "unclear" if len(met) == 2 else "pass" if met.pop() else "fail"


@dataclass(frozen=True, slots=True)
class Contest:
    """How one contender ran the program.

    Args:
        name: The contender.
        median: Of a call, in seconds.
        p95: The same.
        speed: Median of the subprocess divided by this one's.
        probes: What programs can do there.
        error: Why there are no figures.
    """

    name: str
    median: Estimate | None = None
    p95: Estimate | None = None
    speed: Estimate | None = None
    probes: Probes | None = None
    error: str = ""


def show(
    console: Console, machine: Machine, isolation: str, rounds: int, contests: Sequence[Contest], lines: Sequence[Line]
) -> None:
    """Print what was measured, and on what."""
    console.print(
        f"{machine.cores} cores of {machine.processor}, Python {machine.python}, Linux {machine.kernel}, "
        f"user {machine.user}, load average {machine.load:.2f} at the start. "
        f"Isolation: {isolation}. {rounds} rounds; in brackets 95 % intervals.",
        highlight=False,
    )
    if machine.busy:
        console.print("[bold yellow]Something else is running: expect figures from such a machine to be off.[/]")
    console.print(_contest_table(contests))
    for contest in contests:
        if contest.error:
            console.print(f"{contest.name}: {contest.error}", markup=False, highlight=False, soft_wrap=True)
    console.print(_line_table(lines))
    for line in lines:
        if line.note:
            console.print(f"{line.what}: {line.note}", markup=False, highlight=False, soft_wrap=True)


def _contest_table(contests: Sequence[Contest]) -> Table:
    caption = "files, environ, network: whether programs reach the host's; state: whether they see earlier names"
    table = Table(title="Running a program of three lines", caption=caption)
    table.add_column("", no_wrap=True)
    for column in ("median, ms", "p95, ms", "speed, ×"):
        table.add_column(column, justify="right")
    for column in ("files", "environ", "network", "state"):
        table.add_column(column, justify="center")
    for contest in contests:
        probes = () if contest.probes is None else astuple(contest.probes)
        times = (_interval(contest.median, 1e3), _interval(contest.p95, 1e3), _interval(contest.speed))
        table.add_row(contest.name, *times, *("yes" if reached else "no" for reached in probes))
    return table


def _line_table(lines: Sequence[Line]) -> Table:
    table = Table(title="Figures and targets", caption="×: times as fast as new processes")
    table.add_column("", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("target", justify="right", no_wrap=True)
    table.add_column("")
    colours = {"pass": "green", "fail": "bold red", "unclear": "yellow"}
    for line in lines:
        verdict = f"[{colours[line.verdict]}]{line.verdict}[/]" if line.verdict else ""
        table.add_row(line.what, f"{_interval(line.estimate)} {line.unit}", line.target, verdict)
    return table


def _interval(estimate: Estimate | None, scale: float = 1.0) -> str:
    if estimate is None:
        return "–"
    value, low, high = (_number(scale * figure) for figure in (estimate.value, estimate.low, estimate.high))
    return value if low == high else f"{value} ({low} … {high})"


def _number(value: float) -> str:
    """Three digits, and no exponents."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write_json(
    path: Path,
    machine: Machine,
    isolation: str,
    contests: Sequence[Contest],
    lines: Sequence[Line],
    samples: Mapping[str, Mapping[str, Sequence[Sample]]],
) -> None:
    """Write everything, with the seconds of every round by part of the benchmark and by contender."""
    content = {
        "machine": asdict(machine),
        "isolation": isolation,
        "contests": [asdict(contest) for contest in contests],
        "lines": [
            {
                "what": line.what,
                "unit": line.unit,
                "estimate": None if line.estimate is None else asdict(line.estimate),
                "target": line.target,
                "verdict": line.verdict,
                "note": line.note,
            }
            for line in lines
        ],
        "seconds": samples,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
