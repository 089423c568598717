"""Streams for engines that are asked for one turn at a time: with all its tokens so far, and a seed of its own.

Such an engine keeps no stream of its own. What it has computed of a dialogue it finds again by its prefix cache.
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trajgym.errors import EpisodeError
from trajgym.policies.base import SampledTurn, Sampler
from trajgym.policies.limits import Counters, Limits, in_mid_turn, unknown_stream

__all__ = ["Order", "TurnSampler", "turn_seed"]


def turn_seed(seed: int, drawn: int) -> int:
    """Return the seed of a stream's next turn, 63 bits: the same for the same two numbers, on every machine.

    Args:
        seed: The stream's.
        drawn: Tokens that were sampled in it so far.

    >>> turn_seed(1, 0) == turn_seed(1, 0) != turn_seed(1, 7)
    True
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}/{drawn}".encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True)
class Order:
    """A turn to be written.

    Args:
        stream: Whose.
        ids: All tokens before it.
        seed: Of its draws.
        max_new_tokens: Most tokens of it.
    """

    stream: int
    ids: tuple[int, ...]
    seed: int
    max_new_tokens: int


@dataclass
class _Stream:
    seed: int
    ids: list[int]
    drawn: int = 0
    budget: int = 0  # of the turn being written; 0 between turns
    lost: bool = False  # its last turn never came


class TurnSampler(Sampler):
    """What engines share that are asked turn by turn: which streams there are, and what may be asked of them.

    Args:
        slots: How many streams may be open at once.
        max_length: Most tokens of a stream.
        stop_ids: Tokens that end a turn.
        temperature: Divides the logits; 0 takes the most probable token and reports its log-probability at 1.
        vocabulary: Number of token ids.

    Attributes:
        counters: What has been computed so far, except in turns that were dropped.

    Raises:
        ConfigError: When an argument is out of range.
    """

    def __init__(
        self, *, slots: int, max_length: int, stop_ids: Iterable[int], temperature: float, vocabulary: int
    ) -> None:
        self._limits = Limits(slots, max_length, temperature, vocabulary)
        self._stop_ids = frozenset(stop_ids)
        self._streams: dict[int, _Stream] = {}
        self._opened = 0
        self.counters = Counters()

    @property
    def slots(self) -> int:
        """How many streams may be open at once."""
        return self._limits.slots

    @property
    def max_length(self) -> int:
        """Most tokens a stream can hold."""
        return self._limits.max_length

    @property
    def computed_tokens(self) -> int:
        """Tokens sent through the model so far, where the engine tells; those of dropped turns are not among them."""
        return self.counters.computed_tokens

    def open(self, ids: Sequence[int], *, seed: int) -> int:
        """Start a stream with these prompt tokens and return its handle.

        Raises:
            ConfigError: When the prompt is empty, too long or not in the vocabulary.
            EpisodeError: When all slots are taken.
        """
        self._limits.check_prompt(ids)
        if len(self._streams) >= self.slots:
            raise self._limits.all_taken()
        self._opened += 1
        self._streams[self._opened] = _Stream(seed, list(ids))
        self.counters.prompt_tokens += len(ids)
        return self._opened

    def extend(self, stream: int, ids: Sequence[int]) -> None:
        """Append observation tokens to a stream that is not generating.

        Raises:
            ConfigError: When they do not fit or are not in the vocabulary.
            EpisodeError: When the stream is generating, has lost a turn, or is closed.
        """
        entry = self._idle(stream)
        self._limits.check_tokens(ids, len(entry.ids))
        entry.ids += ids
        self.counters.prompt_tokens += len(ids)

    def generate(self, stream: int, *, max_new_tokens: int) -> None:
        """Ask for the next turn of a stream.

        Raises:
            ConfigError: When the budget is below 1 or does not fit.
            EpisodeError: When the stream is generating, has lost a turn, or is closed.
        """
        entry = self._idle(stream)
        self._limits.check_turn(len(entry.ids), max_new_tokens)
        self._ask(Order(stream, tuple(entry.ids), turn_seed(entry.seed, entry.drawn), max_new_tokens))
        entry.budget = max_new_tokens

    def close(self, stream: int) -> None:
        """Free a stream; closing it in mid-turn drops the turn.

        Raises:
            EpisodeError: When it is closed already.
        """
        entry = self._find(stream)
        del self._streams[stream]
        if entry.budget:
            self._drop([stream])

    def reset(self) -> None:
        """Drop all streams."""
        busy = [stream for stream, entry in self._streams.items() if entry.budget]
        self._streams.clear()
        if busy:
            self._drop(busy)

    @abc.abstractmethod
    def _ask(self, order: Order) -> None:
        """Give an order to the engine."""

    @abc.abstractmethod
    def _drop(self, streams: Sequence[int]) -> None:
        """Give up the orders of these streams, which are closed already."""

    def _between_rollouts(self) -> None:
        """Raise unless nothing is open.

        Raises:
            EpisodeError: When a stream is, for its tokens belong to the weights that it began with.
        """
        if self._streams:
            raise EpisodeError(
                f"Weights can change between rollouts alone; {len(self._streams)} streams are open. Close them first."
            )

    @property
    def _writing(self) -> bool:
        """Whether a turn is under way."""
        return any(entry.budget for entry in self._streams.values())

    def _written(self, stream: int, ids: Sequence[int], logprobs: Sequence[float], cached: int | None) -> SampledTurn:
        """Append what the engine wrote, and return it as a turn.

        Args:
            stream: Whose.
            ids: The sampled tokens.
            logprobs: Of each.
            cached: How many of the tokens before the engine had computed already; ``None`` when it does not tell.

        Raises:
            RuntimeError: When an engine breaks its promises: that costs the episodes under way, like its other faults.
        """
        entry = self._streams[stream]
        whole = ids and (ids[-1] in self._stop_ids or len(ids) == entry.budget)
        if not whole or len(ids) > entry.budget or len(logprobs) != len(ids):
            raise RuntimeError(
                f"The engine wrote {len(ids)} tokens with {len(logprobs)} log-probabilities where at most "
                f"{entry.budget} were asked for, the last being {ids[-1] if ids else 'none'}; stop tokens are "
                f"{sorted(self._stop_ids)}."
            )
        self.counters.sampled_tokens += len(ids)
        if cached is not None:  # the last token that was sampled has not gone through the model
            self.counters.computed_tokens += len(entry.ids) - cached + len(ids) - 1
        entry.ids += ids
        entry.drawn += len(ids)
        entry.budget = 0
        finish = "stop" if ids[-1] in self._stop_ids else "length"
        return SampledTurn(stream, tuple(ids), tuple(logprobs), finish)

    def _lose(self, stream: int, error: Exception) -> SampledTurn:
        """Return what stands for a turn that will not come."""
        entry = self._streams[stream]
        entry.budget, entry.lost = 0, True
        return SampledTurn(stream, (), (), "lost", error)

    def _find(self, stream: int) -> _Stream:
        if stream not in self._streams:
            raise unknown_stream(stream)
        return self._streams[stream]

    def _idle(self, stream: int) -> _Stream:
        entry = self._find(stream)
        if entry.budget:
            raise in_mid_turn(stream)
        if entry.lost:
            raise EpisodeError(f"Stream {stream} has lost a turn and cannot go on. Close it.")
        return entry
