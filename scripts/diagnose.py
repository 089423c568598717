"""Say what goes wrong in a run, why, and what to change: trajgym diagnose runs/NAME, or TRL's output folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trajgym.errors import ConfigError, TrajgymError
from trajgym.trainers.diagnose import Finding, Severity, diagnose, rules_table
from trajgym.trainers.diagnose_history import LONG, History
from trajgym.trainers.diagnose_logs import RunLog, read_run
from trajgym.types import to_json

__all__ = ["main"]

_COLOUR = {Severity.SERIOUS: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_SHOWN = ("reward", "success", "kl", "entropy", "grad_norm", "tokens_per_trajectory", "loss", "eval_loss")


def main(args: Sequence[str]) -> int:
    """Read a finished run or one under way; 0: nothing serious, 1: something serious, 2: it could not be read."""
    parser = argparse.ArgumentParser(
        prog="trajgym diagnose", description=__doc__, epilog="docs/diagnosis.md tells more."
    )
    parser.add_argument(
        "run", nargs="?", type=Path, help="run folder, metrics.jsonl, TRL's folder or trainer_state.json"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--rules", action="store_true", help="print all rules as Markdown")
    options = parser.parse_args(args)
    if options.rules:
        print(rules_table(), end="")
        return 0
    try:
        if options.run is None:
            raise ConfigError("Which run? Give its folder, e.g. trajgym diagnose runs/quickstart-seed0.")
        log = read_run(options.run)
    except TrajgymError as error:  # whatever it is, it must not look like a finding
        print(f"trajgym diagnose: {error}", file=sys.stderr)
        return 2
    findings = [finding.renamed(log.names) for finding in diagnose(log.rows, log.options)]
    passed = all(finding.severity is not Severity.SERIOUS for finding in findings)
    if options.json:
        print(json.dumps(_as_json(log, findings, passed), indent=1, default=str))
    else:
        _report(log, findings, passed)
    return 0 if passed else 1


def _as_json(log: RunLog, findings: Sequence[Finding], passed: bool) -> dict[str, Any]:
    return {
        "run": str(log.path),
        "kind": log.kind,
        "updates": len(log.rows),
        "passed": passed,
        "remarks": list(log.remarks),
        "findings": to_json(findings),
    }


def _report(log: RunLog, findings: Sequence[Finding], passed: bool) -> None:
    console = Console(width=None if sys.stdout.isatty() else 110)
    with console.capture() as captured:  # rich would answer a closed pipe in its own way
        console.print(_run_table(log))
        if findings:
            console.print(_findings_table(findings, "update" if log.kind == "trajgym" else "step"))
    print(captured.get().rstrip())
    for remark in log.remarks:
        print(f"Remark: {remark}")
    print(_verdict(findings, passed))


def _run_table(log: RunLog) -> Table:
    history = History(log.rows)
    what = "updates" if log.kind == "trajgym" else "steps logged"
    title = Text(f"{log.path}: {len(log.rows)} {what}")
    table = Table(
        "metric", "at first", "now", "lowest", "highest", title=title, box=box.SIMPLE_HEAD, title_justify="left"
    )
    size = LONG if len(log.rows) >= 2 * LONG else 1
    for name in _SHOWN:
        track = history.track(name, size)
        means = (track.first, track.recent, track.lowest, track.highest)
        if track.recent is not None:
            table.add_row(name, *(f"{mean.value:.4g}" for mean in means if mean is not None))
    table.caption = f"means over {size} {what}" if size > 1 else ""
    return table


def _findings_table(findings: Sequence[Finding], unit: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_lines=True, padding=(0, 1, 0, 0))
    table.add_column("severity", no_wrap=True)
    table.add_column("what was seen")
    table.add_column("why, and what to do")
    for finding in findings:
        seen = Text.assemble((finding.rule, "bold"), f"\n{finding.evidence}\n", (_when(finding, unit), "dim"))
        table.add_row(Text(finding.severity.value, style=_COLOUR[finding.severity]), seen, Text(finding.advice))
    return table


def _when(finding: Finding, unit: str) -> str:
    if finding.first is None:
        return "options"
    if finding.over:
        return f"{unit} {finding.first} to {finding.last}, gone since"
    return f"since {unit} {finding.first}"


def _verdict(findings: Sequence[Finding], passed: bool) -> str:
    counts = {severity: sum(f.severity is severity for f in findings) for severity in Severity}
    told = ", ".join(f"{count} {severity.value}" for severity, count in reversed(counts.items()) if count)
    if not told:
        return "Nothing found."
    return f"Found: {told}." + ("" if passed else " Something serious: stop, and change what the table says.")
