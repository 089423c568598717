"""What token engines have in common: what may be asked of them, what they answer where that is too much, a count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trajgym.errors import ConfigError, EpisodeError

__all__ = ["Counters", "Limits", "at_least_one", "in_mid_turn", "unknown_stream"]


@dataclass(frozen=True)
class Limits:
    """How much an engine can take.

    Args:
        slots: How many streams may be open at once.
        max_length: Most tokens of a stream.
        temperature: Divides the logits; 0 takes the most probable token.
        vocabulary: Number of token ids.

    Raises:
        ConfigError: When one of them is out of range.
    """

    slots: int
    max_length: int
    temperature: float
    vocabulary: int

    def __post_init__(self) -> None:
        at_least_one(slots=self.slots, max_length=self.max_length)
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature must be finite and not negative, got {self.temperature}.")

    def check_prompt(self, ids: Sequence[int]) -> None:
        """Raise unless a stream can begin with these tokens.

        Raises:
            ConfigError: When there are none, too many, or some that are not in the vocabulary.
        """
        if not len(ids):
            raise ConfigError("A stream needs at least one prompt token, got none.")
        self.check_tokens(ids, 0)

    def check_tokens(self, ids: Sequence[int], length: int) -> None:
        """Raise unless a stream of ``length`` tokens can take these.

        Raises:
            ConfigError: When they do not fit or are not in the vocabulary.
        """
        if length + len(ids) > self.max_length:
            raise ConfigError(
                f"A stream of {length} tokens cannot take {len(ids)} more: max_length={self.max_length}. Raise it, "
                "or give the episode a smaller token budget."
            )
        if len(ids) and not (min(ids) >= 0 and max(ids) < self.vocabulary):
            raise ConfigError(
                f"Token ids must lie in the model's vocabulary of {self.vocabulary}, got {min(ids)} to {max(ids)}. "
                "Is this the model's own tokenizer?"
            )

    def check_turn(self, length: int, max_new_tokens: int) -> None:
        """Raise unless a stream of ``length`` tokens has room for a turn.

        Raises:
            ConfigError: When the turn may have no token, or does not fit.
        """
        at_least_one(max_new_tokens=max_new_tokens)
        if length + max_new_tokens > self.max_length:
            raise ConfigError(
                f"A stream of {length} tokens has no room for max_new_tokens={max_new_tokens}. "
                f"Lower it, or raise max_length={self.max_length}."
            )

    def all_taken(self) -> EpisodeError:
        """Return what to raise when no slot is free."""
        return EpisodeError(f"All {self.slots} slots are taken. Close a stream first, or raise slots.")


@dataclass
class Counters:
    """How many tokens an engine has handled since it was made.

    Args:
        prompt_tokens: Given by :meth:`Sampler.open` and :meth:`Sampler.extend`.
        sampled_tokens: Drawn, those of dropped turns included.
        computed_tokens: Sent through the model, padding included. What a prompt has in common with a known one is
            not sent again.
    """

    prompt_tokens: int = 0
    sampled_tokens: int = 0
    computed_tokens: int = 0


def at_least_one(**values: int) -> None:
    """Raise unless all values are positive.

    Raises:
        ConfigError: Names the first that is not.
    """
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}.")


def unknown_stream(stream: int) -> EpisodeError:
    """Return what to raise for a stream that is not open."""
    return EpisodeError(f"There is no open stream {stream}: it was closed, or dropped by reset().")


def in_mid_turn(stream: int) -> EpisodeError:
    """Return what to raise where a stream must not be generating."""
    return EpisodeError(f"Stream {stream} is in the middle of a turn. Call step() until the turn comes out.")
