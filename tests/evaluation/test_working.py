"""The numbers of a problem, and the working of a reply and of a demonstration."""

from __future__ import annotations

from fractions import Fraction

import pytest

from trajgym.evaluation.working import demonstrated, numbers_given, rounds, shown, stands_for
from trajgym.types import Action, ExpertTurn, Observation, Step, Task, ToolCall, ToolResult


def step(text: str, *results: ToolResult) -> Step:
    return Step(Action(text), Observation(), results=results)


def test_numbers_of_a_question() -> None:
    given = numbers_given(
        "Twenty-five of 1,250 students, three fourths of them girls, ate 2/5 of a dozen pies. One left."
    )
    assert {Fraction(25), Fraction(1250)} <= given.numerals
    assert {Fraction(3), Fraction(1, 4), Fraction(2, 5), Fraction(12), Fraction(1)} <= given.words
    assert given.all == given.numerals | given.words
    assert numbers_given("How many?").all == frozenset()


@pytest.mark.parametrize(
    ("number", "given", "meant"),
    [
        ("15", [15, 40], {15}),
        ("0.15", [15, 40], {15}),
        ("0.85", [15, 40], {15}),
        ("1.4", [15, 40], {40}),
        ("85", [15], {15}),
        ("1/4", [4], {4}),
        ("2", [50], {50}),
        ("3", [15], set()),
    ],
)
def test_what_a_number_may_stand_for(number: str, given: list[int], meant: set[int]) -> None:
    assert stands_for(Fraction(number), map(Fraction, given)) == set(map(Fraction, meant))


def test_rounded_results_are_no_new_numbers() -> None:
    assert rounds(Fraction("25.7"), [Fraction(180, 7)])
    assert rounds(Fraction(25), [Fraction(180, 7)])
    assert not rounds(Fraction("25.5"), [Fraction(180, 7)])
    assert not rounds(Fraction(26), [Fraction(27)])


def test_words_and_calls_are_put_together_in_order() -> None:
    ran = ToolResult(ToolCall("calculator", {"expression": "48/2"}), "24")
    working = shown([step("First 40 + 8 = 48.", ran), step("#### 24")])
    assert working.values == (48, 24)
    assert working.brought == {40, 8, 2}
    assert working.operands == {40, 8, 48, 2}


def test_reasoning_counts_only_where_nothing_else_does() -> None:
    assert shown([step("<think>48 * 2 = 96</think>48 / 2 = 24")]).values == (24,)
    assert shown([step("<think>48 * 2 = 96</think>It is 96.")]).values == (96,)
    assert shown([step("no arithmetic")]).values == ()


def test_demonstrations_are_calls_or_annotations_and_never_prose() -> None:
    calls = (ExpertTurn("", (ToolCall("calculator", {"expression": "48/2"}),)), ExpertTurn("#### 24"))
    assert demonstrated(Task("t", "?", "24", calls)).values == (24,)
    full = "He has 2 + 2 = 5 and 48/2 = <<48/2=24>>24."
    assert demonstrated(Task("t", "?", "24", metadata={"full_answer": full})).values == (24,)
    assert demonstrated(Task("t", "?", "24")).values == ()
