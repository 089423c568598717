"""A weight that changes over the training.

>>> fading = Schedule([(0.0, 0.1), (0.5, 0.0)])
>>> [round(fading(p), 3) for p in (0.0, 0.25, 0.5, 1.0)]
[0.1, 0.05, 0.0, 0.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trajgym.errors import ConfigError
from trajgym.rewards.functions import is_number

__all__ = ["Schedule", "check_progress"]


@dataclass(frozen=True)
class Schedule:
    """Weights at points of the training, linear between them, constant before the first and after the last.

    Args:
        points: Pairs (progress, weight); progress lies in [0, 1] and increases from pair to pair.

    Raises:
        ConfigError: When that is not what was given.
    """

    points: Sequence[tuple[float, float]]

    def __post_init__(self) -> None:
        points = self.points
        good = isinstance(points, (list, tuple)) and all(isinstance(p, (list, tuple)) and len(p) == 2 for p in points)
        if not good or not points or not all(is_number(x) for p in points for x in p):
            raise ConfigError(
                f"A schedule is a list of pairs of numbers (progress, weight), such as [[0, 0.1], [0.5, 0]], "
                f"got {points!r}."
            )
        fixed = tuple((float(progress), float(weight)) for progress, weight in points)
        where = [progress for progress, _ in fixed]
        if where[0] < 0.0 or where[-1] > 1.0 or sorted(set(where)) != where:
            raise ConfigError(f"The progress of a schedule's points must increase within [0, 1], got {where}.")
        object.__setattr__(self, "points", fixed)

    def __call__(self, progress: float) -> float:
        """Return the weight when ``progress`` (0 … 1) of the training is done.

        Raises:
            ConfigError: When it lies outside.
        """
        check_progress(progress)
        before = self.points[0]
        for point in self.points:
            if progress <= point[0]:
                share = (progress - before[0]) / (point[0] - before[0]) if point[0] > before[0] else 1.0
                return point[1] if share >= 1.0 else before[1] + (point[1] - before[1]) * max(0.0, share)
            before = point
        return before[1]


def check_progress(progress: float) -> None:
    """Refuse what is no share of a training.

    Raises:
        ConfigError: When ``progress`` is not a number in [0, 1].
    """
    if not is_number(progress) or not 0.0 <= progress <= 1.0:
        raise ConfigError(f"progress is the share of the training that is done, in [0, 1], got {progress!r}.")
