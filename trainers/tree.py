"""Rows that begin alike, laid out as a tree in which every shared token stands once.

The members of a group begin with the same prompt, tasks of one environment with the same instructions, and the rows of
a trajectory with the turns before. Whatever acts on single tokens (projections, feed-forward parts, norms: most of a
pass) runs once per token of the tree. Attention alone runs row by row: a token sees the tokens of its own row up to
itself, so the result is that of separate rows, and so is the gradient, which adds up over the rows that share a token.

>>> tree = make_tree([[7, 8, 1, 2], [7, 8, 3], [7, 8, 1, 5]], [[3], [2], [2, 3]])
>>> tree.ids.tolist(), tree.positions.tolist()
([[7, 8, 1]], [[0, 1, 2]])
>>> tree.where.tolist()  # which token's state predicts 2; 3; 1 and 5
[2, 1, 1, 2]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Attention", "Tree", "make_tree", "shared_lengths"]

_Ints = NDArray[np.int64]

_FILL = 0.6  # least share of a call's scores that a row must use for itself
_SHORT = 16 * 64  # scores below which a call of its own costs more than padding


@dataclass(frozen=True)
class Attention:
    """Rows whose attention is computed in one call, padded on the right.

    Args:
        queries: Tokens of the tree that ask. Shape: (S, Q).
        keys: Tokens of the tree that they may see, a row's tokens in their order. Shape: (S, K).
        seen: Which key each query sees; ``None`` where queries are the keys, and each sees those up to itself. Shape:
            (S, 1, Q, K).
    """

    queries: Tensor
    keys: Tensor
    seen: Tensor | None


@dataclass(frozen=True)
class Tree:
    """Rows as one sequence of tokens.

    Args:
        ids: Token ids. Shape: (1, N).
        positions: Of each token in its row. Shape: (1, N).
        where: The token whose state predicts each sampled one, row by row. Shape: (M,).
        calls: Who sees whom.
        places: Of each token, which of all results of the calls is its own: calls one after the other, and their
            queries row by row. Shape: (N,).
        longest: Tokens of the longest row.
    """

    ids: Tensor
    positions: Tensor
    where: Tensor
    calls: tuple[Attention, ...]
    places: Tensor
    longest: int

    def on(self, device: torch.device) -> Tree:
        """Return a copy on ``device``."""
        calls = tuple(
            Attention(c.queries.to(device), c.keys.to(device), None if c.seen is None else c.seen.to(device))
            for c in self.calls
        )
        return Tree(
            self.ids.to(device),
            self.positions.to(device),
            self.where.to(device),
            calls,
            self.places.to(device),
            self.longest,
        )


def shared_lengths(rows: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Yield ``(row, shared)`` for each row, by number: how many of its tokens have stood in a row before.

    Rows come in the order of their tokens, in which the row just before has the longest common beginning of all.

    >>> list(shared_lengths([[1, 2, 3], [5], [1, 2, 4, 4], [1, 2]]))
    [(3, 0), (0, 2), (2, 2), (1, 0)]
    """
    keys = [tuple(row) for row in rows]
    before: _Ints = np.empty(0, dtype=np.int64)
    for r in sorted(range(len(rows)), key=keys.__getitem__):
        row = np.asarray(keys[r], dtype=np.int64)
        most = min(len(row), len(before))
        differ = np.flatnonzero(row[:most] != before[:most])
        yield r, int(differ[0]) if len(differ) else most
        before = row


def make_tree(rows: Sequence[Sequence[int]], sampled: Sequence[Sequence[int]]) -> Tree:
    """Lay out rows. What stands at and behind a row's last sampled token predicts nothing and is left out.

    Args:
        rows: Token ids.
        sampled: Positions of the sampled tokens of each row, ascending, none of them 0; at least one.
    """
    ends = [positions[-1] for positions in sampled]
    cut = [row[:end] for row, end in zip(rows, ends, strict=True)]
    paths: list[_Ints] = [np.empty(0, dtype=np.int64)] * len(rows)
    shared = [0] * len(rows)
    ids: list[int] = []
    positions: list[int] = []
    before: _Ints = np.empty(0, dtype=np.int64)
    for r, known in shared_lengths(cut):
        new = np.arange(len(ids), len(ids) + ends[r] - known)
        before = paths[r] = np.concatenate([before[:known], new])
        shared[r] = known
        ids += cut[r][known:]
        positions += range(known, ends[r])
    where = np.concatenate([path[np.asarray(at) - 1] for path, at in zip(paths, sampled, strict=True)])

    calls, places, offset = [], np.empty(len(ids), dtype=np.int64), 0
    for members, whole in _calls(ends, shared):
        starts = [0 if whole else shared[r] for r in members]
        call = _attention([paths[r] for r in members], starts, whole)
        width = call.queries.shape[1]
        for line, (r, start) in enumerate(zip(members, starts, strict=True)):
            own = np.arange(shared[r], ends[r])
            places[paths[r][own]] = offset + line * width + own - start
        offset += call.queries.numel()
        calls.append(call)
    return Tree(
        torch.tensor([ids]),
        torch.tensor([positions]),
        torch.from_numpy(where),
        tuple(calls),
        torch.from_numpy(places),
        longest=max(ends),
    )


def _calls(ends: Sequence[int], shared: Sequence[int]) -> list[tuple[list[int], bool]]:
    """Deal rows to calls of similar size; returns each call's rows, and whether they ask for all of their tokens.

    A row of n tokens, t of them its own, costs t·n scores behind a mask, or n²/2 where every token asks and no mask is
    needed. Rows that own nothing ask nothing.
    """
    own = [end - known for end, known in zip(ends, shared, strict=True)]
    out = []
    for whole in (True, False):
        rows = [r for r, n in enumerate(ends) if own[r] and (2 * own[r] >= n) == whole]
        asked = ends if whole else own
        rows.sort(key=lambda r: (-asked[r], -ends[r]))
        members: list[int] = []
        queries = keys = 0
        for r in rows:
            longest = max(keys, ends[r])
            scores = queries * longest
            if members and asked[r] * ends[r] < _FILL * scores and scores > _SHORT:
                out.append((members, whole))
                members, longest = [], ends[r]
            if not members:
                queries = asked[r]
            members.append(r)
            keys = longest
        if members:
            out.append((members, whole))
    return out


def _attention(paths: Sequence[_Ints], starts: Sequence[int], whole: bool) -> Attention:
    """Pad rows; what is padded points to token 0, and no result of it is read."""
    keys = _padded(paths)
    if whole:
        return Attention(keys, keys, None)
    queries = _padded([path[start:] for path, start in zip(paths, starts, strict=True)])
    # The query at place q of its row sees the keys 0 … q; padding sees key 0 at least, which keeps it finite.
    last = torch.tensor(starts)[:, None] + torch.arange(queries.shape[1])
    seen = torch.arange(keys.shape[1]) <= last[:, :, None]
    return Attention(queries, keys, seen[:, None])


def _padded(rows: Sequence[_Ints]) -> Tensor:
    out = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for line, row in enumerate(rows):
        out[line, : len(row)] = torch.from_numpy(row)
    return out
