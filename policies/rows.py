"""The turns that are being sampled: one row of a few tensors each, so that no Python runs per token and stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trajgym.policies.draws import pick, uniforms

__all__ = ["Rows", "TurnStart"]


@dataclass(frozen=True)
class TurnStart:
    """What a row has to know when a turn begins.

    Args:
        row: Which row.
        position: Where in the stream the turn's first token will stand.
        budget: Most tokens of the turn.
        seed: The stream's seed, as a signed 64-bit integer.
        drawn: How many tokens the stream has sampled in earlier turns.
    """

    row: int
    position: int
    budget: int
    seed: int
    drawn: int


class Rows:
    """State and output of the turns being sampled.

    Args:
        rows: How many there may be.
        stop_ids: Tokens that end a turn.
        temperature: Divides the logits; 0 takes the most probable token.
        max_length: Most tokens of any turn.
        device: Where the model's logits are.

    Attributes:
        position: Where in its stream each row's latest token stands.
        latest: The token sampled last.

    Shape: both attributes are int64 ``(rows,)``.
    """

    def __init__(
        self, rows: int, *, stop_ids: Iterable[int], temperature: float, max_length: int, device: torch.device
    ) -> None:
        self._temperature = temperature
        self._max_length = max_length
        self._stops = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=device)
        self._state = torch.zeros(6, rows, dtype=torch.int64, device=device)
        self.position, self.latest, self._taken, self._budget, self._seed, self._drawn = self._state
        self._done = torch.zeros(rows, dtype=torch.bool, device=device)
        self._ids = torch.zeros(rows, 0, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(rows, 0, device=device)
        self._uniforms = torch.zeros(rows, 0, dtype=torch.float64, device=device)

    def begin(self, turns: Sequence[TurnStart]) -> None:
        """Begin these turns. Their first logits have still to be computed."""
        device = self._state.device
        # One less than the first token's position: sampling moves every row one on.
        columns = [[t.position - 1, 0, 0, t.budget, t.seed, t.drawn] for t in turns]
        rows = torch.tensor([t.row for t in turns], device=device)
        self._state[:, rows] = torch.tensor(columns, device=device).T
        longest, width = max(t.budget for t in turns), self._ids.shape[1]
        if longest > width:
            more = min(self._max_length, max(longest, 2 * width)) - width
            self._ids, self._logprobs, self._uniforms = (
                torch.nn.functional.pad(held, (0, more)) for held in (self._ids, self._logprobs, self._uniforms)
            )
        if self._temperature:
            # All draws of a turn at once: a token alone would take as many operations.
            counters = self._drawn[rows, None] + torch.arange(longest, device=device)
            self._uniforms[rows, :longest] = uniforms(self._seed[rows, None], counters)

    def sample(self, rows: Tensor, logits: Tensor) -> None:
        """Draw the next token of these rows and note its log-probability.

        Shape: ``rows`` is ``(n,)``, ``logits`` float32 ``(n, vocabulary)``.
        """
        if self._temperature not in (0.0, 1.0):
            logits = logits / self._temperature
        logprobs = torch.log_softmax(logits, dim=-1)
        taken = self._taken[rows]
        token = logprobs.argmax(dim=-1) if self._temperature == 0.0 else pick(logprobs, self._uniforms[rows, taken])
        self._ids[rows, taken] = token
        self._logprobs[rows, taken] = logprobs.gather(1, token[:, None])[:, 0]
        self.latest[rows] = token
        self.position[rows] += 1
        self._taken[rows] = taken + 1
        self._done[rows] = torch.isin(token, self._stops) | (taken + 1 >= self._budget[rows])

    def finished(self) -> list[tuple[int, list[int], list[float]]]:
        """Return row, token ids and log-probabilities of each turn that has ended since the last call."""
        done = self._done.nonzero()[:, 0]
        rows = done.tolist()
        if not rows:
            return []
        self._done[done] = False
        lengths = self._taken[done].tolist()
        ids = self._ids[done, : max(lengths)].tolist()
        logprobs = self._logprobs[done, : max(lengths)].tolist()
        return [(row, i[:n], p[:n]) for row, n, i, p in zip(rows, lengths, ids, logprobs, strict=True)]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy rows to other rows; they may trade places."""
        self._state[:, target] = self._state[:, source]
        self._ids[target] = self._ids[source]
        self._logprobs[target] = self._logprobs[source]
        self._uniforms[target] = self._uniforms[source]
