"""Show this machine, what is installed, its speed, its data, and which isolation the code interpreter has."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trajgym.envs.sandbox.selftest import PROBES
from trajgym.scripts import doctor_facts
from trajgym.scripts.doctor_isolation import TIERS, describe_tier, try_tier

__all__ = ["main"]

_TITLES = {
    "machine": "machine",
    "versions": "versions",
    "extras": "optional",
    "peaks": "peaks",
    "data": "data",
    "hub": "hub",
}


def main(args: Sequence[str]) -> int:
    """Find everything out and try each isolation; the exit status is 1 when none works."""
    parser = argparse.ArgumentParser(prog="trajgym doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--measure", action="store_true", help="measure the machine's peaks now, and keep them")
    options = parser.parse_args(args)
    facts: dict[str, Mapping[str, str]] = {
        "machine": doctor_facts.machine_facts(),
        "versions": doctor_facts.versions(),
        "extras": doctor_facts.extras(),
        "peaks": doctor_facts.peaks(options.measure),
        "data": doctor_facts.data(),
        "hub": doctor_facts.hub(),
    }
    tiers = {tier: try_tier(tier) for tier in TIERS}
    working = [tier for tier, found in tiers.items() if found["works"]]
    if options.json:
        print(json.dumps({**facts, "isolation": tiers, "chosen": working[0] if working else None}, indent=1))
        return 0 if working else 1
    isolation = {tier: describe_tier(tier, found) for tier, found in tiers.items()}
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 110)
    with console.capture() as captured:  # rich would answer a closed pipe in its own way
        console.print(_table({**{_TITLES[name]: part for name, part in facts.items()}, "isolation": isolation}))
    print(captured.get(), end="")
    if working:
        print(f"Code runs with isolation {working[0]!r}: {len(PROBES)} harmless attacks were stopped just now.")
        return 0
    print("Code cannot be run here: tools=('python',) raises IsolationUnavailable. docs/security.md says more.")
    return 1


def _table(parts: Mapping[str, Mapping[str, str]]) -> Table:
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for title, part in parts.items():
        for row, (name, value) in enumerate(part.items()):
            table.add_row("" if row else title, name, Text(value))  # values are no markup
        table.add_section()
    return table
