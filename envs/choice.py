"""Few tools or many, each of its own use, some of which need others first: an environment in which choosing is all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from trajgym.envs.base import ToolEnv
from trajgym.envs.choice_office import Office, OfficeTools, office_tools
from trajgym.envs.choice_tasks import ChoiceTasks
from trajgym.envs.tasks import TaskSource
from trajgym.envs.tools import ToolSessions
from trajgym.envs.vector import vector_of
from trajgym.rewards import Capped, RewardLike, Rubric, Settled, accuracy, call_cost, term
from trajgym.types import Step, Task

__all__ = ["REWARDS", "ToolChoiceEnv", "right_choice", "vector_env"]


@term
def right_choice(step: Step, task: Task, history: Sequence[Step]) -> float:
    """The share of the calls on the task's way that this turn makes and none before it has made.

    Only a turn that calls nothing else is paid: who calls all tools at once has chosen none. All of an episode's sum to
    at most 1.
    """
    wanted = [(call.name, dict(call.arguments)) for turn in task.solution for call in turn.calls]
    made = [(r.call.name, dict(r.call.arguments)) for r in step.results if r.error is None]
    if not wanted or len(made) < len(step.action.calls) or not all(call in wanted for call in made):
        return 0.0
    before = [(r.call.name, dict(r.call.arguments)) for earlier in history for r in earlier.results if r.error is None]
    return sum(call in made and call not in before for call in wanted) / len(wanted)


_cost = Capped(call_cost, least=-10.0)

REWARDS = {
    "sparse": Rubric({"accuracy": (accuracy, 1.0)}),
    "dense": Rubric({"right_choice": (Settled(right_choice), 0.5), "accuracy": (accuracy, 0.5)}),
    "hybrid": Rubric({"accuracy": (accuracy, 1.0), "right_choice": (right_choice, 0.2), "call_cost": (_cost, 0.02)}),
}
"""What ``reward="sparse"``, ``"dense"`` and ``"hybrid"`` mean here."""


class ToolChoiceEnv(ToolEnv):
    """A question, up to sixty tools, and one way to ask them.

    ## Description
    Each tool returns one kind of number: a price, a code, what a box holds. The question names one of them. Some tools
    work in a place that another one must open first, and some want what another one answers. There are also questions
    that say the answer themselves, for which a call is a waste. So what is to be learned is which tool, when, in what
    order, and when none. With ``tools_count`` the same questions are asked among few tools or among many, which makes
    stages of a curriculum (:mod:`trajgym.trainers.curriculum`).

    ## Action Space
    ``Unicode()``: one assistant turn, as in :class:`trajgym.envs.base.ToolEnv`. The calls of one turn are carried out
    one after the other.

    ## Observation Space
    ``Unicode()``: the tools' answers, or what they need first.

    ## Rewards
    ``"sparse"``: at the end, 1 for the right answer. ``"dense"``: 0.5 for the right answer, and 0.5 times the share of
    the calls on the way that are made, each the first time and in a turn without other calls, taken back at the end
    unless the answer is right. ``"hybrid"``: ``"sparse"``, 0.2 times these shares, which are kept, and -0.02 for each
    call, down to -0.2. That is little: to learn when no tool is needed, weigh ``call_cost`` more, such as 0.3. Other
    rewards as in :class:`trajgym.envs.base.ToolEnv`.

    ## Episode End
    As in :class:`trajgym.envs.base.ToolEnv`; ``max_turns`` defaults to 8, where the longest way takes 4.

    ## Arguments
    ``ToolChoice-v0`` offers the first ``tools_count`` tools of
    :data:`trajgym.envs.choice_office.CATALOGUE`.

    ## Version History
    * v0: first version

    Args:
        split: ``"train"`` or ``"test"``.
        tools_count: How many tools there are, from 1 to 60.
        difficulty: Level from 0 (the question says the answer) to 3 (three calls, one after the other), or the lowest
            and the highest; from 1 as high as the tools allow when left out.
        tasks: Replaces the generated questions; each task needs an office, see
            :class:`trajgym.envs.choice_office.Office`.
        tools: Replaces the tools of the catalogue.
        reward: As above.
        max_turns: Most turns in an episode.
        instructions: Short by default.
        **kwargs: Passed to :class:`trajgym.envs.base.ToolEnv`.
    """

    answer_rule: ClassVar[str] = "Call the tools you need and no others. End with #### and the number."

    def __init__(
        self,
        *,
        split: str = "train",
        tools_count: int = 12,
        difficulty: int | tuple[int, int] | None = None,
        tasks: TaskSource | Iterable[Task] | None = None,
        tools: Iterable[Any] | None = None,
        reward: RewardLike = "hybrid",
        max_turns: int = 8,
        instructions: str = "signature",
        **kwargs: Any,
    ) -> None:
        source = tasks if tasks is not None else ChoiceTasks(split, tools_count, difficulty)
        rubric = REWARDS.get(reward, reward) if isinstance(reward, str) else reward
        offered = office_tools(tools_count) if tools is None else tools
        super().__init__(source, tools=offered, reward=rubric, max_turns=max_turns, instructions=instructions, **kwargs)

    def _open_tools(self, task: Task, seed: int) -> ToolSessions:
        return OfficeTools(tuple(self.tools.values()), Office.of(task), seed=seed)


vector_env = vector_of(ToolChoiceEnv)
