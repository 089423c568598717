"""Timing side by side: rounds in which everything is measured once, and estimates with intervals from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Estimate", "Sample", "estimate", "interleave", "median", "median_ratio", "p95"]

Array = NDArray[np.float64]
Sample = float | Sequence[float]
"""What a round gives: a figure, or several of equal standing."""

T = TypeVar("T")

RESAMPLES = 2000
LOW, HIGH = 0.025, 0.975


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95 % interval, in the figure's own unit."""

    value: float
    low: float
    high: float


def median(samples: Array) -> Array:
    """Return the medians along the last axis."""
    return np.asarray(np.median(samples, axis=-1))


def median_ratio(slow: Array, fast: Array) -> Array:
    """Return the ratios of the medians along the last axis."""
    return np.asarray(median(slow) / median(fast))


def p95(samples: Array) -> Array:
    """Return the 95th percentiles along the last axis."""
    return np.asarray(np.quantile(samples, 0.95, axis=-1))


def estimate(statistic: Callable[..., Any], *samples: Sequence[Sample], seed: int = 0) -> Estimate:
    """Estimate a statistic of one or several samples that were measured in the same rounds.

    The interval is the bootstrap's: whole rounds are drawn again, with replacement, so that what disturbed everything
    in a round does so in every draw of it. A percentile near the end of a short sample gets too narrow an interval.

    Args:
        statistic: Takes as many arrays as there are samples, of shape (..., figures), and returns one of shape (...).
        samples: One or several figures per round each, as many in every round.
        seed: Of the draws: the same samples give the same interval.

    Raises:
        ValueError: When the samples are empty or differ in length.

    Source:
        Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13 (percentile interval).
    """
    lengths = {len(sample) for sample in samples}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError(f"Samples must come from the same rounds, got {[len(s) for s in samples]} of them.")
    rounds = lengths.pop()
    data = [np.asarray(sample, dtype=np.float64).reshape(rounds, -1) for sample in samples]
    drawn = np.random.default_rng(seed).integers(rounds, size=(RESAMPLES, rounds))
    low, high = np.quantile(statistic(*(sample[drawn].reshape(RESAMPLES, -1) for sample in data)), [LOW, HIGH])
    return Estimate(float(statistic(*(sample.reshape(-1) for sample in data))), float(low), float(high))


def interleave(contenders: Mapping[str, Callable[[], T]], rounds: int, warmup: int = 2) -> dict[str, list[T]]:
    """Measure every contender once per round, so that a change of the machine's speed meets all of them.

    Each round begins with the next contender, so that none always runs behind the same other one at the round's start.

    Args:
        contenders: By name; each runs once, or several times in a row, and returns what that took in seconds.
        rounds: How many figures to collect of each.
        warmup: Rounds before those, which are thrown away.

    Returns:
        The seconds of each contender, in the order of the rounds.
    """
    names = list(contenders)
    seconds: dict[str, list[T]] = {name: [] for name in names}
    for number in range(-warmup, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            took = contenders[name]()
            if number >= 0:
                seconds[name].append(took)
    return seconds
