"""What a policy is to the rollout, and what a token engine is to a policy.

Both are event-driven, so that an environment that is busy blocks nobody else: the rollout hands over the
dialogues that wait for a turn, then polls for turns that are ready, in whatever order they become so.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trajgym.protocols import Protocol
from trajgym.types import Action, Message, Observation, Task, TokenStream, ToolSpec

__all__ = ["LostTurn", "Policy", "SampledTurn", "Sampler", "TextPolicy"]


@dataclass(frozen=True)
class LostTurn(Action):
    """In place of a turn that will not come, by no fault of the policy's: one trajectory is invalid, the others go on.

    Args:
        error: Why.
    """

    error: Exception = field(kw_only=True)


@dataclass(frozen=True)
class SampledTurn:
    """One turn that a sampler has finished.

    Args:
        stream: The stream it belongs to.
        ids: The sampled token ids; the stop token is the last one if ``finish == "stop"``.
        logprobs: log-probability (nats) of each, under the sampling temperature.
        finish: ``"stop"``, or ``"length"`` when ``max_new_tokens`` ran out first.
        error: Why there is no turn, where a request to an engine elsewhere was lost; then nothing was sampled, and the
            stream can only be closed.
    """

    stream: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    error: Exception | None = None


class Sampler(abc.ABC):
    """A token engine: append-only streams that live as long as an episode.

    ``open`` → ``generate`` → ``step`` until the turn comes out → ``extend`` → ``generate`` → … → ``close``.
    Nothing runs outside ``step``; one ``step`` advances every stream that has work.
    """

    @property
    @abc.abstractmethod
    def slots(self) -> int:
        """How many streams may be open at once."""

    @property
    @abc.abstractmethod
    def max_length(self) -> int:
        """Most tokens a stream can hold."""

    @abc.abstractmethod
    def open(self, ids: Sequence[int], *, seed: int) -> int:
        """Start a stream with these prompt tokens and return its handle.

        Args:
            ids: Prompt token ids, at least one.
            seed: Seeds this stream's draws, whatever else runs beside it.
        """

    @abc.abstractmethod
    def extend(self, stream: int, ids: Sequence[int]) -> None:
        """Append observation tokens to a stream that is not generating."""

    @abc.abstractmethod
    def generate(self, stream: int, *, max_new_tokens: int) -> None:
        """Ask for the next turn of a stream."""

    @abc.abstractmethod
    def step(self) -> list[SampledTurn]:
        """Advance all streams that have work by at least one token; return the turns that finished."""

    @abc.abstractmethod
    def close(self, stream: int) -> None:
        """Free a stream; closing it in mid-turn drops the turn."""

    @property
    def computed_tokens(self) -> int:
        """Tokens sent through a model so far, padding included; 0 from an engine that does not count them."""
        return 0

    def reset(self) -> None:
        """Drop all streams, and the memory that is kept for further ones."""
        return

    def close_engine(self) -> None:
        """Give back what an engine holds beside the model that it was given; it samples no more."""
        return

    def update_weights(self, model: Any) -> None:
        """Sample with these weights from now on; to be called between rollouts, when no stream is open.

        An engine that samples from the trainer's own model has them already and does nothing.

        Args:
            model: The policy as it is trained, whole and on one process; it may have adapters.
        """
        return


class Policy(abc.ABC):
    """Something that writes assistant turns in many dialogues at once."""

    @property
    @abc.abstractmethod
    def capacity(self) -> int:
        """How many episodes may be live at once."""

    @abc.abstractmethod
    def start(self, episode: int, messages: Sequence[Message], *, task: Task, seed: int) -> None:
        """Begin an episode and ask for its first turn.

        Args:
            episode: The caller's number for it, unused by any live episode.
            messages: The prompt.
            task: The problem; only scripted policies may look at it.
            seed: Seeds all randomness of the policy in this episode.
        """

    def resume(
        self, episode: int, messages: Sequence[Message], tokens: Sequence[int], *, task: Task, seed: int
    ) -> None:
        """Begin an episode in the middle of a dialogue and ask for its next turn, drawn anew.

        Args:
            episode: As for :meth:`start`.
            messages: The dialogue so far.
            tokens: What :meth:`context` told of it; a policy without tokens does not look at them.
            task: As for :meth:`start`.
            seed: As for :meth:`start`.
        """
        self.start(episode, messages, task=task, seed=seed)

    @abc.abstractmethod
    def observe(self, episode: int, messages: Sequence[Message]) -> None:
        """Append what the environment answered and ask for the next turn."""

    def context(self, episode: int) -> tuple[int, ...]:
        """Return the tokens before the turn that was asked for last; none for policies without tokens."""
        return ()

    @abc.abstractmethod
    def poll(self) -> list[tuple[int, Action]]:
        """Work a little on the waiting turns; return those that are ready, maybe none."""

    @abc.abstractmethod
    def finish(self, episode: int) -> tuple[TokenStream, ...]:
        """End an episode and return its token rows (none for policies without tokens)."""

    def agree_on_protocol(self, protocol: Protocol, tools: Mapping[str, ToolSpec], *, named: bool = True) -> Protocol:
        """Return the written form in which this policy is to call the tools of an environment.

        Args:
            protocol: The environment's.
            tools: The environment's.
            named: Whether somebody chose that protocol; otherwise a policy may prefer another.

        Raises:
            ConfigError: When a protocol was named that is not the policy's own.
            TemplateError: When the policy cannot write its calls.
        """
        return protocol


class TextPolicy(Policy):
    """A policy without tokens: subclasses write :meth:`act`, a pure function of the dialogue.

    Args:
        capacity: How many episodes may be live at once.
    """

    sees_all: ClassVar[bool] = True
    """Whether ``act`` gets the whole dialogue also where an observation began anew; a model gets what is in view."""

    def __init__(self, capacity: int = 64) -> None:
        self._capacity = capacity
        self._live: dict[int, tuple[list[Message], Task, int]] = {}
        self._waiting: list[int] = []

    @abc.abstractmethod
    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        """Write the next assistant turn.

        Args:
            messages: The dialogue so far.
            task: The problem with its ground truth.
            seed: Seed of the episode; mix it with ``len(messages)`` for a draw per turn.
        """

    @property
    def capacity(self) -> int:
        """How many episodes may be live at once."""
        return self._capacity

    def start(self, episode: int, messages: Sequence[Message], *, task: Task, seed: int) -> None:
        """Begin an episode."""
        self._live[episode] = (list(messages), task, seed)
        self._waiting.append(episode)

    def observe(self, episode: int, messages: Sequence[Message]) -> None:
        """Append what the environment answered."""
        dialogue = self._live[episode][0]
        if not self.sees_all and Observation(tuple(messages)).begins_anew:
            dialogue.clear()
        dialogue.extend(messages)
        self._waiting.append(episode)

    def poll(self) -> list[tuple[int, Action]]:
        """Write every waiting turn."""
        ready, self._waiting = self._waiting, []
        out = []
        for episode in ready:
            messages, task, seed = self._live[episode]
            action = Action(self.act(messages, task, seed))
            messages.append(Message("assistant", action.text))
            out.append((episode, action))
        return out

    def finish(self, episode: int) -> tuple[TokenStream, ...]:
        """Forget the episode."""
        self._live.pop(episode, None)
        self._waiting = [waiting for waiting in self._waiting if waiting != episode]
        return ()
