"""Terms for calls: each pays what its definition says, and shows how it may not be earned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError, RewardError
from trajgym.rewards.functions import RewardTerm
from trajgym.rewards.tool_use import (
    DEFAULT_CAP,
    LengthCost,
    call_cost,
    call_ran,
    call_valid,
    milestone,
    needed_steps,
    needless_repeat,
    result_used,
    tool_success,
)
from trajgym.types import Action, CallError, ExpertTurn, Observation, Step, StopReason, Task, ToolCall, ToolResult

TASK = Task("sum", "Natalia sold 48 clips, and half as many later. How many in all?", "72", difficulty=2)
ANY = Task("any", "?", "72")
BAD = CallError("malformed_json", "no")


def called(*expressions: Any, error: str | None = None, name: str = "calculator") -> Step:
    results = (ToolResult(ToolCall(name, {"expression": e}), "72", error) for e in expressions)
    return Step(Action("…"), Observation(), results=tuple(results))


def turn(*pairs: tuple[Any, str], say: str = "", error: CallError | None = None) -> Step:
    """A turn with (argument, result) pairs; a result that begins with ! is an error."""
    calls = tuple(ToolCall("calculator", {"expression": argument}) for argument, _ in pairs)
    results = tuple(
        ToolResult(c, r.lstrip("!"), "error" if r[:1] == "!" else None) for c, (_, r) in zip(calls, pairs, strict=True)
    )
    return Step(Action(say, calls=calls), Observation(), results=results, error=error)


def answer(text: str) -> Step:
    return Step(Action(text), Observation(), terminated=True, stop_reason=StopReason.ANSWERED)


def paid(term: RewardTerm, steps: list[Step], task: Task = ANY) -> list[float]:
    return [term(step, task, steps[:i]) for i, step in enumerate(steps)]


def of_difficulty(steps: int | None) -> Task:
    return Task("sum", "?", "72", difficulty=steps)


# Values on the way.

WAY = Task("way", "A box holds 48 clips, and half as many more; then 6 go.", "66", metadata={"steps": [24, 72, 66]})


def test_each_value_on_the_way_is_paid_once() -> None:
    steps = [turn(("48/2", "24")), turn(("48/2", "24")), turn(("48+24", "72"), ("72-6", "66")), turn(("1+1", "2"))]
    assert paid(milestone, steps, WAY) == pytest.approx([1 / 3, 0, 2 / 3, 0])


@pytest.mark.parametrize(
    "pair",
    [("24", "24"), ("24*1", "24"), ("48/2", "!24"), ("48/2", "about 24"), ("48+1", "49")],
    ids=["said", "said and passed through", "failed", "not the value alone", "off the way"],
)
def test_what_was_not_computed_is_no_milestone(pair: tuple[str, str]) -> None:
    assert paid(milestone, [turn(pair)], WAY) == [0]


def test_trying_everything_finds_nothing_more() -> None:
    noise = [(f"{i}+100", str(i + 100)) for i in range(6)]
    assert paid(milestone, [turn(*noise), turn(("48/2", "24"))], WAY) == [0, 0]
    assert paid(milestone, [turn(*noise[:5], ("48/2", "24"), ("48+24", "72"))], WAY) == pytest.approx([1 / 3])
    assert paid(milestone, [turn(*noise[:5]), turn(("48/2", "24"), ("48+24", "72"))], WAY) == pytest.approx([0, 1 / 3])


def test_a_task_without_known_values_pays_no_milestone() -> None:
    assert paid(milestone, [turn(("48/2", "24"))], ANY) == [0]


# New successes.


def test_each_step_with_a_new_success_is_paid_once() -> None:
    steps = [called("1+1"), called("1+1"), called("2+2", "1+1"), called("3+3", "4+4")]
    assert paid(tool_success, steps) == [1.0, 0.0, 1.0, 1.0]


def test_a_step_counts_once_however_much_succeeded_in_it() -> None:
    steps = [called("1", "2"), called("3", "4"), called("5")]
    assert paid(tool_success, steps, of_difficulty(2)) == [1.0, 1.0, 0.0]


def test_errors_pay_nothing_and_use_nothing_up() -> None:
    steps = [called("1/0", error="division_by_zero"), called(), answer("hm"), called("1/0")]
    assert paid(tool_success, steps) == [0.0, 0.0, 0.0, 1.0]


def test_the_same_arguments_of_another_tool_are_new_and_their_order_is_not() -> None:
    assert paid(tool_success, [called("1"), called("1", name="python"), called(1)]) == [1.0, 1.0, 1.0]

    def two(arguments: Mapping[str, Any]) -> Step:
        return Step(Action(""), Observation(), results=(ToolResult(ToolCall("f", arguments), "1"),))

    assert paid(tool_success, [two({"a": 1, "b": 2}), two({"b": 2, "a": 1})]) == [1.0, 0.0]


@pytest.mark.parametrize(("difficulty", "most"), [(0, 0), (1, 1), (2, 2), (None, DEFAULT_CAP)])
def test_no_more_steps_are_paid_than_the_task_needs(difficulty: int | None, most: int) -> None:
    values = paid(tool_success, [called(f"{i}+1") for i in range(9)], of_difficulty(difficulty))
    assert values == [1.0] * most + [0.0] * (9 - most)
    assert needed_steps(of_difficulty(difficulty)) == most


def test_a_demonstration_says_what_the_task_needs() -> None:
    call = ToolCall("calculator", {"expression": "1+1"})
    two = (ExpertTurn(calls=(call,)), ExpertTurn(calls=(call, call)), ExpertTurn("#### 72"))
    assert needed_steps(Task("t", "?", "72", solution=two, difficulty=1)) == 2
    assert needed_steps(Task("t", "?", "72", solution=two[-1:], difficulty=1)) == 0


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=3), max_size=8),
    st.none() | st.integers(0, 4),
)
def test_no_order_of_calls_earns_more_than_the_cap(plan: list[list[tuple[int, bool]]], difficulty: int | None) -> None:
    steps = []
    for turn_plan in plan:
        results = tuple(ToolResult(ToolCall("f", {"x": x}), "", None if good else "bad") for x, good in turn_plan)
        steps.append(Step(Action(""), Observation(), results=results))
    values = paid(tool_success, steps, of_difficulty(difficulty))
    successes = {x for turn_plan in plan for x, good in turn_plan if good}
    assert set(values) <= {0.0, 1.0}
    assert sum(values) <= min(DEFAULT_CAP if difficulty is None else difficulty, len(successes))
    if successes and difficulty != 0:
        assert sum(values) >= 1


# Valid, run.


@pytest.mark.parametrize(
    ("step", "valid", "ran"),
    [
        (turn(("1+1", "2")), 1.0, 1.0),
        (turn(("1+1", "2"), ("2+2", "4")), 1.0, 1.0),
        (turn(("1+1", "2"), ("1/0", "!no")), 1.0, 0.0),
        (turn(("1/0", "!no")), 1.0, 0.0),
        (turn(("1+1", "2"), error=BAD), 0.0, 0.0),
        (turn(error=BAD), 0.0, 0.0),
        (answer("#### 72"), 0.0, 0.0),
    ],
)
def test_valid_and_run(step: Step, valid: float, ran: float) -> None:
    assert (call_valid(step, TASK, []), call_ran(step, TASK, [])) == (valid, ran)


# Used.

HALF = turn(("48/2", "24"))


@pytest.mark.parametrize(
    ("last", "used"),
    [
        (turn(("48+24", "72")), 1.0),  # a later call works with it
        (turn(("x = 24.0; x + 48", "72")), 1.0),  # by value, in a program
        (turn((["48", 24], "72")), 1.0),  # in arguments of any shape
        (turn(("48-24", "24")), 1.0),
        (turn(("24", "24")), 0.0),  # passed on
        (turn(("48+25", "73")), 0.0),
        (turn(say="I got 24."), 0.0),  # repeated
        (turn(say="I got 24.", error=BAD), 0.0),
        (answer("#### 24"), 0.0),  # copied: the answer is wrong
        (answer("24"), 0.0),
    ],
)
def test_a_result_is_used_where_something_is_made_of_it(last: Step, used: float) -> None:
    assert paid(result_used, [HALF, last], TASK) == [0.0, used]


def test_the_answer_uses_the_result_it_is() -> None:
    steps = [HALF, turn(("48+24", "72")), answer("So 24 later, 72 in all.\n#### 72")]
    assert paid(result_used, steps, TASK) == [0.0, 1.0, 1.0]
    assert paid(result_used, [turn(("24+48", "72")), answer("#### 72")], TASK) == [0.0, 1.0]


@pytest.mark.parametrize(
    "first",
    [
        turn(("48", "48")),  # stands in the question
        turn(("24", "24")),  # said in the call
        turn(("48/2", "24"), say="That must be 24."),  # said before it was known
        turn(("48/2", "!24")),  # an error
        turn(("1/0", "24 or so")),  # not a number
        turn(("range(99)", "\n".join(map(str, range(99))))),
        turn(("48/2", "2" * 50)),
        turn(error=BAD),
    ],
)
def test_only_news_can_be_used(first: Step) -> None:
    assert paid(result_used, [first, turn(("48+24", "72"))], TASK) == [0.0, 0.0]


def test_a_result_is_used_once() -> None:
    steps = [HALF, turn(("48+24", "72")), turn(("24+1", "25")), turn(("25+72", "97")), turn(("97+24", "121"))]
    assert paid(result_used, steps, TASK) == [0.0, 1.0, 0.0, 1.0, 1.0]


def test_repeating_a_result_does_not_use_it_up() -> None:
    assert paid(result_used, [HALF, turn(say="24", error=BAD), turn(("48+24", "72"))], TASK) == [0.0, 0.0, 1.0]


def test_a_task_without_a_number_as_its_answer_has_no_answer_to_use() -> None:
    assert paid(result_used, [HALF, answer("red")], Task("t", "?", "red")) == [0.0, 0.0]


def test_huge_arguments_and_results_are_no_trouble() -> None:
    big = turn(("9" * 200_000, "9" * 200_000), ("1e999999999", "1e999999999"), ({"a": [None, True, {"b": 1.5}]}, "1"))
    assert paid(result_used, [big, big, answer("9" * 200_000)], TASK) == [0.0, 0.0, 0.0]


# Costs.


def test_needless_repeats() -> None:
    same, other = ("1+1", "2"), ("2+2", "4")
    steps = [turn(same, other), turn(same), turn(other, same, other), turn(("1+1", "3")), turn(("1/0", "!no"))]
    assert paid(needless_repeat, steps) == [0.0, -1.0, -3.0, 0.0, 0.0]
    assert paid(needless_repeat, [turn(same, same), turn(("1/0", "!no"), ("1/0", "!no"))]) == [-1.0, -1.0]
    assert paid(needless_repeat, [answer("#### 72")]) == [0.0]


def test_calls_and_length_cost() -> None:
    assert paid(call_cost, [turn(("1", "1"), ("2", "2")), answer("x"), turn(error=BAD)]) == [-2.0, 0.0, 0.0]
    step = Step(Action("one two", token_ids=(1, 2, 3)), Observation())
    assert LengthCost()(step, TASK, [step]) == -3.0
    assert LengthCost("characters")(step, TASK, [step]) == -7.0
    assert LengthCost(count=lambda text: len(text.split()))(step, TASK, []) == -2.0
    with pytest.raises(RewardError, match="count="):
        LengthCost()(answer("x"), TASK, [])
    with pytest.raises(ConfigError, match="unit"):
        LengthCost("words")


numbers = st.sampled_from(["1", "24", "48", "72", "1+1", "48/2", "24+48"])
turns: st.SearchStrategy[Callable[..., Step]] = st.lists(st.tuples(numbers, numbers), max_size=3).map(
    lambda p: turn(*p)
)


@given(st.lists(turns | numbers.map(answer), max_size=6))
def test_terms_are_bounded_whatever_happens(steps: list[Any]) -> None:
    for term in (call_valid, call_ran, result_used):
        assert set(paid(term, steps, TASK)) <= {0.0, 1.0}
    for cost in (needless_repeat, call_cost):
        assert all(-3.0 <= value <= 0.0 for value in paid(cost, steps, TASK))
