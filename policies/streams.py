"""What an engine knows of each stream, and which streams' prompts and observations go through the model together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

__all__ = ["Chunk", "Stream", "agreement", "batches", "leading", "most_alike"]

_LEAST, _LEAST_SHARE = 16, 0.125  # tokens in common, and share of the prompt, for which a pass more pays


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
    """Pending tokens to compute once, for one stream, or for several that hold nothing but the same prompt."""

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
        if stream.cached and stream.cached >= len(stream.prompt):
            running.append(Chunk(stream.pending, [stream]))
        else:
            same = (stream.cached, *stream.prompt[: stream.cached], *stream.pending)
            starting.setdefault(same, Chunk(stream.pending)).streams.append(stream)
    fresh = [chunk for chunk in starting.values() if not chunk.streams[0].cached]
    running += [chunk for chunk in starting.values() if chunk.streams[0].cached]
    for chunks in (running, fresh):
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


def agreement(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two sequences begin with in common."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def leading(prompts: Iterable[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Return which prompts to compute before the others, because others begin like them and can take that over."""
    sets: list[list[tuple[int, ...]]] = []
    for prompt in sorted(set(prompts)):
        if sets and _pays(agreement(sets[-1][0], prompt), prompt):
            sets[-1].append(prompt)
        else:
            sets.append([prompt])
    return {alike[0] for alike in sets if len(alike) > 1}


def most_alike(prompt: tuple[int, ...], known: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Return which of some sorted prompts has the longest beginning in common with a prompt, and how long that is.

    Too little to be worth taking over counts as 0. The last token of the prompt never counts: what the model says
    behind it is wanted.
    """
    at = bisect_left(known, prompt)  # in sorted order, one of the two neighbours has the most in common
    found = [(agreement(prompt[:-1], known[i]), i) for i in (at - 1, at) if 0 <= i < len(known)]
    length, which = max(found, default=(0, 0))
    return which, length if _pays(length, prompt) else 0


def _pays(length: int, prompt: Sequence[int]) -> bool:
    return length >= max(_LEAST, _LEAST_SHARE * len(prompt))
