"""The numbers of a run as diagnosis looks at them: means over a few updates, the first, the latest, the extremes.

Single updates jump, so every rule reads means. They are kept up as updates come in; asking costs nothing.

>>> history = History()
>>> for update, reward in enumerate([0.0, 0.1, 0.2, 0.9, 1.0, 1.1], start=1):
...     history.add({"update": update, "reward": reward})
>>> track = history.track("reward", SHORT)
>>> round(track.first.value, 6), round(track.recent.value, 6), track.highest.update
(0.1, 1.0, 6)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["LONG", "SHORT", "History", "Mean", "Track", "is_metric"]

SHORT = 3
"""Updates in the mean of a level: enough for one bad batch not to count."""

LONG = 10
"""Updates in the mean of a trend, where the noise of rewards would hide it."""


_HUGE = 1e100  # the square must still be a number


class Mean(NamedTuple):
    """A mean over neighbouring updates.

    Args:
        value: The mean.
        error: Its standard error, were the updates independent.
        update: The last of the updates.
    """

    value: float
    error: float
    update: int


@dataclass
class Track:
    """Means of one metric over ``size`` updates each, along the run; all ``None`` while there are too few.

    Args:
        size: Updates per mean.
        first: The first mean.
        recent: The latest one.
        highest: The greatest one; the earliest of equal ones.
        lowest: The smallest one.
    """

    size: int
    first: Mean | None = None
    recent: Mean | None = None
    highest: Mean | None = None
    lowest: Mean | None = None

    def add(self, values: Sequence[float], update: int) -> None:
        """Take in the metric's latest values, the newest last."""
        if len(values) < self.size:
            return
        window = values[-self.size :]
        # Equal numbers have themselves as a mean, whatever rounding makes of it: rules compare with round limits.
        mean = window[0] if min(window) == max(window) else math.fsum(window) / self.size
        spread = math.fsum((v - mean) ** 2 for v in window) / max(1, self.size - 1)
        self.recent = Mean(mean, math.sqrt(spread / self.size), update)
        self.first = self.first or self.recent
        if self.highest is None or mean > self.highest.value:
            self.highest = self.recent
        if self.lowest is None or mean < self.lowest.value:
            self.lowest = self.recent


class History:
    """All metrics of a run so far.

    Args:
        rows: Metrics of the updates, oldest first; see :meth:`add`.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.update = 0
        self._row: Mapping[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._tail: dict[str, list[float]] = {}
        self._tracks: dict[str, dict[int, Track]] = {}
        for row in rows:
            self.add(row)

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Take in one update.

        Args:
            metrics: Numbers by name, ``"update"`` among them. What is no finite number is left out of all means.
        """
        self.update = int(metrics["update"])
        self._row = metrics
        for name, value in metrics.items():
            if not _usable(value):
                continue
            tail = self._tail.setdefault(name, [])
            tail.append(float(value))
            del tail[:-LONG]
            self._counts[name] = self._counts.get(name, 0) + 1
            for track in self._tracks.setdefault(name, {n: Track(n) for n in (1, SHORT, LONG)}).values():
                track.add(tail, self.update)

    def count(self, name: str) -> int:
        """Return in how many updates the metric was a finite number."""
        return self._counts.get(name, 0)

    def now(self, name: str) -> float | None:
        """Return the metric in the latest update, ``None`` where it is missing there or not a finite number."""
        value = self._row.get(name)
        return float(value) if value is not None and _usable(value) else None

    def track(self, name: str, size: int) -> Track:
        """Return the means over ``size`` updates: 1, :data:`SHORT` or :data:`LONG`."""
        return self._tracks.get(name, {}).get(size) or Track(size)

    def recent(self, name: str, size: int = SHORT) -> float | None:
        """Return the latest mean, ``None`` where the latest update has no such number: old news is no news."""
        mean = self.track(name, size).recent
        return None if mean is None or self.now(name) is None else mean.value

    def names(self, prefix: str = "") -> list[str]:
        """Return the metrics of the latest update that begin like this, sorted."""
        return sorted(name for name in self._row if name.startswith(prefix))

    def not_finite(self) -> list[str]:
        """Return the metrics of the latest update that are NaN, infinite or astronomical, sorted."""
        return sorted(n for n, v in self._row.items() if is_metric(v) and not _usable(v))


def is_metric(value: object) -> bool:
    """Whether a logged value is a number; truth values are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _usable(value: Any) -> bool:
    return is_metric(value) and abs(value) < _HUGE  # false for NaN, too
