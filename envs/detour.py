"""A small prize at hand and a big one far off: an environment whose best policy begins with steps that pay nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from trajgym.envs.detour_house import VERBS, House, Plan
from trajgym.envs.detour_tasks import DetourTasks
from trajgym.envs.stage import StageEnv
from trajgym.envs.tasks import TaskSource
from trajgym.envs.vector import vector_of
from trajgym.rewards import RewardLike, Rubric, Settled, accuracy, term
from trajgym.rewards.answer import correct
from trajgym.types import Step, StopReason, Task

__all__ = ["REWARDS", "SMALL_PRIZE", "DetourEnv", "consolation", "prize_opened", "vector_env"]

SMALL_PRIZE = 0.3
"""What the box's number is worth, where the chest's is worth 1."""


@term
def consolation(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for a final answer that is the box's number, else 0."""
    if step.stop_reason is not StopReason.ANSWERED:
        return 0.0
    return float(correct(step.action.text, str(Plan.of(task).numbers[0])))


@term
def prize_opened(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for the step that opens the chest, 0.3 for the one that opens the box, else 0; one of them, once."""
    if _opened(step) is None or any(map(_opened, history)):
        return 0.0
    return 1.0 if _opened(step) == "chest" else SMALL_PRIZE


@term
def _any_opened(step: Step, task: Task, history: Sequence[Step]) -> float:
    return float(prize_opened(step, task, history) > 0)


@term
def _said(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for a final answer that is the number of what was opened."""
    opened = next((thing for thing in map(_opened, (*history, step)) if thing), None)
    right = {"chest": accuracy, "box": consolation}.get(opened or "")
    return right(step, task, history) if right else 0.0


def _opened(step: Step) -> str | None:
    """Return what was opened in a step."""
    for result in step.results:
        if result.call.name == "open" and result.error is None:
            return str(result.call.arguments["thing"])
    return None


REWARDS = {
    "sparse": Rubric({"accuracy": (accuracy, 1.0), "consolation": (consolation, SMALL_PRIZE)}),
    "dense": Rubric({"prize_opened": (Settled(prize_opened, right=_said), 1.0)}),
    "hybrid": Rubric(
        {"accuracy": (accuracy, 1.0), "consolation": (consolation, SMALL_PRIZE), "opened": (_any_opened, 0.1)}
    ),
}
"""What ``reward="sparse"``, ``"dense"`` and ``"hybrid"`` mean here."""


class DetourEnv(StageEnv):
    """A house with two prizes, of which one can be had: the small one at once, the big one after a detour.

    ## Description
    The player stands beside a box. Some doors away lies the key of a chest. There is a number in each, and whoever
    opens one seals the other. The question gives the whole plan of the house, so nothing has to be found out: the
    policy must walk to the key, take it, walk back to the chest, open it and say its number. All of these steps but
    the last two pay nothing under every reward, while opening the box is a matter of one step. A policy that looks
    for the next reward takes the box; the best one never does, for every discount from 0.9 to 1.

    ## Action Space
    ``Unicode()``: one assistant turn, as in :class:`trajgym.envs.base.ToolEnv`. The calls of one turn are carried out
    one after the other.

    ## Observation Space
    ``Unicode()``: what is in the room, or what was done.

    ## Rewards
    ``"sparse"``: at the end, 1 for the chest's number and 0.3 for the box's. ``"dense"``: the same for the step that
    opens the chest or the box, taken back at the end unless its number is said. ``"hybrid"``: ``"sparse"``, and 0.1
    for the step that opens either. Other rewards as in :class:`trajgym.envs.base.ToolEnv`; those that pay for every
    new call also pay for the detour.

    ## Episode End
    As in :class:`trajgym.envs.base.ToolEnv`; ``max_turns`` defaults to 14, where the longest way takes 10.

    ## Arguments
    ``Detour-v0`` offers the tools ``go``, ``take`` and ``open``.

    ## Version History
    * v0: first version

    Args:
        split: ``"train"`` or ``"test"``.
        difficulty: Doors from the player to the key, or the lowest and the highest number, from 1 to 3.
        tasks: Replaces the generated houses; each task needs a plan, see :class:`trajgym.envs.detour_house.Plan`.
        reward: As above.
        max_turns: Most turns in an episode.
        instructions: Short by default.
        **kwargs: Passed to :class:`trajgym.envs.base.ToolEnv`.
    """

    answer_rule: ClassVar[str] = (
        "The box and the chest hold numbers; opening one seals the other. The chest needs the key. End with #### and "
        "the number you found: that of the chest is worth 1, that of the box 0.3."
    )

    def __init__(
        self,
        *,
        split: str = "train",
        difficulty: int | tuple[int, int] = (1, 3),
        tasks: TaskSource | Iterable[Task] | None = None,
        reward: RewardLike = "hybrid",
        max_turns: int = 14,
        instructions: str = "signature",
        **kwargs: Any,
    ) -> None:
        source = tasks if tasks is not None else DetourTasks(split, difficulty)
        rubric = REWARDS.get(reward, reward) if isinstance(reward, str) else reward
        super().__init__(
            source, reward=rubric, max_turns=max_turns, instructions=instructions, **{"tools": VERBS, **kwargs}
        )

    def world(self, task: Task) -> House:
        """Return the task's house, as nobody has walked in it yet."""
        return House(Plan.of(task))


vector_env = vector_of(DetourEnv)
