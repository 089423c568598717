"""Weights over the training: exact at the points, linear between them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError
from trajgym.rewards import Schedule

points = st.dictionaries(st.floats(0, 1), st.floats(-10, 10), min_size=1, max_size=5).map(lambda d: sorted(d.items()))


@pytest.mark.parametrize(
    ("progress", "weight"), [(0.0, 1.0), (0.25, 1.0), (0.375, 0.75), (0.5, 0.5), (0.75, 1.25), (1.0, 2.0)]
)
def test_worked_values(progress: float, weight: float) -> None:
    assert Schedule([(0.25, 1.0), (0.5, 0.5), (1.0, 2.0)])(progress) == weight


@given(points)
def test_exact_at_its_points_and_constant_outside(given_points: list[tuple[float, float]]) -> None:
    schedule = Schedule(given_points)
    assert [schedule(p) for p, _ in given_points] == [w for _, w in given_points]
    assert (schedule(0.0), schedule(1.0)) == (given_points[0][1], given_points[-1][1])


@given(points, st.floats(0, 1))
def test_never_beyond_its_neighbours(given_points: list[tuple[float, float]], progress: float) -> None:
    before = [w for p, w in given_points if p <= progress][-1:]
    after = [w for p, w in given_points if p >= progress][:1]
    near = before + after
    assert min(near) - 1e-9 <= Schedule(given_points)(progress) <= max(near) + 1e-9


def test_lists_are_as_good_as_tuples() -> None:
    assert Schedule([[0, 1], [1, 0]]) == Schedule(((0.0, 1.0), (1.0, 0.0)))  # type: ignore[list-item]


@pytest.mark.parametrize(
    "wrong",
    [
        [], None, 3, "ab", [1, 2], [(0.0,)], [(0.0, 1.0, 2.0)], [("0", 1.0)], [(0.0, float("nan"))], [(0.0, True)],
        [(-0.1, 1.0)], [(1.1, 1.0)], [(0.5, 1.0), (0.5, 2.0)], [(0.5, 1.0), (0.2, 2.0)], {0.0: 1.0},
    ],
)  # fmt: skip
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="schedule"):
        Schedule(wrong)


@pytest.mark.parametrize("progress", [float("nan"), float("inf"), -0.1, 1.1, True, "0.5", None])
def test_only_a_share_of_the_training_has_a_weight(progress: Any) -> None:
    with pytest.raises(ConfigError, match=r"progress .* in \[0, 1\]"):
        Schedule([(0.0, 1.0), (1.0, 0.0)])(progress)
