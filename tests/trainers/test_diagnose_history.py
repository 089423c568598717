"""Means along a run: what is missing, not finite or long ago does not count."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.trainers.diagnose_history import LONG, SHORT, History

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


def history(values: list[Any], name: str = "reward") -> History:
    return History({"update": i, name: value} for i, value in enumerate(values, start=1))


@given(NUMBERS)
def test_tracks_are_the_means_of_their_windows(values: list[float]) -> None:
    for size in (1, SHORT, LONG):
        means = [fmean(values[i : i + size]) for i in range(len(values) - size + 1)]
        track = history(values).track("reward", size)
        if not means:
            assert track.first is track.recent is track.highest is track.lowest is None
            continue
        assert track.first
        assert track.recent
        assert track.highest
        assert track.lowest
        got = [track.first.value, track.recent.value, track.highest.value, track.lowest.value]
        assert got == pytest.approx([means[0], means[-1], max(means), min(means)], abs=1e-6)
        assert track.recent.update == len(values)
        assert track.first.update == size
        if size > 1:
            assert track.recent.error == pytest.approx(stdev(values[-size:]) / math.sqrt(size), rel=1e-6, abs=1e-6)


def test_equal_numbers_have_no_error() -> None:
    recent = history([0.1] * 10).track("reward", LONG).recent
    assert recent is not None
    assert recent.error == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e200, 10**400, None, "0.5", True, [1.0]])
def test_what_is_no_usable_number_is_left_out(value: Any) -> None:
    seen = history([1.0, 2.0, 3.0, value])
    assert seen.count("reward") == 3
    assert seen.now("reward") is None
    assert seen.recent("reward") is None
    recent = seen.track("reward", SHORT).recent
    assert recent is not None
    assert recent.value == 2.0
    numbers = isinstance(value, (int, float)) and not isinstance(value, bool)
    assert seen.not_finite() == (["reward"] if numbers else [])


def test_old_news_is_no_news() -> None:
    seen = history([1.0, 1.0, 1.0])
    assert seen.recent("reward") == 1.0
    seen.add({"update": 4, "loss": 0.0})
    assert seen.recent("reward") is None
    assert seen.names() == ["loss", "update"]
    assert seen.names("lo") == ["loss"]
    assert seen.update == 4


def test_a_metric_that_nobody_logged() -> None:
    assert History().track("reward", SHORT).recent is None
    assert History().recent("reward") is None
    assert History().count("reward") == 0
