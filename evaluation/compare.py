"""Two models on the same tasks: how much better one is, and whether that could be chance."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trajgym.errors import ConfigError
from trajgym.evaluation.measures import CHANCE, bootstrap, mcnemar
from trajgym.evaluation.samples import Sample

__all__ = ["Comparison", "compare", "compare_all"]


@dataclass(frozen=True)
class Comparison:
    """The second model minus the first, on the same tasks.

    Args:
        before: Name of the first.
        after: Name of the second.
        tasks: How many.
        difference: Of accuracy, in [−1, 1].
        low: Lower end of its 95 % interval, by the paired bootstrap.
        high: Upper end.
        fixed: Tasks that only the second gets right; with several attempts, gets right more often.
        broken: Tasks that only the first gets right, likewise.
        p_value: McNemar's exact test on these two counts.
    """

    before: str
    after: str
    tasks: int
    difference: float
    low: float
    high: float
    fixed: int
    broken: int
    p_value: float

    @property
    def significant(self) -> bool:
        """Whether the interval leaves zero out, and the test finds it unlikely to be chance.

        The interval alone would be certain of what a handful of tasks show, if they all show the same.
        """
        return (self.low > 0 or self.high < 0) and self.p_value < CHANCE

    def __str__(self) -> str:
        verdict = "a clear difference" if self.significant else "within chance"
        return (
            f"{self.before} → {self.after}: {100 * self.difference:+.1f} points "
            f"({100 * self.low:+.1f} … {100 * self.high:+.1f}), {self.fixed} fixed, {self.broken} broken of "
            f"{self.tasks}, p = {self.p_value:.3g}: {verdict}"
        )


def compare(before: tuple[str, Sequence[Sample]], after: tuple[str, Sequence[Sample]], *, seed: int = 0) -> Comparison:
    """Compare two models on the tasks that both have played.

    Args:
        before: Name and samples of the first.
        after: Name and samples of the second.
        seed: Decides the draws of the bootstrap.

    Raises:
        ConfigError: When they have not played the same tasks, or none.
    """
    first, second = _rates(before[1]), _rates(after[1])
    if set(first) != set(second) or not first:
        other = sorted(set(first) ^ set(second))[:3]
        what = f"Only one of them has {other}." if other else "Both have played none."
        raise ConfigError(f"{before[0]!r} and {after[0]!r} can only be compared on the same tasks. {what}")
    changes = [second[task] - first[task] for task in first]
    low, high = bootstrap(changes, seed=seed)
    fixed, broken = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
    mean = sum(changes) / len(changes)
    return Comparison(before[0], after[0], len(changes), mean, low, high, fixed, broken, mcnemar(fixed, broken))


def compare_all(models: Mapping[str, Sequence[Sample]], *, seed: int = 0) -> list[Comparison]:
    """Compare each pair of models, the earlier with the later.

    Raises:
        ConfigError: See :func:`compare`.
    """
    return [compare(a, b, seed=seed) for a, b in itertools.combinations(models.items(), 2)]


def _rates(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the share of right attempts at each task."""
    attempts: dict[str, list[bool]] = {}
    for sample in samples:
        attempts.setdefault(sample.task_id, []).append(sample.correct)
    return {task: sum(right) / len(right) for task, right in attempts.items()}
