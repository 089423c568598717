"""Keys and values of many streams in one buffer per layer, each row at its own length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
        entry, query = plan.valid.nonzero(as_tuple=True)
        row = entry if plan.rows is None else plan.rows[entry]
        self._plan = plan
        self._from = (entry, slice(None), query)
        self._to = (row, slice(None), plan.positions[entry, query])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values of a layer and return all that its queries may see.

        Shape: in ``(batch, heads, queries, head size)``, out ``(batch, heads, width, head size)``.
        """
        if layer_idx not in self._buffers:
            self._buffers[layer_idx] = (self._empty(key_states), self._empty(value_states))
        keys, values = self._buffers[layer_idx]
        keys[self._to] = key_states[self._from]
        values[self._to] = value_states[self._from]
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

    def _empty(self, states: Tensor) -> Tensor:
        # Zeros, since a masked position still enters attention, times 0: what lay in memory might not be finite.
        return states.new_zeros(self._rows, states.shape[1], self._capacity, states.shape[3])

    def _longer(self, buffer: Tensor) -> Tensor:
        longer = self._empty(buffer)
        longer[:, :, : buffer.shape[2]] = buffer
        return longer
