"""How much arithmetic a pass over trajectories needs, with every token in it processed once.

Notation: N weights of the blocks, V·d those of the head; a token that sees c keys costs ``2N + 4·layers·heads·h·c``
floating-point operations forward, h being the width of a head, and ``2Vd`` more where its logits are wanted.

Source: 2N per token, Kaplan et al. 2020, arXiv 2001.08361, with attention counted in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trajgym.trainers.shape import ModelShape
from trajgym.trainers.tree import shared_lengths
from trajgym.types import TokenStream, Trajectory

__all__ = ["Chain", "Work", "chain_of", "forward_flops", "keys_read", "training_flops", "work_of"]

_Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Work:
    """What one pass has to do.

    Args:
        tokens: Tokens that go through the model.
        keys: Keys that they see, summed over tokens; a token sees itself and everything before it.
        logits: Tokens whose logits are wanted.
    """

    tokens: int = 0
    keys: int = 0
    logits: int = 0


@dataclass(frozen=True)
class Chain:
    """What has to happen one after the other in an episode.

    Args:
        steps: Passes of a single token: each sampled token that is followed by another one of its turn.
        seconds: Time of its tools. Calls of one turn run at the same time, so the slowest of a turn counts.
    """

    steps: int
    seconds: float


def work_of(trajectories: Iterable[Trajectory]) -> Work:
    """Return what a pass over these trajectories has to do at least, be it to sample them or to learn from them.

    Whatever rows begin with in common is processed once, whomever they belong to: the prompt of a group, instructions
    of different tasks, the turns before, what was sampled twice. A row's last sampled token, which predicts nothing,
    and what stands behind it are left out.
    """
    rows = [row for trajectory in trajectories for row in trajectory.rows]
    paths, count = _prefixes(rows)
    keys = np.zeros(count, dtype=np.int64)
    wanted = np.zeros(count, dtype=np.bool_)
    for row, path in zip(rows, paths, strict=True):
        keys[path] = np.arange(1, len(path) + 1)
        wanted[path[np.asarray(row.mask[1 : len(path) + 1], dtype=np.bool_)]] = True
    return Work(count, int(keys.sum()), int(wanted.sum()))


def keys_read(trajectories: Iterable[Trajectory], slots: int) -> int:
    """Return how many cached keys the passes of single tokens have to read at least.

    Passes that run at the same time read what their rows begin with in common once. Those of an episode come one
    after the other, so a key is read as often as the episode that needs it most often does, and at least once for
    every ``slots`` passes that need it.

    Args:
        trajectories: The episodes.
        slots: Episodes that can be live at once.
    """
    episodes = [trajectory.rows for trajectory in trajectories if trajectory.rows]
    paths, count = _prefixes([row for rows in episodes for row in rows])
    most, every = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    remaining = iter(paths)
    for rows in episodes:
        own = [next(remaining) for _ in rows]
        # What the k-th token of a row says is read by the passes of the tokens from the k-th on.
        times = [np.cumsum(_passes(row)[::-1])[::-1] for row in rows]
        seen, where = np.unique(np.concatenate(own), return_inverse=True)
        needed = np.zeros(len(seen), dtype=np.int64)
        np.add.at(needed, where, np.concatenate(times))
        most[seen] = np.maximum(most[seen], needed)
        every[seen] += needed
    return int(np.maximum(most, -(-every // slots)).sum())


def chain_of(trajectory: Trajectory) -> Chain:
    """Return what had to happen one after the other in an episode."""
    steps = sum(int(_passes(row).sum()) for row in trajectory.rows)
    slowest = (max((result.seconds for result in step.results), default=0.0) for step in trajectory.steps)
    return Chain(steps, sum(slowest))


def forward_flops(shape: ModelShape, work: Work, *, head: bool = True) -> float:
    """Return the floating-point operations of a forward pass.

    Args:
        shape: The model.
        work: What goes through it.
        head: Whether logits are wanted; a value model has none.
    """
    logits = 2.0 * shape.head * work.logits if head else 0.0
    return 2.0 * shape.body * work.tokens + _attention(shape, work) + logits


def training_flops(shape: ModelShape, work: Work, *, adapters: int | None = None, head: bool = True) -> float:
    """Return the floating-point operations of a forward and a backward pass.

    The backward pass costs as much as two forward ones: one for the gradient of the inputs, one for that of the
    weights. Frozen weights need the first alone. Recomputed activations are not counted: nobody needs them.

    Args:
        shape: The model.
        work: What goes through it.
        adapters: Weights of the low-rank adapters that are trained; ``None`` when everything is.
        head: Whether logits are wanted.
    """
    forward = forward_flops(shape, work, head=head)
    attention = _attention(shape, work)
    if adapters is None:
        return 3.0 * forward
    return 2.0 * (forward - attention) + 3.0 * attention + 6.0 * adapters * work.tokens


def _attention(shape: ModelShape, work: Work) -> float:
    return 4.0 * shape.layers * shape.heads * shape.head_size * work.keys  # scores, and the mean of values


def _prefixes(rows: Sequence[TokenStream]) -> tuple[list[_Ints], int]:
    """Number the different beginnings of rows, each row up to its last sampled token.

    Returns, of each row, the number of the beginning that each token ends; and how many there are.
    """
    cut = [row.ids[: _reach(row)] for row in rows]
    paths: list[_Ints] = [np.empty(0, dtype=np.int64)] * len(rows)
    before, count = np.empty(0, dtype=np.int64), 0
    for r, shared in shared_lengths(cut):
        new = np.arange(count, count + len(cut[r]) - shared)
        before = paths[r] = np.concatenate([before[:shared], new])
        count += len(new)
    return paths, count


def _passes(row: TokenStream) -> NDArray[np.bool_]:
    """Return which tokens in front of the last sampled one go through the model by themselves while it samples."""
    end = _reach(row)
    sampled, turns = np.asarray(row.mask[: end + 1], dtype=np.bool_), np.asarray(row.turns[: end + 1])
    passes: NDArray[np.bool_] = sampled[1:] & sampled[:-1] & (turns[1:] == turns[:-1])
    return passes


def _reach(row: TokenStream) -> int:
    """Return the position of the last sampled token: as many tokens stand before it. 0 where there is none."""
    return len(row.mask) - 1 - row.mask[::-1].index(1) if 1 in row.mask else 0
