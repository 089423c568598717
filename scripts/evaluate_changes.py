"""The changes that `trajgym evaluate --change` knows, and how others are found."""

from __future__ import annotations

import dataclasses
import importlib

from trajgym.envs.gsm8k_solution import annotated, demonstration
from trajgym.errors import ConfigError, DataError, UnknownNameError
from trajgym.evaluation.robustness import Change, add_distractor
from trajgym.rewards.answer import truth
from trajgym.types import Task

__all__ = ["CHANGES", "find_change", "renumbered_task"]


def renumbered_task(task: Task) -> Task | None:
    """Return the task with other numbers and a recomputed answer, ``None`` where that leaves any doubt.

    It needs the annotated solution that GSM8K's tasks carry in ``metadata["full_answer"]``.
    """
    from trajgym.trainers.data_renumber import renumber

    full = task.metadata.get("full_answer")
    if not isinstance(full, str):
        return None
    try:
        new = renumber(task.question, full)
        answer = str(truth(new.answer))
    except (ConfigError, DataError):
        return None
    return dataclasses.replace(
        task,
        question=new.question,
        answer=answer,
        solution=demonstration(new.answer, answer),
        difficulty=len(annotated(new.answer)),
        metadata={**task.metadata, "full_answer": new.answer},
    )


CHANGES: dict[str, Change] = {"distractor": add_distractor, "renumbered": renumbered_task}


def find_change(name: str) -> Change:
    """Return a change by its name, or the callable that ``package.module:function`` leads to.

    Raises:
        UnknownNameError: For a name that is neither.
        ConfigError: When there is no such function.
    """
    if name in CHANGES:
        return CHANGES[name]
    module, colon, function = name.partition(":")
    if not colon:
        raise UnknownNameError("change", name, CHANGES, "Others are given as package.module:function.")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--change {name!r} leads nowhere: {error}.") from error
    if not callable(found):
        raise ConfigError(f"--change {name!r} must lead to a function of a task, got {type(found).__name__}.")
    change: Change = found
    return change
