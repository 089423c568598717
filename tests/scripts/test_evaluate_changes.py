"""Renumbered problems as changed tasks."""

from __future__ import annotations

import dataclasses

from trajgym.envs.gsm8k_solution import demonstration
from trajgym.evaluation.working import demonstrated
from trajgym.scripts.evaluate_changes import CHANGES, find_change, renumbered_task
from trajgym.types import Task

FULL = "She buys 40*9=<<40*9=360>>360 pens.\nThere are 360-70=<<360-70=290>>290 left.\n#### 290"
QUESTION = "A crate holds 40 pens. Ann buys 9 crates and gives away 70 pens. How many pens are left?"
TASK = Task("t-0", QUESTION, "290", demonstration(FULL, "290"), difficulty=2, metadata={"full_answer": FULL})


def test_the_demonstration_of_a_renumbered_task_reaches_its_answer() -> None:
    new = renumbered_task(TASK)
    assert new is not None
    assert new.question != TASK.question
    assert new.answer != TASK.answer
    assert demonstrated(new).values[-1] == int(new.answer)
    assert (new.id, new.difficulty) == ("t-0", 2)
    assert renumbered_task(TASK) == new


def test_what_cannot_be_renumbered_safely_is_left_out() -> None:
    assert renumbered_task(Task("t-1", QUESTION, "290")) is None
    assert renumbered_task(dataclasses.replace(TASK, metadata={"full_answer": "It is 290.\n#### 290"})) is None
    assert renumbered_task(dataclasses.replace(TASK, metadata={"full_answer": "nothing"})) is None


def test_changes_are_found_by_name_and_by_place() -> None:
    assert find_change("renumbered") is CHANGES["renumbered"]
    assert find_change("trajgym.scripts.evaluate_changes:renumbered_task") is renumbered_task
