"""Procedural word problems: an environment that needs no data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from trajgym.envs.arithmetic_tasks import ArithmeticTasks
from trajgym.envs.base import ToolEnv
from trajgym.envs.tasks import TaskSource
from trajgym.envs.vector import vector_of
from trajgym.types import Task

__all__ = ["ArithmeticEnv", "vector_env"]


class ArithmeticEnv(ToolEnv):
    """Word problems of one to eight steps, made up as they are asked for.

    ## Description
    A short story changes one quantity step by step; the policy says what it comes to. Names, objects, wording and
    distracting numbers vary; the training and the test split share no problem.

    ## Action Space
    ``Unicode()``: one assistant turn, as in :class:`trajgym.envs.base.ToolEnv`.

    ## Observation Space
    ``Unicode()``: the tools' answers.

    ## Rewards
    As in :class:`trajgym.envs.base.ToolEnv`.

    ## Episode End
    As in :class:`trajgym.envs.base.ToolEnv`; ``max_turns`` defaults to 12, enough for eight steps and an answer.

    ## Arguments
    ``ArithmeticTool-v0`` offers the calculator, ``Arithmetic-v0`` is the same with one turn and no tools.

    ## Version History
    * v0: first version

    Args:
        split: ``"train"`` or ``"test"``.
        difficulty: Number of steps, or the lowest and the highest number.
        distractors: Share of problems with a number that does not matter.
        tasks: Replaces the generated problems.
        tools: Tools by name or as objects.
        max_turns: Most turns in an episode.
        instructions: Short by default, so that a small model's context is spent on the problem.
        **kwargs: Passed to :class:`trajgym.envs.base.ToolEnv`.
    """

    answer_rule: ClassVar[str] = "End with #### and the number."

    def __init__(
        self,
        *,
        split: str = "train",
        difficulty: int | tuple[int, int] = (1, 4),
        distractors: float = 0.3,
        tasks: TaskSource | Iterable[Task] | None = None,
        tools: Iterable[Any] = ("calculator",),
        max_turns: int = 12,
        instructions: str = "signature",
        **kwargs: Any,
    ) -> None:
        source = tasks if tasks is not None else ArithmeticTasks(split, difficulty=difficulty, distractors=distractors)
        super().__init__(source, tools=tools, max_turns=max_turns, instructions=instructions, **kwargs)


vector_env = vector_of(ArithmeticEnv)
