"""Which isolation the code interpreter has here: each kind is tried."""

from __future__ import annotations

import statistics
import time
from typing import Any

from trajgym.envs.sandbox import IsolationUnavailable, Pool

__all__ = ["TIERS", "describe_tier", "try_tier"]

_CALLS = 50

TIERS = {
    "namespaces": "own files, processes, network and user; system calls filtered; files checked by Landlock",
    "landlock": "files checked by Landlock; system calls filtered; the host's file names can be guessed",
}
"""Isolation → what it holds, the strongest first."""


def try_tier(tier: str) -> dict[str, Any]:
    """Start a pool with this isolation and return what was found: ``works``, and times in seconds or a ``reason``."""
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


def describe_tier(tier: str, found: dict[str, Any]) -> str:
    """Return what was found, for people."""
    if not found["works"]:
        return f"no: {found['reason']}"
    start, opened, call = found["start_s"], 1e3 * found["open_s"], 1e6 * found["call_s"]
    speed = f"start {start:.1f} s, session {opened:.1f} ms, call {call:.0f} µs"
    return f"yes: {TIERS[tier]}\nlayers: {', '.join(found['layers'])}\nruns as {found['user']}; {speed}"


def _reason(message: str, tier: str) -> str:
    """Return what the error says about one tier."""
    lines = [line.strip() for line in message.splitlines()]
    return next((line.removeprefix(f"{tier}: ") for line in lines if line.startswith(f"{tier}: ")), message)
