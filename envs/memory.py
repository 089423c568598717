"""Facts that are shown once and asked for later: an environment in which a policy must take notes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from trajgym.envs.memory_notes import LONGEST, VERBS, Notebook, Plan
from trajgym.envs.memory_tasks import ROOM, MemoryTasks
from trajgym.envs.stage import Stage, StageEnv
from trajgym.envs.tasks import TaskSource
from trajgym.envs.vector import vector_of
from trajgym.errors import ConfigError
from trajgym.rewards import RewardLike, Rubric, Settled, accuracy, term
from trajgym.types import Message, Observation, Step, Task

__all__ = ["REWARDS", "MemoryEnv", "notes_kept", "recalled", "vector_env"]


@term
def recalled(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for the right answer on the page that asks for it; nothing for one that was guessed before."""
    right = accuracy(step, task, history)
    return right if right and Notebook.replay(task, history).asked else 0.0


@term
def notes_kept(step: Step, task: Task, history: Sequence[Step]) -> float:
    """The share of the lockers in use that the notes know as a page is turned, over the number of pages.

    Every page is turned once, so all of an episode's sum to at most 1. What counts is a note with the person's name as
    its key and the number, alone, as its text.
    """
    turned = [result for result in step.results if result.error is None]
    if not any(result.call.name == "next_page" for result in turned):
        return 0.0
    book, share = Notebook.replay(task, history), 0.0
    for result in turned:
        if result.call.name == "next_page":
            share += book.kept()
        getattr(book, result.call.name, lambda **_: None)(**result.call.arguments)
    return share / len(book.plan.pages)


REWARDS = {
    "sparse": Rubric({"accuracy": (recalled, 1.0)}),
    "dense": Rubric({"notes_kept": (Settled(notes_kept, right=recalled), 1.0)}),
    "hybrid": Rubric({"accuracy": (recalled, 1.0), "notes_kept": (notes_kept, 0.2)}),
}
"""What ``reward="sparse"``, ``"dense"`` and ``"hybrid"`` mean here."""


class MemoryEnv(StageEnv):
    """A ledger read page by page, of which nothing but a few notes is left when the question comes.

    ## Description
    Each page tells who gets, changes or gives back a locker, among sentences that nobody will ask about. Turning a page
    ends the dialogue: the next page opens a new one that holds the system message, the notes and that page. The last
    page asks for a locker, or for the sum of two. Nothing that was not noted can be known then, there is room for a few
    short notes, and more people pass through than there is room for.

    That is how the bound on the context is meant: not as a cut through a dialogue, which a policy with an append-only
    stream of tokens could not follow, but as dialogues of their own. An observation whose first message is a system
    message begins one (:attr:`trajgym.types.Observation.begins_anew`); model policies then start a new stream of
    tokens, and the trainer gets a row for each. Given the task, (page, notes, dialogue of the page) decides what any
    turn leads to and what it pays, so it is a state of a Markov decision process, and all of it but the pages to come
    is in view.
    Scripted policies, which know the task anyway, are shown everything.

    ## Action Space
    ``Unicode()``: one assistant turn, as in :class:`trajgym.envs.base.ToolEnv`. The calls of one turn are carried out
    one after the other.

    ## Observation Space
    ``Unicode()``: what became of the calls; after a turn of the page, the new dialogue, in which calls of the same turn
    that failed are named. ``info["messages"]`` is what is in view.

    ## Rewards
    ``"sparse"``: at the end, 1 for the right answer on the last page. ``"dense"``: for each page turned, the share of
    the lockers in use that the notes know, over the number of pages, taken back at the end unless the answer is right.
    ``"hybrid"``: ``"sparse"``, and 0.2 times those shares, which are kept. Other rewards as in
    :class:`trajgym.envs.base.ToolEnv`.

    ## Episode End
    As in :class:`trajgym.envs.base.ToolEnv`; ``max_turns`` defaults to 24, enough for one call in a turn.

    ## Arguments
    ``Memory-v0`` offers the tools ``store``, ``update``, ``delete`` and ``next_page``.

    ## Version History
    * v0: first version

    Args:
        split: ``"train"`` or ``"test"``.
        difficulty: Level from 1 to 3, or the lowest and the highest; see
            :class:`trajgym.envs.memory_tasks.MemoryTasks`.
        room: Most notes at a time, from 2 to 8.
        tasks: Replaces the generated ledgers; each task needs one, see :class:`trajgym.envs.memory_notes.Plan`.
        reward: As above.
        max_turns: Most turns in an episode.
        instructions: Short by default.
        **kwargs: Passed to :class:`trajgym.envs.base.ToolEnv`.

    Raises:
        ConfigError: When there is no system message: it is what a new dialogue begins with.
    """

    answer_rule: ClassVar[str] = (
        "You read a ledger of lockers. Turning a page leaves you nothing but your notes, of up to "
        f"{LONGEST} characters. The last page asks for lockers alone: end it with #### and the number."
    )

    grows: ClassVar[bool] = False

    def __init__(
        self,
        *,
        split: str = "train",
        difficulty: int | tuple[int, int] = (1, 3),
        room: int = ROOM,
        tasks: TaskSource | Iterable[Task] | None = None,
        reward: RewardLike = "hybrid",
        max_turns: int = 24,
        instructions: str = "signature",
        **kwargs: Any,
    ) -> None:
        source = tasks if tasks is not None else MemoryTasks(split, difficulty, room)
        rubric = REWARDS.get(reward, reward) if isinstance(reward, str) else reward
        super().__init__(
            source, reward=rubric, max_turns=max_turns, instructions=instructions, **{"tools": VERBS, **kwargs}
        )
        if not self.system:
            raise ConfigError('Memory-v0 needs a system message, with which each page begins. Leave out system="".')

    def world(self, task: Task) -> Notebook:
        """Return the task's notebook, open at its first page."""
        return Notebook(Plan.of(task))

    def prompt(self, task: Task) -> tuple[Message, ...]:
        """Return the first page."""
        return self._page(Notebook(Plan.of(task)))

    def _page(self, book: Notebook, before: Sequence[str] = ()) -> tuple[Message, ...]:
        return Message("system", self.system), Message("user", "\n".join([*before, book.text()]))

    def _transition(self, action: str) -> Step:
        step = super()._transition(action)
        turned = any(result.call.name == "next_page" and result.error is None for result in step.results)
        if not turned or step.stop_reason is not None or not isinstance(self._sessions, Stage):
            return step
        book = self._sessions.world
        assert isinstance(book, Notebook)
        failed = [f"{result.call.name}: {result.content}" for result in step.results if result.error is not None]
        failed += [f"Error ({step.error.kind}): {step.error.message}"] if step.error is not None else []
        return dataclasses.replace(step, observation=Observation(self._page(book, failed)))


vector_env = vector_of(MemoryEnv)
