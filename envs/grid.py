"""A picture to find one's way in: an environment whose observations are no text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trajgym.envs.grid_map import VERBS, Plan, Walker, markdown
from trajgym.envs.grid_tasks import GridTasks
from trajgym.envs.stage import Stage, StageEnv
from trajgym.envs.tasks import TaskSource
from trajgym.envs.vector import vector_of
from trajgym.errors import UnknownNameError
from trajgym.rewards import RewardLike, Rubric, Settled, Shaped, accuracy, term
from trajgym.types import Message, Observation, Step, Task

__all__ = ["REWARDS", "VIEWS", "GridEnv", "arrived", "nearness", "vector_env"]

VIEWS = ("image", "text", "both")


def nearness(task: Task, steps: Sequence[Step]) -> float:
    """Return how near the walker is to the square asked for, from 0 to 1: a potential."""
    walker = Walker.replay(task, steps)
    away = walker.plan.distances(walker.plan.squares[walker.plan.asked])
    return 1.0 - away[walker.place] / max(1, *away.values())


@term
def arrived(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for the step that first comes to the square asked for, else 0."""
    return float(_stood(step, task) and not any(_stood(earlier, task) for earlier in history))


def _stood(step: Step, task: Task) -> bool:
    asked = f"You are on the {Plan.of(task).asked} square."
    return any(result.error is None and result.content.startswith(asked) for result in step.results)


REWARDS = {
    "sparse": Rubric({"accuracy": (accuracy, 1.0)}),
    "dense": Rubric(
        {
            "accuracy": (accuracy, 0.5),
            "arrived": (Settled(arrived), 0.5),
            "nearness": (Shaped(nearness, zero_when_truncated=True), 0.2),
        }
    ),
    "hybrid": Rubric({"accuracy": (accuracy, 1.0), "arrived": (arrived, 0.1)}),
}
"""What ``reward="sparse"``, ``"dense"`` and ``"hybrid"`` mean here."""


class GridEnv(StageEnv):
    """A grid of coloured squares, seen as a picture, on which the policy walks to one of them.

    ## Description
    The question names a colour; the square of that colour has a number, which one reads on it. Where the squares, the
    walls and the walker are, only the picture says. The largest level is a maze in fog, where nothing is seen but what
    is beside visited places: there one has to try ways, and to go back where they end.

    ## Action Space
    ``Unicode()``: one assistant turn, as in :class:`trajgym.envs.base.ToolEnv`. The calls of one turn are carried out
    one after the other.

    ## Observation Space
    ``Unicode()``: what became of the moves, and the grid. With ``view="image"`` that is a PNG picture, written into the
    message as ``![grid](data:image/png;base64,…)``, so that dialogues stay text that can be stored and played again;
    the policy for chat endpoints sends it as a picture (:mod:`trajgym.policies.images`). With ``view="text"`` it is a
    grid of letters, for policies that see no pictures. ``info["image"]`` is the picture as an array of RGB values in
    every case, and so is ``render()`` with ``render_mode="rgb_array"``.

    ## Rewards
    ``"sparse"``: at the end, 1 for the right number. ``"dense"``: 0.5 for it, 0.5 for the step that comes to the square
    first, taken back at the end unless the number is right, and potential-based pay for coming nearer, at most 0.2,
    of which nothing is left at the end. ``"hybrid"``: ``"sparse"``, and 0.1 for coming to the square. Other rewards as
    in :class:`trajgym.envs.base.ToolEnv`.

    ## Episode End
    As in :class:`trajgym.envs.base.ToolEnv`; ``max_turns`` defaults to 60, enough for one move in a turn.

    ## Arguments
    ``Grid-v0`` offers the tool ``move``, whose argument is ``direction``.

    ## Version History
    * v0: first version

    Args:
        split: ``"train"`` or ``"test"``.
        difficulty: Level from 1 to 3, or the lowest and the highest; see :class:`trajgym.envs.grid_tasks.GridTasks`.
        view: ``"image"``, ``"text"`` or ``"both"``.
        tasks: Replaces the generated grids; each task needs one, see :class:`trajgym.envs.grid_map.Plan`.
        reward: As above.
        max_turns: Most turns in an episode.
        instructions: Short by default.
        render_mode: ``"rgb_array"`` (``render()`` returns the picture), ``"ansi"``, ``"human"`` or ``None``.
        **kwargs: Passed to :class:`trajgym.envs.base.ToolEnv`.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "human", "rgb_array"], "render_fps": 4}  # noqa: RUF012

    answer_rule: ClassVar[str] = (
        "You are the black square on the grid; dark grey is wall. End with #### and the number."
    )

    def __init__(
        self,
        *,
        split: str = "train",
        difficulty: int | tuple[int, int] = (1, 3),
        view: str = "image",
        tasks: TaskSource | Iterable[Task] | None = None,
        reward: RewardLike = "hybrid",
        max_turns: int = 60,
        instructions: str = "signature",
        **kwargs: Any,
    ) -> None:
        if view not in VIEWS:
            raise UnknownNameError("view", view, VIEWS)
        self.view = view
        source = tasks if tasks is not None else GridTasks(split, difficulty)
        rubric = REWARDS.get(reward, reward) if isinstance(reward, str) else reward
        super().__init__(
            source, reward=rubric, max_turns=max_turns, instructions=instructions, **{"tools": VERBS, **kwargs}
        )

    def world(self, task: Task) -> Walker:
        """Return the task's grid with the walker at its start."""
        return Walker(Plan.of(task))

    def prompt(self, task: Task) -> tuple[Message, ...]:
        """Return the question with the grid behind it."""
        *before, question = super().prompt(task)
        shown = self._shown(Walker(Plan.of(task)))
        return (*before, dataclasses.replace(question, content=f"{question.content}\n{shown}"))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode; ``info["image"]`` is the picture. See :meth:`ToolEnv.reset`."""
        text, info = super().reset(seed=seed, options=options)
        return text, {**info, "image": self.image()}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one assistant turn; ``info["image"]`` is the picture. See :meth:`ToolEnv.step`."""
        text, reward, terminated, truncated, info = super().step(action)
        return text, reward, terminated, truncated, {**info, "image": self.image()}

    def image(self) -> NDArray[np.uint8]:
        """Return the grid as it stands. Shape: (height, width, 3), RGB."""
        assert self._task is not None
        return Walker.replay(self._task, self._steps).image()

    def render(self) -> Any:
        """Return the picture for ``"rgb_array"``, the dialogue as text for ``"ansi"``."""
        return self.image() if self.render_mode == "rgb_array" else super().render()

    def _shown(self, walker: Walker) -> str:
        return "\n".join(
            ([walker.text()] if self.view != "image" else [])
            + ([markdown(walker.image())] if self.view != "text" else [])
        )

    def _transition(self, action: str) -> Step:
        step = super()._transition(action)
        if not step.results or not isinstance(self._sessions, Stage):
            return step
        walker = self._sessions.world
        assert isinstance(walker, Walker)
        *before, last = step.observation.messages
        last = dataclasses.replace(last, content=f"{last.content}\n{self._shown(walker)}")
        return dataclasses.replace(step, observation=Observation((*before, last)))


vector_env = vector_of(GridEnv)
