"""Grading by the kind of answer that a task has."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trajgym.errors import DataError
from trajgym.rewards.answer_kinds import answer_kind, grade
from trajgym.types import Task


def test_the_task_says_what_its_answer_is() -> None:
    assert answer_kind(Task("sum", "48 + 24?", "72")) == "number"
    assert answer_kind(Task("half", "Half of x?", "x/2", metadata={"answer_kind": "expression"})) == "expression"
    with pytest.raises(DataError, match=r"'half' has .*'formula'.*number and expression"):
        answer_kind(Task("half", "?", "x/2", metadata={"answer_kind": "formula"}))


@pytest.mark.parametrize(
    ("completion", "answer", "kind", "correct"),
    [
        ("#### 72", "72", "number", True),
        ("#### 73", "72", "number", False),
        ("Who knows", "72", "number", False),
        (r"\boxed{x/2}", r"\frac{1}{2}x", "expression", True),
        (r"\boxed{x/3}", r"\frac{1}{2}x", "expression", False),
        ("#### 70 or 72", "72", "expression", False),
        ("Who knows", "72", "expression", False),
    ],
)
def test_grade(completion: str, answer: str, kind: str, correct: bool) -> None:
    pytest.importorskip("sympy")
    graded = grade(completion, answer, kind)
    assert graded.correct is correct
    assert graded.reading.value is not None or not correct


def test_numbers_need_no_sympy() -> None:
    code = (
        "import sys; from trajgym.rewards.answer_kinds import grade; assert grade('#### 72', '72').correct; "
        "assert not {'sympy', 'mpmath'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("kind", ["number", "expression"])
def test_a_truth_that_cannot_be_read_raises(kind: str) -> None:
    with pytest.raises(DataError):
        grade("#### 72", "????", kind)
