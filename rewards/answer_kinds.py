r"""Grading by the kind of answer a task has: one number, or a mathematical expression.

A task says so in ``metadata["answer_kind"]``; without it the answer is a number.

>>> grade("#### 1,250", "1250").correct, grade(r"\boxed{\frac{x}{2}}", "0.5x", "expression").correct
(True, True)
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple, TypeAlias

from trajgym.errors import DataError
from trajgym.rewards.answer import Reading, equal, read, truth
from trajgym.rewards.answer_formula import read_formula, truth_formula
from trajgym.rewards.expression_tree import Node
from trajgym.rewards.symbolic import equal_trees
from trajgym.types import Task

__all__ = ["ANSWER_KINDS", "AnyReading", "Grade", "answer_kind", "grade"]

ANSWER_KINDS = ("number", "expression")

AnyReading: TypeAlias = Reading[Fraction] | Reading[Node]


class Grade(NamedTuple):
    """Whether a completion is right, and why.

    Args:
        correct: Whether the value that was read equals the ground truth.
        reading: What was read.
    """

    correct: bool
    reading: AnyReading


def answer_kind(task: Task) -> str:
    """Return the kind of a task's answer.

    Raises:
        DataError: When its metadata name a kind that does not exist.
    """
    kind = task.metadata.get("answer_kind", "number")
    if kind not in ANSWER_KINDS:
        raise DataError(
            f"Task {task.id!r} has metadata['answer_kind'] = {kind!r}. Allowed are {' and '.join(ANSWER_KINDS)}."
        )
    return str(kind)


def grade(completion: str, ground_truth: str, kind: str = "number") -> Grade:
    """Read the answer of a completion and compare it with the ground truth.

    Args:
        completion: Everything the policy wrote.
        ground_truth: See :func:`trajgym.rewards.answer.truth` and :func:`trajgym.rewards.answer_formula.truth_formula`.
        kind: One of :data:`ANSWER_KINDS`.

    Raises:
        DataError: When the ground truth cannot be read.
        ConfigError: When a formula is to be compared and sympy is not installed.
    """
    if kind == "number":
        expected = truth(ground_truth)
        number = read(completion)
        return Grade(equal(number.value, expected), number)
    tree = truth_formula(ground_truth)
    formula = read_formula(completion)
    return Grade(formula.value is not None and equal_trees(formula.value, tree), formula)
