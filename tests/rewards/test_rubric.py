"""Rubric: named terms with weights, each part finite or the term is named."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError, EnvironmentFault, RewardError, UnknownNameError
from trajgym.rewards import FunctionTerm, Rubric, Schedule, Settled, Shaped, accuracy, tool_success
from trajgym.types import Action, Observation, Step, StopReason, Task

TASK = Task("sum", "48 + 24?", "72")
STEP = Step(Action("#### 72"), Observation(), terminated=True, stop_reason=StopReason.ANSWERED)


def constant(value: Any) -> Any:
    return lambda step, task, history: value


def test_each_part_is_value_times_weight() -> None:
    rubric = Rubric({"right": (accuracy, 2), "long": (lambda s, t, h: len(s.action.text), -0.5)})
    assert rubric.score(STEP, TASK, []) == {"right": 2.0, "long": -3.5}
    assert rubric.weights == {"right": 2.0, "long": -0.5}
    assert repr(rubric) == "Rubric(right×2, long×-0.5)"


def test_a_term_sees_the_step_the_task_and_what_was_before() -> None:
    seen: list[Any] = []
    rubric = Rubric({"spy": (lambda *given: seen.append(given) or 0.0, 1.0)})
    rubric.score(STEP, TASK, [STEP, STEP])
    assert seen == [(STEP, TASK, [STEP, STEP])]


def test_it_is_a_mapping_of_its_terms() -> None:
    terms = {"right": (accuracy, 1.0), "tools": (tool_success, 0.1)}
    rubric = Rubric(terms)
    assert dict(rubric) == terms
    assert (len(rubric), "right" in rubric, "wrong" in rubric) == (2, True, False)
    assert Rubric(rubric) == rubric  # one may be made from another
    assert Rubric({}).score(STEP, TASK, []) == {}


@given(st.dictionaries(st.text(max_size=4), st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), max_size=4))
def test_parts_add_up(values: dict[str, tuple[float, float]]) -> None:
    parts = Rubric({n: (constant(v), w) for n, (v, w) in values.items()}).score(STEP, TASK, [])
    assert parts == {n: v * w for n, (v, w) in values.items()}


@pytest.mark.parametrize(("value", "paid"), [(True, 1.0), (3, 3.0), (Fraction(1, 4), 0.25), (np.float32(0.5), 0.5)])
def test_any_real_number_will_do(value: Any, paid: float) -> None:
    got = Rubric({"x": (constant(value), 1.0)}).score(STEP, TASK, [])["x"]
    assert (type(got), got) == (float, paid)


@pytest.mark.parametrize(
    ("value", "weight"),
    [(float("nan"), 1), (float("inf"), 0), ("1", 1), (None, 1), (1j, 1), ([1.0], 1), (10**400, 1), (1e308, 10)],
)
def test_anything_else_is_the_terms_fault(value: Any, weight: float) -> None:
    rubric = Rubric({"fine": (constant(1), 1.0), "odd": (constant(value), weight)})
    with pytest.raises(RewardError, match=r"'odd' returned .* for task 'sum'"):
        rubric.score(STEP, TASK, [])


def test_a_term_that_raises_is_named_and_an_outage_is_passed_on() -> None:
    def broken(*_: Any) -> float:
        raise KeyError("gold")

    def down(*_: Any) -> float:
        raise EnvironmentFault("the judge is down")

    with pytest.raises(RewardError, match=r"'broken' raised KeyError: 'gold' \(task 'sum'\)"):
        Rubric({"broken": (broken, 1.0)}).score(STEP, TASK, [])
    with pytest.raises(EnvironmentFault, match="judge"):
        Rubric({"judge": (down, 1.0)}).score(STEP, TASK, [])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (1.0, "pair"),
        ((accuracy,), "pair"),
        ([accuracy, 1.0], "pair"),
        (("accuracy", 1.0), "pair"),
        ((Rubric({}), 1.0), "Merge the two"),
        ((accuracy, [(0.0, 1.0)]), "weight"),
        ((accuracy, "1"), "weight"),
        ((accuracy, None), "weight"),
        ((accuracy, True), "weight"),
        ((accuracy, float("nan")), "weight"),
        ((accuracy, float("inf")), "weight"),
    ],
)
def test_wrong_entries_are_refused_when_the_rubric_is_made(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"'mine' .*{message}"):
        Rubric({"mine": entry})


# As a reward function for trainers.


def words(step: Step, task: Task, history: Sequence[Step]) -> float:
    return float(len(step.action.text.split()))


def test_completions_are_paid_like_steps() -> None:
    rubric = Rubric({"right": (accuracy, 2), "long": (words, -0.5)})
    texts = ["#### 72", "it is 73", ""]
    parts = rubric.breakdown(texts, answer=["72"] * 3)
    assert parts == [{"right": 2.0, "long": -1.0}, {"right": 0.0, "long": -1.5}, {"right": 0.0, "long": -0.0}]
    assert rubric(completions=texts, answer=["72"] * 3) == [1.0, -1.5, 0.0]
    assert rubric([], answer=[]) == []


def test_functions_and_terms_go_together() -> None:
    double = FunctionTerm(lambda completions, **columns: [0.5 for _ in completions])
    rubric = Rubric({"right": (accuracy, 1.0), "mine": (double, 2.0)})
    assert rubric(["#### 72", "#### 73"], answer=["72", "72"]) == [2.0, 1.0]
    assert rubric.score(STEP, TASK, []) == {"right": 1.0, "mine": 1.0}


def test_means_are_logged_where_the_trainer_wants_them() -> None:
    logged: dict[str, float] = {}
    rubric = Rubric({"right": (accuracy, 1.0), "long": (words, 0.1)})
    rubric(["#### 72", "72"], answer=["72", "73"], log_metric=logged.__setitem__)
    assert logged == {"reward_parts/right": 0.5, "reward_parts/long": pytest.approx(0.15)}


def test_scheduled_weights_follow_the_trainers_progress() -> None:
    rubric = Rubric({"right": (accuracy, 1.0), "long": (words, Schedule([(0.0, 1.0), (1.0, 0.0)]))})

    def paid(step: int, of: int) -> float:
        state = SimpleNamespace(global_step=step, max_steps=of)
        return rubric(["#### 72"], answer=["72"], trainer_state=state)[0]

    assert [paid(0, 4), paid(1, 4), paid(4, 4), paid(9, 4), paid(3, -1)] == [3.0, 2.5, 1.0, 1.0, 3.0]


def test_errors_name_the_term_for_completions_too() -> None:
    for value in (None, float("nan"), float("inf"), "1"):
        rubric = Rubric({"odd": (constant(value), 1.0)})
        with pytest.raises(RewardError, match="'odd'"):
            rubric(["a"])
    with pytest.raises(RewardError, match=r"'broken' raised ZeroDivisionError.*in a list of completions"):
        Rubric({"broken": (lambda *_: 1 / 0, 1.0)})(["a"])
    with pytest.raises(ConfigError, match="'answer' has 2 values for 1"):
        Rubric({"right": (accuracy, 1.0)})(["a"], answer=["1", "2"])
    with pytest.raises(ConfigError, match="ground truth"):
        Rubric({"right": (accuracy, 1.0)})(["a"])


# Over a training.


def test_the_rubric_in_force() -> None:
    plan = Rubric({"right": (accuracy, 1.0), "long": (words, Schedule([(0.0, 0.4), (0.5, 0.0)]))})
    assert plan.weights == {"right": 1.0, "long": 0.4}  # nobody has told it of any progress
    assert plan.at(0.25).weights == {"right": 1.0, "long": 0.2}
    assert plan.at(0.25).score(STEP, TASK, []) == {"right": 1.0, "long": 0.4}
    assert plan.at(0.25).at(1.0).weights == {"right": 1.0, "long": 0.0}
    assert plan.weights == {"right": 1.0, "long": 0.4}
    assert (plan.scheduled, Rubric({"right": (accuracy, 1.0)}).scheduled) == (True, False)


@pytest.mark.parametrize("progress", [-0.1, 1.1, float("nan"), None, "half"])
def test_progress_is_a_share(progress: Any) -> None:
    with pytest.raises(ConfigError, match="progress"):
        Rubric({}).at(progress)


def test_other_weights_for_some_terms() -> None:
    rubric = Rubric({"right": (accuracy, 1.0), "long": (words, 0.1)})
    assert rubric.reweighted({"long": 0.5}).weights == {"right": 1.0, "long": 0.5}
    with pytest.raises(UnknownNameError, match=r"term of this reward 'lang'\. Did you mean 'long'"):
        rubric.reweighted({"lang": 0.5})


def test_the_discount_is_told_to_those_who_mind() -> None:
    rubric = Rubric(
        {"shaped": (Shaped(constant_potential), 1.0), "dense": (Settled(tool_success), 1.0), "x": (words, 1)}
    )
    told = rubric.discounted(0.9)
    assert [getattr(term, "gamma", None) for term, _ in told.values()] == [0.9, 0.9, None]
    assert told.score(STEP, TASK, [])["shaped"] == -1.0
    with pytest.raises(ConfigError, match=r"Shaped term has gamma=0\.9 and the run 0\.5"):
        told.discounted(0.5)


def constant_potential(task: Task, steps: Sequence[Step]) -> float:
    return 1.0


def test_it_can_be_pickled_as_vector_environments_do() -> None:
    rubric = Rubric({"right": (accuracy, 1.0), "long": (words, Schedule([(0.0, 1.0)]))})
    assert pickle.loads(pickle.dumps(rubric)) == rubric
