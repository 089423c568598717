"""Numbers that describe a policy, each with the interval that says how far to trust it."""

from __future__ import annotations

import math

from trajgym.errors import ConfigError

__all__ = ["newcombe", "wilson"]


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson score interval of a share.

    Args:
        successes: How many succeeded.
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


def newcombe(before: tuple[int, int], after: tuple[int, int]) -> tuple[float, float]:
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
