"""What a reward is like: shares that add up, signal, bounds and success, each by its definition."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError
from trajgym.rewards import reward_criteria
from trajgym.rewards.criteria import DOMINANT, MOST_SPREAD, signal_share, success_order, term_returns, variance_shares
from trajgym.types import Action, Observation, Step, StopReason, Task, Trajectory

TASK = Task("sum", "48 + 24?", "72")
values = st.floats(-10, 10).map(lambda x: round(x, 3))
rows = st.lists(st.fixed_dictionaries({"a": values, "b": values, "c": values}), min_size=1, max_size=12)


def played(*terms: Mapping[str, float], fault: str | None = None, reward: float | None = None) -> Trajectory:
    """A trajectory whose steps have been paid so."""
    steps = [Step(Action(""), Observation(), sum(t.values()) if reward is None else reward, t) for t in terms]
    steps[-1:] = [
        Step(s.action, s.observation, s.reward, s.reward_terms, terminated=True, stop_reason=StopReason.ANSWERED)
        for s in steps[-1:]
    ]
    return Trajectory(TASK, (), tuple(steps), fault=fault)


def test_a_terms_return_is_discounted_per_turn() -> None:
    trajectory = played({"a": 1.0, "b": 2.0}, {"a": 1.0}, {"b": -1.0})
    assert term_returns(trajectory) == {"a": 2.0, "b": 1.0}
    assert term_returns(trajectory, 0.5) == {"a": 1.5, "b": 1.75}


@given(rows)
def test_shares_add_up_and_are_covariances(given_rows: list[dict[str, float]]) -> None:
    shares = variance_shares(given_rows)
    totals = [math.fsum(row.values()) for row in given_rows]
    variance = statistics.pvariance(totals)
    if variance < 1e-9:
        return
    assert math.fsum(shares.values()) == pytest.approx(1.0, abs=1e-6)
    for name, share in shares.items():
        mean, centre = statistics.fmean(row[name] for row in given_rows), statistics.fmean(totals)
        covariance = statistics.fmean((r[name] - mean) * (t - centre) for r, t in zip(given_rows, totals, strict=True))
        assert share == pytest.approx(covariance / variance, abs=1e-6)


@pytest.mark.parametrize(
    ("parts", "shares"),
    [
        ([], {}),
        ([{"a": 1.0}, {"a": 1.0}], {"a": 0.0}),
        ([{"a": 1.0, "b": 5.0}, {"b": 5.0}], {"a": 1.0, "b": 0.0}),
        ([{"a": 1.0, "b": 1.0}, {}], {"a": 0.5, "b": 0.5}),
        ([{"a": 2.0, "b": -1.0}, {}], {"a": 2.0, "b": -1.0}),  # one evens out the other
        ([{"a": 1e-20}, {"a": 0.0}], {"a": 0.0}),
    ],
)
def test_worked_shares(parts: Sequence[Mapping[str, float]], shares: dict[str, float]) -> None:
    assert variance_shares(parts) == pytest.approx(shares)


@pytest.mark.parametrize(
    ("returns", "share"), [([], 0.0), ([[]], 0.0), ([[1.0]], 0.0), ([[0.0, 1.0], [1.0, 1.0 + 1e-12], []], 0.5)]
)
def test_groups_that_differ_teach(returns: list[list[float]], share: float) -> None:
    assert signal_share(returns) == share


@pytest.mark.parametrize(
    ("returns", "solved", "share"),
    [
        ([[1.0, 0.0]], [[True, False]], 1.0),
        ([[0.0, 1.0]], [[True, False]], 0.0),
        ([[1.0, 1.0]], [[True, False]], 0.0),  # a tie tells nothing
        ([[1.0, 0.5, 2.0]], [[True, False, False]], 0.5),
        ([[1.0], [2.0]], [[True], [False]], None),  # tasks are not compared with one another
    ],
)
def test_success_is_defined_when_it_earns_more(
    returns: list[list[float]], solved: list[list[bool]], share: float | None
) -> None:
    assert success_order(returns, solved) == share


def test_a_sound_reward() -> None:
    right, wrong = played({"calls": 0.1}, {"accuracy": 1.0, "calls": 0.0}), played({"calls": 0.1}, {"accuracy": 0.0})
    nothing = played({"calls": 0.0}, {"accuracy": 0.0})
    found = reward_criteria([[right, wrong], [right, nothing]], solved=[[True, False], [True, False]])
    assert (found.success_order, found.signal, found.low, found.high) == (1.0, 1.0, 0.0, pytest.approx(1.1))
    assert found.spread == pytest.approx(1.1 / 1.05)
    assert found.additive
    assert found.deviation == pytest.approx(statistics.pstdev([1.1, 0.1, 1.1, 0.0]))
    assert set(found.shares) == {"calls", "accuracy"}
    assert found.dominant == "accuracy"
    assert found.warnings == (
        f"'accuracy' makes {found.shares['accuracy']:.0%} of the variance; beside it the other terms hardly count.",
    )


def test_one_term_alone_dominates_nothing() -> None:
    found = reward_criteria([[played({"accuracy": 1.0}), played({"accuracy": 0.0})]])
    assert (found.shares, found.dominant, found.warnings) == ({"accuracy": 1.0}, None, ())
    assert (found.success_order, found.spread) == (None, None)


def test_every_warning_has_its_reason() -> None:
    right, wrong = played({"accuracy": 1.0, "length": 0.0}), played({"accuracy": 0.0, "length": -500.0})
    found = reward_criteria([[right, wrong]], solved=[[False, True]])
    assert "in 0% of the pairs only" in found.warnings[0]
    far = reward_criteria([[right, wrong], [wrong, right]], solved=[[True, False], [True, False]])
    assert far.spread is None, "what success is worth on the whole is nothing"
    far = reward_criteria(
        [[right, wrong, *[played({"accuracy": 0.0, "length": 0.0})] * 99]], solved=[[True] + [False] * 100]
    )
    assert far.spread is not None
    assert far.spread > MOST_SPREAD
    assert any("cap the term that reaches so far" in warning for warning in far.warnings)
    assert far.dominant == "length"
    assert far.shares["length"] > DOMINANT
    flat = reward_criteria([[right, right]])
    assert flat.warnings == ("No group has two different returns: there is nothing to learn from.",)
    odd = reward_criteria([[played({"accuracy": 1.0}, reward=3.0), wrong]])
    assert not odd.additive
    assert any("do not add up" in warning for warning in odd.warnings)


def test_invalid_trajectories_are_left_out() -> None:
    right, wrong = played({"accuracy": 1.0}), played({"accuracy": 0.0})
    lost = played({"accuracy": 100.0}, fault="OSError")
    with_it = reward_criteria([[right, lost, wrong]], solved=[[True, True, False]])
    assert with_it == reward_criteria([[right, wrong]], solved=[[True, False]])


def test_the_discount_counts() -> None:
    early, late = played({"a": 1.0}, {"a": 0.0}), played({"a": 0.0}, {"a": 1.0})
    assert reward_criteria([[early, late]]).signal == 0.0
    assert reward_criteria([[early, late]], gamma=0.9).signal == 1.0


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ([], {}, "at least one valid trajectory"),
        ([[played({"a": 1.0}, fault="x")]], {}, "at least one valid trajectory"),
        ([[played({"a": 1.0})]], {"gamma": 1.5}, "gamma must lie"),
        ([[played({"a": 1.0})]], {"gamma": True}, "gamma must lie"),
        ([[played({"a": 1.0})]], {"solved": [[True, False]]}, "one flag for each trajectory"),
        ([[played({"a": 1.0})]], {"solved": []}, "one flag for each trajectory"),
    ],
)
def test_wrong_use(groups: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reward_criteria(groups, **options)
