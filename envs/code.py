"""Programming problems: an environment whose tool is a Python interpreter that remembers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from trajgym.envs.base import ToolEnv
from trajgym.envs.code_tasks import CodeTasks
from trajgym.envs.tasks import TaskSource
from trajgym.envs.vector import vector_of
from trajgym.types import Task

__all__ = ["CodeEnv", "vector_env"]


class CodeEnv(ToolEnv):
    """Problems with one number as the answer that takes a program to find, made up as they are asked for.

    ## Description
    Number theory, sequences, counting, simulations, texts, dates, small tables, numpy and sympy. The policy writes
    short programs for an interpreter that keeps its names from call to call, reads what they print, and says the
    number.

    Without the tool there is little to gain. The answers come from hundreds of loop passes, from enumerations, or from
    tables and algebra too long to work through by hand; where a closed form exists, it is seldom known and takes many
    steps itself. No answer stands in its question, and no kind has one that comes up often. The training and the test
    split share no problem.

    ## Action Space
    ``Unicode()``: one assistant turn, as in :class:`trajgym.envs.base.ToolEnv`.

    ## Observation Space
    ``Unicode()``: what the programs printed, or the error they ended in.

    ## Rewards
    As in :class:`trajgym.envs.base.ToolEnv`: as many successful calls are paid as the task's demonstration makes.

    ## Episode End
    As in :class:`trajgym.envs.base.ToolEnv`; ``max_turns`` defaults to 8. Demonstrations have at most four turns,
    which leaves room for mistakes.

    ## Arguments
    ``CodeTool-v0`` offers the tool ``python``, whose one argument is ``code``. Programs need numpy and sympy, no other
    packages, and far less than a second.

    ## Version History
    * v0: first version

    Args:
        split: ``"train"`` or ``"test"``.
        difficulty: Level from 1 to 3, or the lowest and the highest level: 1 takes one short loop, 2 nested loops or
            several steps, 3 numpy, sympy or several programs that build on one another.
        kinds: Names from :data:`trajgym.envs.code_tasks.KINDS`; every kind of these levels when left out.
        tasks: Replaces the generated problems.
        tools: Tools by name or as objects.
        max_turns: Most turns in an episode.
        **kwargs: Passed to :class:`trajgym.envs.base.ToolEnv`.
    """

    answer_rule: ClassVar[str] = "When you know the answer, end with a line: #### followed by the number."

    def __init__(
        self,
        *,
        split: str = "train",
        difficulty: int | tuple[int, int] = (1, 3),
        kinds: Iterable[str] | None = None,
        tasks: TaskSource | Iterable[Task] | None = None,
        tools: Iterable[Any] = ("python",),
        max_turns: int = 8,
        **kwargs: Any,
    ) -> None:
        source = tasks if tasks is not None else CodeTasks(split, difficulty, kinds)
        super().__init__(source, tools=tools, max_turns=max_turns, **kwargs)


vector_env = vector_of(CodeEnv)
