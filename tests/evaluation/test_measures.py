"""Intervals of shares, against published values and by hand."""

from __future__ import annotations

import itertools
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError
from trajgym.evaluation.measures import accuracy_at_k, bootstrap, mcnemar, newcombe, wilson

Z2 = 1.959964**2
counts = st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_as_published(successes: int, trials: int, low: float, high: float) -> None:
    """Source: R. G. Newcombe, Statistics in Medicine 17 (1998) 857, method 3."""
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("after", "before", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((0, 10), (0, 10), -0.2775, 0.2775),
        ((10, 10), (0, 20), 0.6791, 1.0),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_newcombe_as_published(after: tuple[int, int], before: tuple[int, int], low: float, high: float) -> None:
    """Source: R. G. Newcombe, Statistics in Medicine 17 (1998) 873, method 10."""
    assert newcombe(before, after) == pytest.approx((low, high), abs=5e-5)


def test_wilson_by_hand() -> None:
    assert wilson(1, 2, z=1.0) == pytest.approx((0.5 - 3**-0.5 / 2, 0.5 + 3**-0.5 / 2))
    assert wilson(3, 4, z=0.0) == (0.75, 0.75)


@pytest.mark.parametrize("trials", [1, 4, 10, 14, 19, 300])
def test_nothing_and_everything(trials: int) -> None:
    assert wilson(0, trials) == (0.0, pytest.approx(Z2 / (trials + Z2)))
    assert wilson(trials, trials) == (pytest.approx(trials / (trials + Z2)), 1.0)


def test_without_trials_nothing_is_known() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert newcombe((0, 0), (10, 10)) == newcombe((10, 10), (0, 0)) == newcombe((0, 0), (0, 0)) == (-1.0, 1.0)


@given(counts)
def test_an_interval_holds_its_share_and_mirrors(count: tuple[int, int]) -> None:
    successes, trials = count
    low, high = wilson(successes, trials)
    assert 0.0 <= low <= successes / trials <= high <= 1.0
    assert wilson(trials - successes, trials) == pytest.approx((1 - high, 1 - low))
    wider = wilson(successes, trials, z=3.0)
    assert wider[0] <= low
    assert high <= wider[1]


@given(counts, counts)
def test_a_difference_lies_in_its_interval_and_turns_around(before: tuple[int, int], after: tuple[int, int]) -> None:
    low, high = newcombe(before, after)
    difference = after[0] / after[1] - before[0] / before[1]
    assert -1.0 <= low <= difference <= high <= 1.0
    assert newcombe(after, before) == pytest.approx((-high, -low))


def test_more_trials_say_more() -> None:
    widths = [high - low for low, high in (wilson(n // 2, n) for n in (4, 40, 400, 4000))]
    assert all(b < a for a, b in pairwise(widths))


@pytest.mark.parametrize("count", [(-1, 5), (6, 5), (1, 0), (0, -1)])
def test_impossible_counts(count: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=f"got {count[0]} of {count[1]}"):
        wilson(*count)
    with pytest.raises(ConfigError, match=f"got {count[0]} of {count[1]}"):
        newcombe((1, 2), count)


def test_accuracy_at_k_is_unbiased() -> None:
    """The mean over all ways to choose k of the attempts is the estimator itself."""
    for attempts in range(1, 6):
        for right in range(attempts + 1):
            outcomes = [True] * right + [False] * (attempts - right)
            for k in range(1, attempts + 1):
                chosen = list(itertools.combinations(outcomes, k))
                assert accuracy_at_k(attempts, right, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))


def test_accuracy_at_k_only_grows_with_k() -> None:
    for right in range(9):
        values = [accuracy_at_k(8, right, k) for k in range(1, 9)]
        assert values == sorted(values)
        assert values[0] == right / 8
        assert values[-1] == float(right > 0)


@pytest.mark.parametrize(("attempts", "right", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_accuracy_at_k_refuses_what_cannot_be(attempts: int, right: int, k: int) -> None:
    with pytest.raises(ConfigError, match="must lie between"):
        accuracy_at_k(attempts, right, k)


def test_the_bootstrap_agrees_with_the_normal_interval() -> None:
    values = [float(i % 10 < 4) for i in range(1000)]
    low, high = bootstrap(values)
    assert low == pytest.approx(0.4 - 1.96 * math.sqrt(0.24 / 1000), abs=0.003)
    assert high == pytest.approx(0.4 + 1.96 * math.sqrt(0.24 / 1000), abs=0.003)
    assert bootstrap(values) == bootstrap(values) != bootstrap(values, seed=1)
    assert bootstrap([0.5]) == (0.5, 0.5)
    assert bootstrap([]) == (-math.inf, math.inf)


def test_mcnemar_is_the_sign_test() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(0, 5) == mcnemar(5, 0) == pytest.approx(2 / 32)
    assert mcnemar(2, 8) == pytest.approx(2 * (1 + 10 + 45) / 1024)
    assert mcnemar(900, 700) < 1e-6
    with pytest.raises(ConfigError, match="count tasks"):
        mcnemar(-1, 3)
