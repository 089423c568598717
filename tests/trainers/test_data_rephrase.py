"""Problems in other words: only those are kept that say the same numbers and have the same answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from trajgym.errors import ConfigError, DataError
from trajgym.policies.base import TextPolicy
from trajgym.trainers.data_augmented import gathered
from trajgym.trainers.data_rephrase import back_translated, objection, rephrased
from trajgym.types import Message, Task

QUESTION = "Ann has 3 boxes of twelve pens and gives half of them to Bob. How many pens has she left?"
ANSWER = "3*12=<<3*12=36>>36\n36/2=<<36/2=18>>18\n#### 18"
NEW = "There are 12 pens in each of Ann's three boxes, and Bob gets half of all pens. How many are hers now?"
ROWS = [{"question": QUESTION, "answer": ANSWER}]


def knows(question: str) -> str:
    """Solve the one problem."""
    return "#### 18"


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (NEW, ""),
        (NEW.replace("12", "a dozen"), ""),
        ("", "nothing was written"),
        (QUESTION.upper(), "the words are the same"),
        (NEW.replace("?", "."), "it asks nothing"),
        (NEW.replace("12", "13"), "its numbers are others"),
        (NEW.replace("half", "some"), "its numbers are others"),
        (NEW.replace("How", "It is 18. How"), "its numbers are others"),
        ("Three times 12 over half?", "it is much shorter or longer"),
        (NEW + " and so on" * 20, "it is much shorter or longer"),
        (NEW + " #### 18", "it holds more than a question"),
        (NEW + " <|im_end|>", "it holds more than a question"),
    ],
)
def test_objections(new: str, why: str) -> None:
    assert objection(QUESTION, new) == why


def test_numbers_in_words_are_numbers() -> None:
    assert objection("She has twenty-five of 1,000 pens?", "Of 1000 pens she has 25, has she?") == ""
    assert objection("Two thirds of 9 are left over?", "Of nine, two thirds are left over?") == ""
    assert objection("Two thirds of 9 are left over?", "Of nine, two quarters are left over?") != ""


@pytest.mark.parametrize(
    "reply", [NEW, f"Here is the new problem:\n{NEW}", f'"{NEW}"', f"<think>3 or 4?</think>\n{NEW}"]
)
def test_what_is_around_a_question_is_taken_off(reply: str) -> None:
    made = rephrased(ROWS, lambda prompt: reply, solver=knows)
    assert made.rows == ({"question": NEW, "answer": ANSWER, "verified": "answer"},)
    assert made.sources == (0,)
    assert made.summary == "1 of 1 problems rephrased (100.0%), 1 new rows"


def test_what_does_not_hold_is_refused() -> None:
    rows = [*ROWS, {"question": "2 + 2 is?", "answer": "4"}]
    made = rephrased(rows, lambda prompt: NEW.replace("12", "13"), solver=knows)
    assert made.rows == ()
    assert made.refused == {"its numbers are others": (0,), "it is much shorter or longer": (1,)}
    assert made.share == 0.0


def test_a_solver_has_the_last_word() -> None:
    asked: list[str] = []

    def solver(question: str) -> str:
        asked.append(question)
        return "#### 18"

    assert rephrased(ROWS, lambda prompt: NEW, solver=solver).rows
    assert asked == [NEW]
    wrong = rephrased(ROWS, lambda prompt: NEW, solver=lambda question: "#### 36")
    assert wrong.refused == {"the solver does not find the same answer": (0,)}


def test_another_problem_with_the_same_numbers_is_refused() -> None:
    rows = [{"question": "Ann has 360 pens and gives away 70 pens. How many are left?", "answer": "#### 290"}]
    other = "Ann has 360 pens and then she is given 70 more. How many pens has she now?"
    for make in (rephrased, back_translated):
        made = make(rows, lambda prompt: other, solver=lambda question: "#### 430")
        assert made.refused == {"the solver does not find the same answer": (0,)}
        unsolved = make(rows, lambda prompt: other, solver="numbers")
        assert [row["verified"] for row in unsolved.rows] == ["numbers"]  # whoever asked for no more can see it
        assert ", by their numbers alone (100.0%)" in unsolved.summary


@pytest.mark.parametrize("solver", [None, "nobody"])
def test_nothing_is_written_before_it_is_known_who_solves(solver: Any) -> None:
    def writer(prompt: str) -> str:
        raise AssertionError(prompt)

    for make in (rephrased, back_translated):
        with pytest.raises(ConfigError, match="or 'numbers' to compare their numbers alone"):
            make(ROWS, writer, solver=solver)
        with pytest.raises(TypeError, match="solver"):
            make(ROWS, writer)  # type: ignore[call-arg]


class Translator(TextPolicy):
    """Knows one problem in two languages."""

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        """Write the problem in the language that is asked for, or solve it."""
        asked = messages[-1].content
        if asked == NEW:
            return "#### 18"
        if "into German" in asked:
            return "Ann hat 3 Schachteln mit je 12 Stiften." if QUESTION in asked else "?"
        return NEW if "into English" in asked and "3 Schachteln" in asked else "?"


def test_there_and_back_with_a_policy() -> None:
    policy = Translator(capacity=1)
    made = back_translated([*ROWS, {"question": "Who?", "answer": "1"}], policy, solver=policy)
    assert made.rows == ({"question": NEW, "answer": ANSWER, "verified": "answer"},)
    assert made.refused == {"nothing was written": (1,)}
    assert made.summary.startswith("1 of 2 problems translated back (50.0%)")


def test_writers_and_rows_that_are_none() -> None:
    no_writer: Any = "a model"
    with pytest.raises(ConfigError, match="must be a Policy or a function"):
        rephrased(ROWS, no_writer, solver=knows)
    with pytest.raises(DataError, match="Row 1: needs a 'question'"):
        gathered("made", [{"answer": "1"}], range(1), lambda i, n: {"question": "x", "answer": "1"})


def test_no_problem_is_made_twice() -> None:
    made = gathered("made", [{"question": q} for q in "ab"], range(2), lambda i, n: {"question": "bc"[n], "answer": ""})
    assert [r["question"] for r in made.rows] == ["c"]
    assert made.refused == {"it comes out as a problem that exists": (1,)}
