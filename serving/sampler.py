"""The cached engine with settings per stream, and with a view of tokens while they are sampled.

A trainer samples all its streams alike. A server's clients each ask for a temperature of their own, may watch their
answer grow, and want probabilities that say something about the model rather than about the temperature: what is
reported here is the probability under the model itself, at temperature 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trajgym.policies.draws import int64
from trajgym.policies.hf import HFSampler
from trajgym.policies.rows import Rows

__all__ = ["Sampling", "ServedSampler", "Token"]


@dataclass(frozen=True)
class Sampling:
    """How one answer is drawn.

    Args:
        temperature: Divides the logits; 0 takes the most probable token.
        top_p: Draws only from the most probable tokens that together reach this probability.
        seed: Seeds the draws.
        alternatives: How many of the most probable tokens to report at each place.
        watched: Whether tokens are reported as they come, or all at the end.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    alternatives: int = 0
    watched: bool = False


@dataclass(frozen=True)
class Token:
    """A sampled token.

    Args:
        stream: The stream it was sampled in.
        id: Its id.
        logprob: Its log-probability (nats) under the model at temperature 1.
        top: The most probable tokens at its place as ``(id, logprob)``, most probable first.
    """

    stream: int
    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class ServedRows(Rows):
    """Rows with a temperature and a nucleus each. Takes the arguments of :class:`trajgym.policies.rows.Rows`."""

    def __init__(self, rows: int, *, stop_ids: Iterable[int], max_length: int, device: torch.device) -> None:
        super().__init__(rows, stop_ids=stop_ids, temperature=1.0, max_length=max_length, device=device)
        self._how = torch.ones(2, rows, device=device)

    def settle(self, row: int, how: Sampling) -> None:
        """Say how this row is sampled."""
        self._how[:, row] = torch.tensor([how.temperature, how.top_p], device=self._how.device)

    def sample(self, rows: Tensor, logits: Tensor) -> None:
        """Draw the next token of these rows and note its log-probability at temperature 1.

        Shape: ``rows`` is ``(n,)``, ``logits`` float32 ``(n, vocabulary)``.
        """
        temperature, top_p = self._how[:, rows]
        super().sample(rows, _shaped(logits, temperature[:, None], top_p[:, None]))
        chosen = logits.gather(1, self.latest[rows, None])[:, 0] - torch.logsumexp(logits, dim=-1)
        self._logprobs[rows, self._taken[rows] - 1] = chosen

    def sampled(self, rows: Tensor) -> tuple[list[int], list[int], list[float]]:
        """Return these rows, and the token and log-probability that each sampled last."""
        logprobs = self._logprobs[rows, self._taken[rows] - 1]
        return rows.tolist(), self.latest[rows].tolist(), logprobs.tolist()

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy rows to other rows; they may trade places."""
        super().move(source, target)
        self._how[:, target] = self._how[:, source]


class ServedSampler(HFSampler):
    """Samples each stream as its client asked.

    Args:
        model: As for :class:`trajgym.policies.hf.HFSampler`.
        **options: The same ones, but for the temperature.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)

    def reset(self) -> None:
        """Drop all streams and free the cache."""
        super().reset()
        self._rows: ServedRows = ServedRows(
            self.slots, stop_ids=self._stop_ids, max_length=self.max_length, device=self._device
        )
        self._how: dict[int, Sampling] = {}
        self._fresh: list[Token] = []

    def answer(self, stream: int, how: Sampling, *, max_new_tokens: int) -> None:
        """Ask for the next turn of a stream.

        Args:
            stream: A stream that is not generating.
            how: How to draw it, whatever was drawn in the stream before.
            max_new_tokens: Most tokens of the turn.

        Raises:
            ConfigError: When the budget is below 1 or does not fit.
            EpisodeError: When the stream is generating or closed.
        """
        self.generate(stream, max_new_tokens=max_new_tokens)
        entry = self._find(stream)
        entry.seed, entry.drawn = int64(how.seed), 0
        self._how[stream] = how
        self._rows.settle(entry.row, how)

    def close(self, stream: int) -> None:
        """Free a stream; closing it in mid-turn drops the turn."""
        super().close(stream)
        self._how.pop(stream, None)

    def fresh(self) -> list[Token]:
        """Return the tokens that watched streams have sampled since the last call."""
        tokens, self._fresh = self._fresh, []
        return tokens

    def _sample(self, rows: Tensor, logits: Tensor) -> None:
        super()._sample(rows, logits)
        streams = [self._at[row] for row in rows.tolist()]
        hows = [self._how.get(stream.id) if stream is not None else None for stream in streams]
        if not any(how is not None and (how.watched or how.alternatives) for how in hows):
            return
        most = max(how.alternatives for how in hows if how is not None)
        tops = _most_probable(logits, most) if most else [[] for _ in streams]
        _, ids, logprobs = self._rows.sampled(rows)
        for stream, how, token, logprob, top in zip(streams, hows, ids, logprobs, tops, strict=True):
            if stream is not None and how is not None and (how.watched or how.alternatives):
                self._fresh.append(Token(stream.id, token, logprob, tuple(top[: how.alternatives])))


def _shaped(logits: Tensor, temperature: Tensor, top_p: Tensor) -> Tensor:
    """Return logits of which the draws of temperature 1 are those of each row's own settings.

    Shape: ``logits`` ``(n, vocabulary)``, the settings ``(n, 1)``.
    """
    greedy = temperature == 0.0
    shaped = torch.where(greedy, logits, logits / temperature.where(~greedy, torch.ones_like(temperature)))
    if bool((top_p < 1.0).any()):
        ordered, order = torch.sort(torch.softmax(shaped, dim=-1), dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered  # what the more probable tokens reach without this one
        outside = torch.zeros_like(ordered, dtype=torch.bool).scatter(1, order, (before >= top_p) & (top_p < 1.0))
        shaped = shaped.masked_fill(outside, -torch.inf)
    if bool(greedy.any()):
        best = torch.zeros_like(logits, dtype=torch.bool).scatter(1, logits.argmax(dim=-1, keepdim=True), value=True)
        shaped = shaped.masked_fill(greedy & ~best, -torch.inf)
    return shaped


def _most_probable(logits: Tensor, count: int) -> list[list[tuple[int, float]]]:
    values, ids = torch.log_softmax(logits, dim=-1).topk(min(count, logits.shape[-1]), dim=-1)
    return [list(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]
