"""Warnings about work that is lost silently: answers nobody could read, calls nobody could parse, turns cut short.

Such losses do not stop a run. They bend what is learned, and show in the curves only when it is late, so each share is
compared with what it was before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

__all__ = ["WATCHED", "Alarms"]

WATCHED: Mapping[str, str] = {
    "unreadable_share": (
        "answers could not be read, and count as wrong. Look at some with `trajgym grade`; state the answer's form in "
        "the prompt, or demonstrate it"
    ),
    "call_error_share": (
        "turns held a call that could not be parsed or checked. The protocol may not be the one the model was trained "
        "on; trajectories/ shows the kinds of error"
    ),
    "unknown_tool_share": "calls named a tool that does not exist. The prompt may not list the tools (instructions=)",
    "tool_error_share": "calls ended in a tool's error. Look at the observations in trajectories/",
    "cut_turn_share": "episodes ended in a turn that ran out of tokens. Raise max_turn_tokens, or reward brevity",
    "truncated_share": "episodes were cut by a budget. Raise max_turns or the token budgets, or reward brevity",
}
"""Metric → what it means and what to do, as the end of a sentence that begins with a percentage."""

_WINDOW = 3  # updates that are averaged: a share of few episodes jumps
_RISE = 0.10  # above the best so far
_FACTOR = 2.0  # times the best so far
_HIGH = 0.5  # worth a warning from the start
_REPEAT = 20  # updates until a warning comes again, unless it has become twice as bad


class Alarms:
    """Watches the shares of :data:`WATCHED` over a run.

    A share raises an alarm when its mean over three updates is at least a half, or when it has at least doubled, and
    grown by ten points, since its best three.

    Args:
        history: Metrics of the updates before, where a run is resumed.

    >>> alarms = Alarms()
    >>> for share in (0.02, 0.02, 0.02, 0.3, 0.3):
    ...     told = alarms.check({"update": 1, "tool_error_share": share})
    >>> told
    ["21% of calls ended in a tool's error. Look at the observations in trajectories/."]
    """

    def __init__(self, history: Iterable[Mapping[str, Any]] = ()) -> None:
        self._recent = {name: deque[float](maxlen=_WINDOW) for name in WATCHED}
        self._best: dict[str, float] = {}
        self._told: dict[str, tuple[int, float]] = {}
        for metrics in history:
            self.check(metrics)

    def check(self, metrics: Mapping[str, Any]) -> list[str]:
        """Take in one update's metrics and return what to warn of, in sentences.

        Args:
            metrics: Numbers by name, ``"update"`` among them; a watched share that is missing says nothing.
        """
        found = []
        for name, meaning in WATCHED.items():
            if (value := metrics.get(name)) is None:
                continue
            recent = self._recent[name]
            recent.append(float(value))
            if len(recent) < _WINDOW:
                continue
            share = fmean(recent)
            best = self._best[name] = min(share, self._best.get(name, share))
            moved = share >= best + _RISE and share >= _FACTOR * best
            if (moved or share >= _HIGH) and self._news(name, int(metrics["update"]), share):
                found.append(f"{share:.0%} of {meaning}.")
        return found

    def _news(self, name: str, update: int, share: float) -> bool:
        last, told = self._told.get(name, (-_REPEAT, 0.0))
        if update < last + _REPEAT and share < 2 * told:
            return False
        self._told[name] = (update, share)
        return True
