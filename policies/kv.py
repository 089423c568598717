"""Keys and values of many streams in one buffer per layer, each row at its own length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache

__all__ = ["Pass", "RowCache"]

_SMALLEST = 64  # positions allocated at first


@dataclass(frozen=True)
class Pass:
    """Where one forward pass of ``(batch, queries)`` tokens reads and writes.

    Args:
        rows: The row of each batch entry; ``None`` for the first ``batch`` rows, which are read without a copy.
        positions: Position of each token in its row, 0 for padding.
        valid: Which tokens are not padding.
        width: How many cached positions are read; 0 when no row has any, so that the tokens see only one another.

    Shape: ``rows`` is ``(batch,)``, ``positions`` and ``valid`` are ``(batch, queries)``.
    """

    rows: Tensor | None
    positions: Tensor
    valid: Tensor
    width: int

    def visible(self) -> Tensor:
        """Return which key each query sees, as bool.

        Padding sees some key as well, or its attention would be 0/0.

        Shape: ``(batch, 1, queries, width)``, or ``(batch, 1, queries, queries)`` when ``width`` is 0.
        """
        queries = self.positions[:, None, :, None]
        if self.width:
            return torch.arange(self.width, device=queries.device) <= queries
        return self.valid[:, None, None, :] & (self.positions[:, None, None, :] <= queries)


class RowCache(Cache):  # type: ignore[misc]
    """A transformers cache whose batch is any choice of its rows.

    Memory follows use: buffers are allocated at the first pass and double along the length as rows grow.

    Args:
        rows: How many streams there is room for.
        max_length: Most positions of a row.

    Shape: each buffer is ``(rows, key/value heads, positions, head size)``.
    """

    def __init__(self, rows: int, max_length: int) -> None:
        super().__init__(layers=[])
        self._rows = rows
        self._max_length = max_length
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}
        self._capacity = 0

    def begin(self, plan: Pass, reach: int) -> None:
        """Prepare for a forward pass.

        Args:
            plan: Where it reads and writes.
            reach: One more than the highest position it writes.
        """
        if reach > self._capacity:
            self._capacity = min(self._max_length, max(_SMALLEST, 2 * self._capacity, reach))
            for layer, (keys, values) in self._buffers.items():
                self._buffers[layer] = (self._longer(keys), self._longer(values))
        self._plan = plan
        # One new token in each of the first rows is the case that counts: nothing is padding, nothing to be looked for.
        self._single = plan.rows is None and plan.positions.shape[1] == 1
        if self._single:
            rows = torch.arange(len(plan.positions), device=plan.positions.device)
            self._to = (rows, plan.positions[:, 0])
        else:
            self._entries = plan.valid.nonzero(as_tuple=True)
            entry = self._entries[0]
            self._to = (entry if plan.rows is None else plan.rows[entry], plan.positions[self._entries])
        self._places: dict[int, Tensor] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values of a layer and return all that its queries may see.

        Shape: in ``(batch, heads, queries, head size)``, out ``(batch, heads, width, head size)``.
        """
        if layer_idx not in self._buffers:
            self._buffers[layer_idx] = (self._empty(key_states), self._empty(value_states))
        keys, values = self._buffers[layer_idx]
        self._write(keys, key_states)
        self._write(values, value_states)
        if not self._plan.width:
            return key_states, value_states
        rows = slice(key_states.shape[0]) if self._plan.rows is None else self._plan.rows
        return keys[rows, :, : self._plan.width], values[rows, :, : self._plan.width]

    def read(self, rows: Tensor, width: int, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Return a copy of the first ``width`` positions of some rows.

        Shape: ``rows`` is ``(n,)``, each result ``(n, heads, width, head size)``.
        """
        keys, values = self._buffers[layer_idx]
        return keys[rows, :, :width], values[rows, :, :width]

    def move(self, source: Tensor, target: Tensor, width: int) -> None:
        """Copy the first ``width`` positions of each source row to its target row; rows may trade places."""
        for pair in self._buffers.values():
            for buffer in pair:
                buffer[target, :, :width] = buffer[source, :, :width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: rows have lengths of their own, and every pass states its positions."""
        return 0

    def _write(self, buffer: Tensor, states: Tensor) -> None:
        heads, size = buffer.shape[1], buffer.shape[3]
        if not self._single:
            entry, query = self._entries
            states = states[entry, :, query]
        buffer.view(-1, size).index_copy_(0, self._places_of(heads), states.reshape(-1, size))

    def _places_of(self, heads: int) -> Tensor:
        """Return where each new token of each head lies in a buffer that is read as a list of vectors."""
        if heads not in self._places:
            row, position = self._to
            head = torch.arange(heads, device=row.device)
            self._places[heads] = ((row[:, None] * heads + head) * self._capacity + position[:, None]).reshape(-1)
        return self._places[heads]

    def _empty(self, states: Tensor) -> Tensor:
        # Zeros, since a masked position still enters attention, times 0: what lay in memory might not be finite.
        shape = (self._rows, states.shape[1], self._capacity, states.shape[3])
        if states.device.type != "cpu":
            return states.new_zeros(shape)
        # The system hands out pages of zeros once they are written to; torch would write to every one of them now.
        raw = np.zeros(math.prod(shape) * states.element_size(), dtype=np.uint8)
        return torch.from_numpy(raw).view(states.dtype).view(shape)

    def _longer(self, buffer: Tensor) -> Tensor:
        longer = self._empty(buffer)
        longer[:, :, : buffer.shape[2]] = buffer
        return longer
