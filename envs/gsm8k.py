"""Grade-school mathematics: the GSM8K problems, with and without tools."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from trajgym.envs.base import ToolEnv
from trajgym.envs.gsm8k_tasks import GSM8KTasks
from trajgym.envs.tasks import TaskSource
from trajgym.envs.vector import vector_of
from trajgym.types import Task

__all__ = ["GSM8KEnv", "vector_env"]


class GSM8KEnv(ToolEnv):
    """GSM8K: 7,473 training and 1,319 test problems of two to eight steps.

    ## Description
    The policy reads a word problem, may call tools, and ends with ``#### `` and a number. The data come from
    ``path``, from ``$TRAJGYM_DATA/gsm8k``, or from the Hugging Face hub (``openai/gsm8k``).
    Source: Cobbe et al. 2021, arXiv 2110.14168.

    ## Action Space
    ``Unicode()``: one assistant turn, as in :class:`trajgym.envs.base.ToolEnv`.

    ## Observation Space
    ``Unicode()``: the tools' answers.

    ## Rewards
    As in :class:`trajgym.envs.base.ToolEnv`.

    ## Episode End
    As in :class:`trajgym.envs.base.ToolEnv`.

    ## Arguments
    ``GSM8KTool-v0`` offers the calculator in up to eight turns, ``GSM8K-v0`` is one turn without tools (``T = 1``).
    Every demonstration fits into eight turns: the 52 with more than seven calls make some of them in one turn.

    ## Version History
    * v0: first version

    Args:
        split: ``"train"`` or ``"test"``.
        path: A ``.jsonl`` file, or a folder that holds ``train.jsonl`` and ``test.jsonl``.
        limit: Only the first so many problems.
        tasks: Replaces the data set.
        tools: Tools by name or as objects.
        max_turns: Most turns in an episode.
        **kwargs: Passed to :class:`trajgym.envs.base.ToolEnv`.
    """

    answer_rule: ClassVar[str] = (
        "Solve the problem step by step. When you know the answer, end with a line: #### followed by the number."
    )

    def __init__(
        self,
        *,
        split: str = "train",
        path: str | Path | None = None,
        limit: int | None = None,
        tasks: TaskSource | Iterable[Task] | None = None,
        tools: Iterable[Any] = ("calculator",),
        max_turns: int = 8,
        **kwargs: Any,
    ) -> None:
        source = tasks if tasks is not None else GSM8KTasks(split, path=path, limit=limit)
        super().__init__(source, tools=tools, max_turns=max_turns, **kwargs)


vector_env = vector_of(GSM8KEnv)
