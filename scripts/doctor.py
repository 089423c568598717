"""Show which isolation the code interpreter has on this machine, and what is missing."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from trajgym.envs.sandbox import IsolationUnavailable, Pool, landlock, machine
from trajgym.envs.sandbox.selftest import PROBES

__all__ = ["main"]

_CALLS = 50
_HOLDS = {
    "namespaces": "own files, processes, network and user; system calls filtered; files checked by Landlock",
    "landlock": "files checked by Landlock; system calls filtered; the host's file names can be guessed",
}


def main(args: Sequence[str]) -> int:
    """Try each isolation; the exit status is 1 when none works."""
    parser = argparse.ArgumentParser(prog="trajgym doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    as_json = parser.parse_args(args).json
    facts = _facts()
    tiers = {tier: _try(tier) for tier in _HOLDS}
    working = [tier for tier, found in tiers.items() if found["works"]]
    if as_json:
        print(json.dumps({"machine": facts, "isolation": tiers, "chosen": working[0] if working else None}, indent=1))
        return 0 if working else 1
    console = Console(width=None if sys.stdout.isatty() else 110)
    with console.capture() as captured:  # rich would answer a closed pipe in its own way
        console.print(_machine_table(facts))
        console.print(_tier_table(tiers))
    print(captured.get(), end="")
    if working:
        print(f"Code runs with isolation {working[0]!r}: {len(PROBES)} harmless attacks were stopped just now.")
        return 0
    print("Code cannot be run here: tools=('python',) raises IsolationUnavailable. docs/security.md says more.")
    return 1


def _facts() -> dict[str, Any]:
    this = machine.this_machine()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "system calls known": this.name if this else "no",
        "Python": platform.python_version(),
        "user": "root" if os.geteuid() == 0 else f"uid {os.geteuid()}",
        "user namespaces": _read("/proc/sys/user/max_user_namespaces") or "no",
        "Landlock": f"version {landlock.abi()}" if this and landlock.abi() else "no",
        "open files": f"{soft:,} (hard limit {hard:,}), three per session",
    }


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return f"{int(file.read()):,} allowed"
    except (OSError, ValueError):
        return ""


def _try(tier: str) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        pool = Pool(isolation=tier)
    except IsolationUnavailable as error:
        return {"works": False, "reason": _reason(str(error), tier)}
    with pool:
        start = time.perf_counter() - began
        began = time.perf_counter()
        with pool.open() as session:
            opened = time.perf_counter() - began
            seconds = statistics.median(session.call("1 + 1").seconds for _ in range(_CALLS))
        layers = sorted(pool.layers)
        inside = "inside" if "namespaces" in layers else "of this machine"
    return {
        "works": True,
        "layers": layers,
        "user": f"uid {pool.uid} {inside}",
        "start_s": start,
        "open_s": opened,
        "call_s": seconds,
    }


def _reason(message: str, tier: str) -> str:
    """Return what the error says about one tier."""
    lines = [line.strip() for line in message.splitlines()]
    return next((line.removeprefix(f"{tier}: ") for line in lines if line.startswith(f"{tier}: ")), message)


def _machine_table(facts: dict[str, Any]) -> Table:
    table = Table(title="This machine", show_header=False)
    for name, value in facts.items():
        table.add_row(name, str(value))
    return table


def _tier_table(tiers: dict[str, dict[str, Any]]) -> Table:
    table = Table("isolation", "works", "what it holds, or what is missing", title="Code interpreter", show_lines=True)
    for tier, found in tiers.items():
        if found["works"]:
            start, opened, call = found["start_s"], 1e3 * found["open_s"], 1e6 * found["call_s"]
            speed = f"start {start:.1f} s, session {opened:.1f} ms, call {call:.0f} µs"
            table.add_row(
                tier, "yes", f"{_HOLDS[tier]}\nlayers: {', '.join(found['layers'])}\nruns as {found['user']}; {speed}"
            )
        else:
            table.add_row(tier, "no", found["reason"])
    return table
