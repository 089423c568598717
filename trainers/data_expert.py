"""Worked solutions as dialogues with tools: played through the environment, and kept when they solve the task there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from trajgym.envs.base import ToolEnv
from trajgym.envs.make import make
from trajgym.errors import ConfigError, DataError
from trajgym.policies.scripted import ExpertPolicy
from trajgym.protocols import Protocol
from trajgym.rewards.answer import correct, equal, read, truth
from trajgym.rollout import EnvPool, Episode, collect, derive_seed
from trajgym.trainers.data import dialogues
from trajgym.types import Message, StopReason, Task, Trajectory

__all__ = ["ExpertSet", "expert_set", "messages_of"]

NO_CALLS = "no annotated calculation"
UNWRITABLE = "the protocol cannot write its calls"
FAULT = "the environment failed"
FAILED_CALL = "a call fails"
UNFINISHED = "it does not end with an answer"
WRONG = "the answer is wrong"
UNFOUNDED = "the answer is no result of a call"


@dataclass(frozen=True)
class ExpertSet:
    """Demonstrations that were played, and what became of the others.

    Args:
        trajectories: Those that were kept, each with the right answer, in the order of their tasks.
        dropped: Ids of the tasks that were left out, by the reason.
    """

    trajectories: tuple[Trajectory, ...]
    dropped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The trajectories in the form of messages, one ``{"messages": […]}`` for each dialogue that a model sees.

        That is one for each trajectory, but where an observation begins anew; see :func:`messages_of`.
        """
        return [{"messages": messages_of(part)} for trajectory in self.trajectories for part in dialogues(trajectory)]

    @property
    def summary(self) -> str:
        """One line for people."""
        kept, total = len(self.trajectories), len(self.trajectories) + sum(map(len, self.dropped.values()))
        reasons = "".join(f"; {len(ids):,} dropped: {reason}" for reason, ids in self.dropped.items())
        return f"{kept:,} of {total:,} demonstrations kept{reasons}"


def expert_set(
    tasks: Sequence[Task],
    *,
    env: str = "GSM8KTool-v0",
    env_kwargs: Mapping[str, Any] | None = None,
    founded: bool = True,
    seed: int = 0,
    threads: int = 1,
) -> ExpertSet:
    """Play the demonstrations of tasks through an environment and keep those that solve them.

    A trajectory is data for supervised training as it is: see :func:`trajgym.trainers.data.tokenized`.

    Args:
        tasks: The tasks, e.g. of :meth:`trajgym.trainers.datasets.GSM8KDataset.tasks`.
        env: Id of an environment with tools.
        env_kwargs: Its arguments; ``protocol`` is the written form of the calls. Give the one of the model's template.
        founded: Keep a demonstration only if its answer is the result of one of its calls, up to rounding. One that
            says a number from nowhere teaches to guess.
        seed: Seeds the environment's random numbers.
        threads: How many environments step at the same time.

    Raises:
        ConfigError: When the environment has no tools, or an argument is wrong.
        DataError: When no demonstration is left.
    """
    arguments = dict(env_kwargs or {}) | {"tasks": list(tasks)}
    probe = make(env, **arguments).unwrapped
    if not isinstance(probe, ToolEnv) or not probe.tools:
        raise ConfigError(
            f"{env} has no tools, so there are no demonstrations with calls. Give an id such as …Tool-v0."
        )
    reasons: dict[str, str] = {task.id: reason for task in tasks if (reason := _unplayable(task, probe.protocol))}
    episodes = [Episode(derive_seed(seed, "expert", task.id), 0, task) for task in tasks if task.id not in reasons]
    with EnvPool(lambda: make(env, **arguments), threads=threads) as pool:
        played = collect(ExpertPolicy(probe.protocol, capacity=threads * 8), pool, episodes)
    reasons |= {t.task.id: reason for t in played if (reason := _unfit(t, founded))}
    kept = tuple(t for t in played if t.task.id not in reasons)
    dropped = {
        reason: tuple(task.id for task in tasks if reasons.get(task.id) == reason)
        for reason, _ in Counter(reasons.values()).most_common()
    }
    result = ExpertSet(kept, dropped)
    if not kept:
        raise DataError(f"No demonstration is left to train on: {result.summary}.")
    return result


def messages_of(trajectory: Trajectory) -> list[dict[str, str]]:
    """Return a dialogue in the form of chat templates, the calls written out in the assistant's content."""
    return [_mapping(message) for message in trajectory.messages]


def _mapping(message: Message) -> dict[str, str]:
    labels = {"name": message.name, "tool_call_id": message.call_id}
    named = {key: value for key, value in labels.items() if value}
    return {"role": message.role, "content": message.content, **named}


def _unplayable(task: Task, protocol: Protocol) -> str:
    if not any(turn.calls for turn in task.solution):
        return NO_CALLS
    try:
        for turn in task.solution:
            protocol.render_turn(turn)
    except ConfigError:
        return UNWRITABLE
    return ""


def _unfit(trajectory: Trajectory, founded: bool) -> str:
    """Return why a played demonstration is not to be imitated; nothing when it is."""
    if not trajectory.valid:
        return FAULT
    if any(step.error or any(result.error for result in step.results) for step in trajectory.steps):
        return FAILED_CALL
    if trajectory.stop_reason is not StopReason.ANSWERED:
        return UNFINISHED
    if not correct(trajectory.steps[-1].action.text, trajectory.task.answer):
        return WRONG
    results = [result.content for step in trajectory.steps for result in step.results]
    return "" if not founded or any(_comes_to(result, trajectory.task.answer) for result in results) else UNFOUNDED


def _comes_to(result: str, answer: str) -> bool:
    """Whether a tool's result is the answer, or would be when rounded to a whole number."""
    value, expected = read(f"#### {result}").value, truth(answer)
    return value is not None and (equal(value, expected) or abs(value - expected) < Fraction(1))
