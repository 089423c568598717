"""What an engine knows of each stream, and which streams' prompts and observations go through the model together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

__all__ = ["Chunk", "Stream", "batches"]


@dataclass
class Stream:
    """An append-only stream of tokens that holds a row of the cache.

    Args:
        id: Its handle.
        row: Its row; changes as rows trade places.
        seed: Signed 64-bit integer.
        prompt: What it began with.
        pending: Tokens the model has not seen: an observation, and the token sampled before it.
        cached: How many tokens the model has seen; brought up to date at the end of a turn.
        drawn: How many tokens were sampled in earlier turns.
        budget: Most tokens of the turn being sampled; 0 between turns.
    """

    id: int
    row: int
    seed: int
    prompt: tuple[int, ...]
    pending: list[int]
    cached: int = 0
    drawn: int = 0
    budget: int = 0

    @property
    def length(self) -> int:
        """Number of tokens."""
        return self.cached + len(self.pending)


@dataclass
class Chunk:
    """Pending tokens to compute once, for one stream, or for several that start with the same prompt."""

    tokens: list[int]
    streams: list[Stream] = field(default_factory=list)


def batches(streams: Sequence[Stream], most_tokens: int) -> Iterator[list[Chunk]]:
    """Split pending tokens into batches of similar length, streams without cached tokens apart from the others.

    Args:
        streams: Streams with pending tokens.
        most_tokens: Of one batch, padding included; a batch of one chunk may be longer.
    """
    starting: dict[tuple[int, ...], Chunk] = {}
    running: list[Chunk] = []
    for stream in streams:
        if stream.cached:
            running.append(Chunk(stream.pending, [stream]))
        else:
            starting.setdefault(tuple(stream.pending), Chunk(stream.pending)).streams.append(stream)
    for chunks in (running, list(starting.values())):
        chunks.sort(key=lambda chunk: len(chunk.tokens))
        batch: list[Chunk] = []
        for chunk in chunks:
            length = len(chunk.tokens)
            # A further pass costs about as much as 16 tokens of padding in a row.
            uneven = batch and length > 16 + 1.5 * len(batch[0].tokens)
            if uneven or (batch and (len(batch) + 1) * length > most_tokens):
                yield batch
                batch = []
            batch.append(chunk)
        if batch:
            yield batch
