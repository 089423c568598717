"""How much arithmetic a pass over trajectories needs, with every token in it processed once.

Notation: N weights of the blocks, V·d those of the head; a token that sees c keys costs ``2N + 4·layers·heads·h·c``
floating-point operations forward, h being the width of a head, and ``2Vd`` more where its logits are wanted.

Source: 2N per token, Kaplan et al. 2020, arXiv 2001.08361, with attention counted in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trajgym.trainers.shape import ModelShape
from trajgym.trainers.tree import shared_lengths
from trajgym.types import TokenStream, Trajectory

__all__ = ["Chain", "Work", "chain_of", "forward_flops", "learning_work", "training_flops", "work_of"]


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

    def __add__(self, other: Work) -> Work:
        return Work(self.tokens + other.tokens, self.keys + other.keys, self.logits + other.logits)


@dataclass(frozen=True)
class Chain:
    """What has to happen one after the other in an episode.

    Args:
        steps: Passes of a single token: each sampled token that is followed by another one of its turn.
        keys: Cached keys that these passes read.
        seconds: Time of its tools. Calls of one turn run at the same time, so the slowest of a turn counts.
    """

    steps: int
    keys: int
    seconds: float


def work_of(trajectories: Iterable[Trajectory]) -> Work:
    """Return what a pass over these trajectories has to do at least.

    The prompt of a task is processed once for all its trajectories. Where an episode is several rows, what a row has
    in common with the one before it is processed once too. A row's last sampled token, which predicts nothing, and
    what stands behind it are left out.
    """
    firsts: dict[str, TokenStream] = {}
    total = Work()
    for trajectory in trajectories:
        before: TokenStream | None = None
        for row in trajectory.rows:
            first = firsts.get(trajectory.task.id)
            if before is not None:
                shared = _common(row.ids, before.ids, min(_reach(row), _reach(before)))
            elif first is not None:
                shared = _common(row.ids, first.ids, min(_prompt(row), _prompt(first)))
            else:
                firsts[trajectory.task.id], shared = row, 0
            total += _row_work(row, shared)
            before = row
    return total


def learning_work(trajectories: Iterable[Trajectory]) -> Work:
    """Return what a pass that learns from these trajectories has to do at least.

    All tokens are known beforehand, so whatever rows begin with in common is processed once: prompts, instructions of
    different tasks, what was sampled twice.
    """
    rows = [row for trajectory in trajectories for row in trajectory.rows]
    total = Work()
    for r, shared in shared_lengths([row.ids[: _reach(row)] for row in rows]):
        total += _row_work(rows[r], shared)
    return total


def chain_of(trajectory: Trajectory) -> Chain:
    """Return what had to happen one after the other in an episode."""
    steps = keys = 0
    for row in trajectory.rows:
        for position in range(1, len(row.ids)):
            if row.mask[position] and row.mask[position - 1] and row.turns[position] == row.turns[position - 1]:
                steps += 1
                keys += position
    slowest = (max((result.seconds for result in step.results), default=0.0) for step in trajectory.steps)
    return Chain(steps, keys, sum(slowest))


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


def _row_work(row: TokenStream, shared: int) -> Work:
    end = _reach(row)
    if end <= shared:
        return Work()
    logits = sum(row.mask[shared + 1 : end + 1])
    return Work(end - shared, (end * (end + 1) - shared * (shared + 1)) // 2, logits)


def _prompt(row: TokenStream) -> int:
    """Return the position of the first sampled token, or the length of a row that has none."""
    return row.mask.index(1) if 1 in row.mask else len(row.mask)


def _reach(row: TokenStream) -> int:
    """Return the position of the last sampled token: as many tokens stand before it. 0 where there is none."""
    return len(row.mask) - 1 - row.mask[::-1].index(1) if 1 in row.mask else 0


def _common(a: Sequence[int], b: Sequence[int], most: int) -> int:
    """Return how many tokens the two begin with in common, at most ``most``."""
    low, high = 0, most
    while low < high:  # whole slices compare faster than tokens one by one
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
