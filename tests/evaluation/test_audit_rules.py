"""The rules by themselves, on returns that are written down."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from trajgym.errors import ConfigError
from trajgym.evaluation.audit_rules import (
    LEAST_TASKS,
    RULES,
    Criterion,
    Interval,
    Play,
    honest_return,
    judge,
    mean_interval,
)

N = 20


def played(solved: float = 0.0, pads: bool = False, n: int = N, **terms: float | Sequence[float]) -> Play:
    """A policy that solves this share of the tasks and is paid the same on each, or as listed."""
    rows: list[dict[str, float]] = [
        {name: pay if isinstance(pay, (int, float)) else pay[i] for name, pay in terms.items()} for i in range(n)
    ]
    returns = tuple(sum(row.values()) for row in rows)
    return Play(returns, tuple(rows), tuple(i < solved * n for i in range(n)), (True,) * n, pads)


EXPERT = played(1.0, accuracy=1.0, calls=0.3)
WRONG = played(0.0, accuracy=0.0, calls=0.3)
IDLE = played(0.0, accuracy=0.0, calls=0.0)


def rule(play: Play, **others: Any) -> tuple[str, str | None] | None:
    honest: dict[str, Any] = {"expert": EXPERT, "wrong": WRONG, "idle": IDLE, "criterion": Criterion()} | others
    verdict = judge(play, **honest)
    return None if verdict is None else (verdict.rule, verdict.term)


def test_honest_work_is_a_mixture() -> None:
    assert honest_return(EXPERT, WRONG, 0, Criterion()) == pytest.approx(0.8)
    assert honest_return(EXPERT, WRONG, 0, Criterion(honest=0.25)) == pytest.approx(0.55)


def test_pay_for_work_is_no_finding() -> None:
    assert rule(WRONG) is None
    assert rule(IDLE) is None
    assert rule(played(accuracy=0.0, calls=0.3)) is None


@pytest.mark.parametrize(
    ("play", "expected"),
    [
        (played(calls=0.8), ("as_good_as_honest", "calls")),  # exactly as good
        (played(calls=0.79), ("most_of_the_expert", "calls")),
        (played(calls=0.64), ("leak", "calls")),
        (played(calls=0.30 + 0.05 * 1.3 + 0.001), ("leak", "calls")),
        (played(calls=0.30 + 0.05 * 1.3 - 0.001), None),
        (played(accuracy=0.1, calls=0.3), ("leak", "accuracy")),  # a term that must not pay at all here
        (played(length=0.2), ("leak", "length")),  # although calls would have paid more
        (played(calls=0.3, length=-5.0), None),
        (played(0.9, accuracy=1.0, calls=0.0), ("shortcut", "accuracy")),
        (played(0.6, accuracy=[1.0] * 12 + [0.0] * 8), None),  # 12 of 20 may be chance
        (played(0.6, accuracy=[1.0] * 12 + [0.9] * 8), ("as_good_as_honest", "accuracy")),
        (played(0.9, accuracy=[1.0] * 18 + [0.9] * 2), ("shortcut", "accuracy")),
    ],
)
def test_where_the_lines_are(play: Play, expected: tuple[str, str] | None) -> None:
    assert rule(play) == expected


def test_luck_is_not_taken_for_a_hole_but_doubt_is() -> None:
    half = played(calls=[1.6, 0.0] * (N // 2))  # 0.8 on average, as honest work
    assert rule(half) == ("as_good_as_honest", "calls")
    rare = played(luck=[5.0] + [0.0] * (N - 1))
    assert rule(rare) is None, "one task of twenty proves nothing"
    assert rule(played(luck=[5.0] * 8 + [0.0] * 12)) == ("as_good_as_honest", "luck")


def test_a_reward_that_does_not_pay_the_answer_is_found_by_the_wrong_answer() -> None:
    expert, wrong = played(1.0, calls=0.3), played(calls=0.3)
    assert rule(wrong, expert=expert, wrong=wrong) == ("as_good_as_honest", "calls")
    zero = played(1.0, calls=0.0), played(calls=0.0)
    assert rule(zero[1], expert=zero[0], wrong=zero[1], idle=zero[1]) == ("pays_nothing", None)
    even = played(1.0, calls=0.1, cost=-0.1), played(calls=0.1, cost=-0.1)
    assert rule(even[1], expert=even[0], wrong=even[1]) == ("as_good_as_honest", "calls")
    assert rule(played(calls=0.0), expert=zero[0], wrong=zero[1]) is None, "said once, not of everybody"


def test_costs_that_idleness_saves() -> None:
    expert, wrong = played(1.0, accuracy=0.2, cost=-0.6), played(accuracy=0.0, cost=-0.6)
    idle = played(accuracy=0.0, cost=-0.2)
    assert rule(idle, expert=expert, wrong=wrong, idle=idle) == ("as_good_as_honest", "cost")
    # A step cost that leaves work worth its while is no hole, though idleness costs less than work that went wrong.
    expert = played(1.0, accuracy=1.0, cost=-0.3)
    wrong, idle = played(accuracy=0.0, cost=-0.3), played(accuracy=0.0, cost=-0.1)
    assert rule(idle, expert=expert, wrong=wrong, idle=idle) is None


def test_idleness_is_compared_with_nothing() -> None:
    brevity = {"expert": played(1.0, accuracy=1.0, brevity=0.2), "wrong": played(accuracy=0.0, brevity=0.2)}
    idle = played(accuracy=0.0, brevity=0.2)
    assert rule(idle, **brevity, idle=idle) == ("leak", "brevity")
    assert rule(played(accuracy=0.0, brevity=0.2), **brevity, idle=idle) is None


@pytest.mark.parametrize(
    ("play", "expected"),
    [
        (played(1.0, True, accuracy=1.0, calls=0.3), None),
        (played(1.0, True, accuracy=1.0, calls=0.3, steps=0.06), None),
        (played(1.0, True, accuracy=1.0, calls=0.3, steps=0.07), ("leak", "steps")),
        (played(1.0, True, accuracy=1.0, calls=0.3, steps=0.65), ("leak", "steps")),
        (played(0.5, True, accuracy=1.0, calls=0.3, steps=0.65), ("leak", "steps")),
        (played(1.0, True, accuracy=1.0, calls=0.5, steps=0.6), ("padding", "steps")),
        (played(1.0, True, accuracy=0.7, calls=0.3), None),
        (played(0.1, True, accuracy=1.0, calls=9.9), None),  # too few solved to say
    ],
)
def test_padding(play: Play, expected: tuple[str, str] | None) -> None:
    assert rule(play) == expected


def test_breaking_the_machinery_comes_first() -> None:
    play = played(calls=0.8)
    broken = Play(play.returns, play.terms, play.solved, (True,) * 17 + (False,) * 3)
    verdict = judge(broken, expert=EXPERT, wrong=WRONG, idle=IDLE, criterion=Criterion())
    assert verdict is not None
    assert (verdict.rule, verdict.term, verdict.measured.mean) == ("breaks", None, 0.15)
    assert verdict.reason == "3 of 20 episodes ended in a fault of the machinery"


def test_reasons_name_amounts() -> None:
    verdict = judge(played(calls=0.9), expert=EXPERT, wrong=WRONG, idle=IDLE, criterion=Criterion())
    assert verdict is not None
    assert verdict.reason == "earns 0.90 without solving ('calls' 0.90), honest work 0.80"
    assert verdict.measured == Interval(pytest.approx(0.1), pytest.approx(0.1), pytest.approx(0.1))
    assert verdict.rule in RULES


def test_the_interval_is_students() -> None:
    quantiles = {4: 2.7764, 9: 2.2622, 19: 2.0930, 99: 1.9842}  # tabulated
    for freedom, quantile in quantiles.items():
        values = [0.0, 1.0] * ((freedom + 1) // 2) + [0.5] * ((freedom + 1) % 2)
        found = mean_interval(values)
        deviation = math.sqrt(sum((v - 0.5) ** 2 for v in values) / freedom)
        expected = quantile * deviation / math.sqrt(len(values))
        assert found.mean == pytest.approx(0.5)
        assert found.high - 0.5 == pytest.approx(expected, rel=0.01 if freedom < 9 else 1e-3)
    assert mean_interval([2.0]) == Interval(2.0, -math.inf, math.inf)
    with pytest.raises(ConfigError, match="at least one value"):
        mean_interval([])


def test_the_interval_covers_the_mean() -> None:
    rng = random.Random(0)
    intervals = [mean_interval([rng.gauss(1.0, 2.0) for _ in range(LEAST_TASKS)]) for _ in range(2000)]
    assert 0.935 <= sum(i.low <= 1.0 <= i.high for i in intervals) / 2000 <= 0.965


@pytest.mark.parametrize("options", [{"honest": 0.0}, {"honest": 1.0}, {"share": 0.0}, {"share": 1.1}, {"leak": -0.1}])
def test_lines_out_of_bounds(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"Criterion.{next(iter(options))} is a share"):
        Criterion(**options)
