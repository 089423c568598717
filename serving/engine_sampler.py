"""The shared engine as a sampler, so that an episode played in another thread goes through the same batch."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field

from trajgym.errors import EpisodeError, TrajgymError
from trajgym.policies.base import SampledTurn, Sampler
from trajgym.serving.engine import Engine, Finished, Order, Ticket
from trajgym.serving.sampler import Sampling, Token

__all__ = ["EngineSampler"]

_LOOK_UP = 0.05  # seconds of waiting for the engine after which the caller hears that nothing has happened


@dataclass
class _Stream:
    seed: int
    ids: list[int] = field(default_factory=list)
    ticket: Ticket | None = None
    turns: int = 0


class EngineSampler(Sampler):
    """Streams whose turns are orders to an engine. What one turn left in the engine's cache, the next one finds there.

    Args:
        engine: Shared with everybody else.
        temperature: Of the draws.
        slots: How many streams may be open at once.
    """

    def __init__(self, engine: Engine, *, temperature: float, slots: int = 1) -> None:
        self._engine, self._temperature, self._slots = engine, temperature, slots
        self._streams: dict[int, _Stream] = {}
        self._opened = 0
        self._news: queue.SimpleQueue[tuple[int, Token | Finished | TrajgymError]] = queue.SimpleQueue()
        self.prompt_tokens = self.sampled_tokens = 0

    @property
    def slots(self) -> int:
        """How many streams may be open at once."""
        return self._slots

    @property
    def max_length(self) -> int:
        """Most tokens a stream can hold."""
        return self._engine.max_length

    def open(self, ids: Sequence[int], *, seed: int) -> int:
        """Start a stream with these prompt tokens and return its handle."""
        if len(self._streams) == self._slots:
            raise EpisodeError(f"All {self._slots} streams are open. Close one first.")
        self._opened += 1
        self._streams[self._opened] = _Stream(seed, list(ids))
        return self._opened

    def extend(self, stream: int, ids: Sequence[int]) -> None:
        """Append observation tokens to a stream that is not generating."""
        self._streams[stream].ids += ids

    def generate(self, stream: int, *, max_new_tokens: int) -> None:
        """Ask for the next turn of a stream.

        Raises:
            Busy: When the engine has no room for it.
        """
        entry = self._streams[stream]
        how = Sampling(temperature=self._temperature, seed=entry.seed + (entry.turns << 40))
        order = Order(tuple(entry.ids), max_new_tokens, how)
        (entry.ticket,) = self._engine.submit([order], [lambda what: self._news.put((stream, what))])
        self.prompt_tokens += len(entry.ids)

    def step(self) -> list[SampledTurn]:
        """Wait a little for a turn; return those that finished.

        Raises:
            EngineFault: When the model failed, or the engine was closed.
        """
        try:
            stream, what = self._news.get(timeout=_LOOK_UP)
        except queue.Empty:
            return []
        entry = self._streams.get(stream)
        if entry is None or isinstance(what, Token):
            return []
        if isinstance(what, TrajgymError):
            raise what
        entry.ids += what.ids
        entry.ticket = None
        entry.turns += 1
        self.sampled_tokens += len(what.ids)
        return [SampledTurn(stream, what.ids, what.logprobs, what.finish)]

    def close(self, stream: int) -> None:
        """Free a stream; closing it in mid-turn drops the turn."""
        entry = self._streams.pop(stream)
        if entry.ticket is not None:
            self._engine.cancel([entry.ticket])
