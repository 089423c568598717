"""Where the seconds of an update go."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

__all__ = ["Stopwatch"]


class Stopwatch:
    """Adds up seconds by part. What is measured inside of another part is not counted there: the parts add up.

    Args:
        clock: Tells the time in seconds.

    >>> ticks = iter([0.0, 1.0, 4.0, 6.0])
    >>> watch = Stopwatch(clock=lambda: next(ticks))
    >>> with watch("train"):
    ...     with watch("sync"):
    ...         pass
    >>> watch.seconds()
    {'sync': 3.0, 'train': 3.0}
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = defaultdict(float)
        self._inside: list[float] = []  # seconds of the parts within each open one

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Count the block's time for ``part``. Calls on a GPU count where their result is waited for."""
        began = self._clock()
        self._inside.append(0.0)
        try:
            yield
        finally:
            seconds = self._clock() - began
            self._seconds[part] += seconds - self._inside.pop()
            if self._inside:
                self._inside[-1] += seconds

    def divide(self, part: str, seconds: Mapping[str, float]) -> None:
        """Count for other parts what was counted for ``part``, where others did the work that was waited for.

        Args:
            part: Whose seconds they are so far.
            seconds: By the part that they belong to.
        """
        for name, value in seconds.items():
            self._seconds[name] += value
            self._seconds[part] -= value

    def seconds(self) -> dict[str, float]:
        """Return the seconds by part, in the order in which parts ended first."""
        return dict(self._seconds)

    def reset(self) -> None:
        """Begin again; no part may be open."""
        self._seconds.clear()
