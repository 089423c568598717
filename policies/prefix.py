"""What several streams begin with, read once for all of them while each goes on by itself.

A step that samples one token in each of some streams is bound by memory: it reads every key and value of every stream
once, and the trajectories of a group begin with the same prompt. So the attention over what is common is computed for
all members together, from one copy, and the attention over the rest for each; softmax lets the two be put together
exactly, with the logarithm of each one's sum. That pays on processors; a GPU's own kernels do not give that sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trajgym.policies.kv import RowCache

__all__ = ["CommonPrefix", "common_prefix"]


def _find_flash() -> Any:
    """Return what scaled_dot_product_attention calls on a processor, with the sums that it keeps to itself.

    It is no part of torch's interface: ``None`` where it is not there, or is not what it was.
    """
    flash: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    one = torch.ones(1, 1, 1, 8)
    try:
        found = flash(one, one, one, attn_mask=torch.zeros(1, 1, 1, 1), scale=0.5)
        return flash if [tuple(part.shape) for part in found] == [(1, 1, 1, 8), (1, 1, 1)] else None
    except Exception:
        return None


_flash = _find_flash()
_LEAST_LENGTH, _LEAST_SHARE = 128, 0.2  # positions shared, and share of all that is read saved, for which that pays


@dataclass
class CommonPrefix:
    """A plan of who shares what among the first rows of a cache.

    Args:
        length: Positions that are shared, the same number in every set of rows.
        members: The rows of each set; sets that are smaller than the largest are filled up with their first row.
        place: Where in ``members``, read in order, each row stands.
        key: Equal where what is held is equal.
        held: Keys and values of each set, by layer; filled as layers are asked for.

    Shape: ``members`` is int64 ``(sets, most members)``, ``place`` is ``(rows,)``.
    """

    length: int
    members: Tensor
    place: Tensor
    key: tuple[object, ...]
    held: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, scale: float, cache: RowCache, layer: int
    ) -> Tensor:
        """Return what every query makes of its row's keys.

        Args:
            queries: Of one new token per row; those that share a head of keys stand together.
            keys: Of each row from its first position on.
            values: Likewise.
            mask: 0 where a key is seen, −∞ where it is not.
            scale: Multiplies the scores.
            cache: Where the keys are from.
            layer: Which layer.

        Shape: ``queries`` is ``(rows, heads of keys, queries each, head size)``, ``keys`` and ``values``
        ``(rows, heads of keys, width, head size)``, ``mask`` ``(rows, 1, 1, width)``; the result is as ``queries``.
        """
        _, heads, each, size = queries.shape
        sets, most = self.members.shape
        if layer not in self.held:
            self.held[layer] = cache.read(self.members[:, 0], self.length, layer)
        together = queries[self.members].transpose(1, 2).reshape(sets, heads, most * each, size)
        begun, begun_sum = _attention(together, *self.held[layer], scale=scale)
        rest = slice(self.length, None)
        gone_on, rest_sum = _attention(
            queries, keys[:, :, rest], values[:, :, rest], attn_mask=mask[..., rest], scale=scale
        )
        begun = begun.view(sets, heads, most, each, size).transpose(1, 2).reshape(-1, heads, each, size)[self.place]
        begun_sum = begun_sum.view(sets, heads, most, each).transpose(1, 2).reshape(-1, heads, each)[self.place]
        # softmax over both parts: each one's own softmax, weighed by its share of the sum of exponentials.
        share = torch.sigmoid(begun_sum - rest_sum).unsqueeze(-1).to(begun.dtype)
        return torch.lerp(gone_on, begun, share)


def common_prefix(
    prompts: Sequence[tuple[int, ...]], width: int, device: torch.device, before: CommonPrefix | None = None
) -> CommonPrefix | None:
    """Return how rows can share what they begin with, or ``None`` where that would not pay.

    Args:
        prompts: What the stream in each row began with; it has grown since.
        width: Positions that are read of every row otherwise.
        device: Where the cache is.
        before: An earlier plan for the same cache, whose keys and values are taken over where they are the same.
    """
    if device.type != "cpu" or _flash is None:
        return None
    sets: dict[tuple[int, ...], list[int]] = {prompt: [] for prompt in sorted(set(prompts))}
    for row, prompt in enumerate(prompts):
        sets[prompt].append(row)
    different = list(sets)
    # What the first and the last of a sorted list have in common, all of them have.
    ends = zip(different[0], different[-1], strict=False)
    for_all = next((i for i, (a, b) in enumerate(ends) if a != b), min(len(different[0]), len(different[-1])))
    each = (min(map(len, different)), list(sets.values()))
    everybody = (for_all, [list(range(len(prompts)))])
    length, members = max(each, everybody, key=lambda way: way[0] * (len(prompts) - len(way[1])))
    saved = length * (len(prompts) - len(members)) / (width * len(prompts))
    if length < _LEAST_LENGTH or saved < _LEAST_SHARE:
        return None
    most = max(map(len, members))
    place = {row: s * most + k for s, rows in enumerate(members) for k, row in enumerate(rows)}
    filled = [rows + rows[:1] * (most - len(rows)) for rows in members]
    plan = CommonPrefix(
        length,
        torch.tensor(filled, device=device),
        torch.tensor([place[row] for row in range(len(prompts))], device=device),
        key=(length, *(prompts[rows[0]][:length] for rows in members)),
    )
    if before is not None and before.key == plan.key:
        plan.held.update(before.held)
    return plan


def _attention(
    queries: Tensor, keys: Tensor, values: Tensor, *, scale: float, **options: Tensor
) -> tuple[Tensor, Tensor]:
    """Return attention, and the logarithm of the sum of exponentials that softmax divides by, in float32."""
    found: tuple[Tensor, Tensor] = _flash(queries, keys, values, scale=scale, **options)
    return found
