"""Numbers that describe a policy, each with the interval that says how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trajgym.errors import ConfigError

__all__ = ["CHANCE", "accuracy_at_k", "bootstrap", "mcnemar", "newcombe", "share_interval", "wilson"]

CHANCE = 0.05
"""A difference is called clear only where a test calls it less likely than this by chance."""

_DRAWS = 5_000


def wilson(successes: float, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson score interval of a share.

    Args:
        successes: How many succeeded; parts of one where several attempts at it are taken together.
        trials: Out of how many; for none the interval is (0, 1).
        z: Quantile of the normal distribution; 1.96 gives 95 %.

    Source: E. B. Wilson, JASA 22 (1927).

    >>> low, high = wilson(50, 100)
    >>> round(low, 3), round(high, 3)
    (0.404, 0.596)
    """
    if not 0 <= successes <= trials:
        raise ConfigError(f"successes must lie between 0 and trials, got {successes} of {trials}.")
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    # At the ends the bound is the share itself, but only up to rounding.
    low = 0.0 if successes == 0 else (centre - spread) / scale
    high = 1.0 if successes == trials else (centre + spread) / scale
    return low, high


def newcombe(before: tuple[float, int], after: tuple[float, int]) -> tuple[float, float]:
    """Return a 95 % interval of the difference of two shares, ``after − before``.

    Args:
        before: Successes and trials of the first sample.
        after: Successes and trials of the second; where either has no trials, the interval is (-1, 1).

    Source: R. G. Newcombe, Statistics in Medicine 17 (1998), method 10.

    >>> low, high = newcombe((10, 100), (30, 100))
    >>> round(low, 2), round(high, 2)
    (0.09, 0.31)
    """
    (l1, u1), (l2, u2) = wilson(*before), wilson(*after)
    if not (before[1] and after[1]):
        return -1.0, 1.0
    p1, p2 = before[0] / before[1], after[0] / after[1]
    low = math.hypot(p2 - l2, u1 - p1)
    high = math.hypot(u2 - p2, p1 - l1)
    return p2 - p1 - low, p2 - p1 + high


def accuracy_at_k(attempts: int, right: int, k: int) -> float:
    """Return the probability that at least one of ``k`` attempts is right, without bias: ``1 − C(n−c, k)/C(n, k)``.

    Args:
        attempts: How many were made, n.
        right: How many of them were right, c.
        k: How many somebody may make, from 1 to n.

    Source: Chen et al., Evaluating Large Language Models Trained on Code, 2021, eq. 1.

    >>> accuracy_at_k(4, 1, 1), accuracy_at_k(4, 1, 3), accuracy_at_k(4, 0, 4)
    (0.25, 0.75, 0.0)
    """
    if not 0 <= right <= attempts:
        raise ConfigError(f"right must lie between 0 and attempts, got {right} of {attempts}.")
    if not 1 <= k <= attempts:
        raise ConfigError(f"k must lie between 1 and the number of attempts, {attempts}, got {k}. Make more attempts.")
    return 1.0 - math.comb(attempts - right, k) / math.comb(attempts, k)


def bootstrap(values: Sequence[float], *, seed: int = 0, draws: int = _DRAWS) -> tuple[float, float]:
    """Return a 95 % percentile interval of the mean, from samples with replacement.

    Args:
        values: One for each task, such as the difference of two models on it; for none the interval is (−∞, ∞).
        seed: Decides the draws.
        draws: How many samples are drawn.

    Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap, 1993, ch. 13.

    >>> bootstrap([1.0, 1.0, 1.0])
    (1.0, 1.0)
    """
    if not values:
        return -math.inf, math.inf
    given = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    at_once = max(1, 1_000_000 // len(given))  # bounds the memory of a large set
    means = [
        given[generator.integers(len(given), size=(min(at_once, draws - done), len(given)))].mean(axis=1)
        for done in range(0, draws, at_once)
    ]
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return float(low), float(high)


def share_interval(rates: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """Return a 95 % interval of a share, from the share of right attempts at each task.

    The bootstrap over tasks, since attempts at one task are alike. Where all tasks are alike it sees no spread and
    would be certain of what few tasks show; there it is Wilson's interval, as if each task had been tried once.

    Args:
        rates: One for each task, in [0, 1]; for none the interval is (0, 1).
        seed: Decides the draws.

    >>> share_interval([0.0, 0.0, 0.0]) == wilson(0, 3)
    True
    """
    if not rates or min(rates) == max(rates):
        return wilson(sum(rates), len(rates))
    return bootstrap(rates, seed=seed)


def mcnemar(better: int, worse: int) -> float:
    """Return the exact two-sided p-value of McNemar's test that two models are equally good on the same tasks.

    Args:
        better: Tasks that only the second model gets right.
        worse: Tasks that only the first one gets right.

    Source: Q. McNemar, Psychometrika 12 (1947); the exact form is the sign test.

    >>> mcnemar(5, 5), mcnemar(9, 1) < 0.05
    (1.0, True)
    """
    if better < 0 or worse < 0:
        raise ConfigError(f"better and worse count tasks, got {better} and {worse}.")
    total, few = better + worse, min(better, worse)
    tail = sum(math.comb(total, i) for i in range(few + 1))
    return float(min(1.0, 2 * tail / 2**total))
