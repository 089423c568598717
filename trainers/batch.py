"""Trajectories and their advantages as tensors.

Rows are cut into micro-batches of a bounded number of tokens: sorted by length and padded, or where the model can run
on them, as trees of what they have in common. The sum over micro-batches does not depend on how they are cut.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trajgym.errors import ConfigError, RewardError, TrainingError, UnknownNameError
from trajgym.trainers.tree import Tree, make_tree
from trajgym.types import TokenStream, Trajectory

__all__ = ["NORMALIZERS", "Batch", "Counts", "MicroBatch", "make_batch", "normalizer_from", "normalizer_value"]

NORMALIZERS = ("constant", "token", "turn", "sequence")

_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class MicroBatch:
    """Some rows, padded on the right.

    Args:
        ids: Token ids. Shape: (B, L).
        policy: True at position p where token p + 1 was sampled by the policy. Shape: (B, L − 1). All fields below have
            one entry per true position, row by row.
        advantages: Advantage times ``row_weights``. Shape: (N,).
        sampler_logp: What the sampler said of the token, in nats. Shape: (N,).
        row_weights: Weight of the token's trajectory, for terms other than the advantage. Shape: (N,).
        turns: Number of the token's turn within this micro-batch, from 0; no two trajectories share one. Shape: (N,).
        trajectories: Number of the token's trajectory within this micro-batch, from 0. Shape: (N,).
        places: Of each token, the index of its trajectory among those the batch was made from, and its turn there.
        tree: The same rows with every shared beginning once, for models that can run on it.
    """

    ids: Tensor
    policy: Tensor
    advantages: Tensor
    sampler_logp: Tensor
    row_weights: Tensor
    turns: Tensor
    trajectories: Tensor
    places: tuple[tuple[int, int], ...]
    tree: Tree | None = None

    @property
    def computed(self) -> int:
        """Tokens that a pass computes, padding included."""
        return self.ids.numel() if self.tree is None else self.tree.ids.numel()

    def to(self, device: torch.device) -> MicroBatch:
        """Return a copy on ``device``."""
        return MicroBatch(
            ids=self.ids.to(device),
            policy=self.policy.to(device),
            advantages=self.advantages.to(device),
            sampler_logp=self.sampler_logp.to(device),
            row_weights=self.row_weights.to(device),
            turns=self.turns.to(device),
            trajectories=self.trajectories.to(device),
            places=self.places,
            tree=None if self.tree is None else self.tree.on(device),
        )


@dataclass(frozen=True)
class Batch:
    """Everything one optimiser step needs.

    Args:
        micro: The micro-batches.
        normalizer: Z of the loss.
        policy_tokens: Sampled tokens in the batch.
        padded_tokens: Tokens computed per forward pass, padding included.
    """

    micro: tuple[MicroBatch, ...]
    normalizer: float
    policy_tokens: int
    padded_tokens: int


@dataclass(frozen=True)
class Counts:
    """What Z is computed from. Counts of micro-batches and of ranks add up.

    Args:
        trajectories: Number of trajectories.
        turns: Their turns.
        tokens: The tokens the policy sampled in them.
    """

    trajectories: int = 0
    turns: int = 0
    tokens: int = 0

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> Counts:
        """Count these trajectories."""
        return cls(len(trajectories), sum(len(t.steps) for t in trajectories), sum(map(_sampled, trajectories)))

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.trajectories + other.trajectories, self.turns + other.turns, self.tokens + other.tokens)


def normalizer_from(kind: str, counts: Counts, *, constant: int) -> float:
    """Return Z of an optimiser step.

    Args:
        kind: ``"constant"``, number of trajectories × ``constant``, which no action of the policy can change;
            ``"token"`` and ``"turn"``, number of sampled tokens or turns; ``"sequence"``, number of trajectories, each
            of which is to be averaged over its tokens (the original GRPO).
        counts: Of all valid trajectories of the step, on all ranks, those without a signal included.
        constant: Tokens that a trajectory counts as, at least 1.

    Raises:
        UnknownNameError: For another kind.
        ConfigError: When ``constant`` is below 1.

    Source: constant, Dr. GRPO, arXiv 2503.20783; token, DAPO, arXiv 2503.14476; sequence, GRPO, arXiv 2402.03300.

    >>> ranks = Counts(trajectories=2, turns=3, tokens=40) + Counts(trajectories=1, turns=5, tokens=8)
    >>> [normalizer_from(kind, ranks, constant=20) for kind in NORMALIZERS]
    [60.0, 48.0, 8.0, 3.0]
    """
    if constant < 1:
        raise ConfigError(f"The constant of the normalizer must be at least 1 token per trajectory, got {constant!r}.")
    if kind not in NORMALIZERS:
        raise UnknownNameError("normalizer", kind, NORMALIZERS)
    sizes = {
        "constant": counts.trajectories * constant,
        "token": counts.tokens,
        "turn": counts.turns,
        "sequence": counts.trajectories,
    }
    return float(max(1, sizes[kind]))


def normalizer_value(kind: str, trajectories: Sequence[Trajectory], *, constant: int) -> tuple[float, list[float]]:
    """Return Z of these trajectories and the weight of each one's tokens.

    Args:
        kind: See :func:`normalizer_from`.
        trajectories: All valid ones of the optimiser step, those without a signal included.
        constant: Tokens that a trajectory counts as, at least 1.

    Returns:
        Z, and per trajectory 1, or for ``"sequence"`` one over its sampled tokens.
    """
    z = normalizer_from(kind, Counts.of(trajectories), constant=constant)
    return z, [1.0 / max(1, _sampled(t)) if kind == "sequence" else 1.0 for t in trajectories]


def make_batch(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[Sequence[float | Sequence[float]]],
    *,
    normalizer: float,
    pad_id: int,
    max_tokens: int,
    row_weights: Sequence[float] | None = None,
    keep_together: bool = False,
    share: bool = False,
) -> Batch:
    """Lay out trajectories for the loss.

    Args:
        trajectories: With token rows.
        advantages: One per turn of each trajectory: a number, or one for each token the policy sampled in that turn.
        normalizer: Z, from :func:`normalizer_value`.
        pad_id: Token id to pad with; never attended to by a real token.
        max_tokens: Most padded tokens of a micro-batch, or with ``share`` most tokens of its rows; what cannot be
            divided may exceed it.
        row_weights: Weight of each trajectory's tokens, from :func:`normalizer_value`.
        keep_together: Put all rows of a trajectory into one micro-batch, as a ratio over whole trajectories needs.
        share: Put rows that begin alike side by side, and make a tree of each micro-batch.

    Raises:
        ConfigError: When a trajectory has no token rows (its policy has no tokens to train).
        RewardError: When advantages are not finite or not as many as there are turns or tokens, naming which.
        TrainingError: When a row is malformed: a turn in two rows, or a sampled token that belongs to no turn.
    """
    weights = [1.0] * len(trajectories) if row_weights is None else row_weights
    for name, given in (("advantages", advantages), ("row_weights", weights)):
        if len(given) != len(trajectories):
            raise RewardError(f"Got {name} for {len(given)} trajectories, but there are {len(trajectories)}.")
    units: list[list[_Row]] = []
    for i, (trajectory, turns, weight) in enumerate(zip(trajectories, advantages, weights, strict=True)):
        rows = _rows(i, trajectory, turns, weight)
        units += [rows] if keep_together and rows else [[row] for row in rows]
    cut = _by_beginning(units, max_tokens) if share else _by_length(units, max_tokens)
    micro = tuple(_micro(rows, pad_id, share) for rows in cut)
    return Batch(
        micro,
        normalizer,
        policy_tokens=sum(len(m.places) for m in micro),
        padded_tokens=sum(m.computed for m in micro),
    )


@dataclass(frozen=True)
class _Row:
    """A token row with one advantage and one place (trajectory, turn) per sampled token."""

    stream: TokenStream
    positions: list[int]
    advantages: list[float]
    places: list[tuple[int, int]]
    weight: float


def _rows(index: int, trajectory: Trajectory, turns: Sequence[float | Sequence[float]], weight: float) -> list[_Row]:
    """Return the rows of a trajectory in which the policy sampled something."""
    if not trajectory.rows:
        raise ConfigError("A trajectory without token rows cannot be trained on; sample it with an LLM policy.")
    if len(turns) != len(trajectory.steps):
        raise RewardError(
            f"Trajectory {index} has {len(trajectory.steps)} turns, but {len(turns)} advantages; an estimator gives "
            "one per turn."
        )
    sampled: Counter[int] = Counter()
    for row in trajectory.rows:
        here = Counter(turn for turn, mine in zip(row.turns, row.mask, strict=True) if mine)
        if twice := sampled.keys() & here.keys():
            raise TrainingError(f"Turn {min(twice)} of trajectory {index} lies in two rows; a turn is one row's.")
        if not all(0 <= turn < len(turns) for turn in here):
            raise TrainingError(
                f"Trajectory {index} has {len(turns)} turns, but sampled tokens that are marked with the turns "
                f"{sorted(here)}."
            )
        if row.mask and row.mask[0]:
            raise TrainingError(f"The first token of a row of trajectory {index} was sampled without any context.")
        sampled += here
    # A turn's tokens stand in one row, so they are met in order.
    credit = [iter(_per_token(a, sampled[t], index, t)) for t, a in enumerate(turns)]
    rows = []
    for row in trajectory.rows:
        positions = [p for p, mine in enumerate(row.mask) if mine]
        if positions:
            values = [weight * next(credit[row.turns[p]]) for p in positions]
            rows.append(_Row(row, positions, values, [(index, row.turns[p]) for p in positions], weight))
    return rows


def _per_token(advantage: float | Sequence[float], count: int, index: int, turn: int) -> Iterator[float]:
    """Yield the advantage of each of a turn's tokens."""
    where = f"trajectory {index}, turn {turn}"
    if isinstance(advantage, Sequence):
        values = [float(a) for a in advantage]
        if len(values) != count:
            raise RewardError(f"Got {len(values)} advantages for the {count} sampled tokens of {where}.")
    else:
        values = [float(advantage)]
    for value in values:
        if not math.isfinite(value) or abs(value) > _LARGEST:
            raise RewardError(f"The advantage of {where} is {value!r}; advantages must be finite numbers.")
    return iter(values) if isinstance(advantage, Sequence) else itertools.repeat(values[0], count)


def _by_length(units: list[list[_Row]], max_tokens: int) -> Iterator[list[_Row]]:
    """Put units of similar length together, so that little is padded."""
    together: list[_Row] = []
    for unit in sorted(units, key=_longest):
        # Sorted by length: the unit that comes last sets the width.
        if together and (len(together) + len(unit)) * _longest(unit) > max_tokens:
            yield together
            together = []
        together.extend(unit)
    if together:
        yield together


def _by_beginning(units: list[list[_Row]], max_tokens: int) -> Iterator[list[_Row]]:
    """Put units together that begin alike, in micro-batches of similar size, so that ranks get equal shares."""
    sizes = [sum(len(row.stream.ids) for row in unit) for unit in units]
    total = sum(sizes)
    share = total / max(1, math.ceil(total / max(1, max_tokens)))
    together: list[_Row] = []
    size = done = begun = 0
    for i in sorted(range(len(units)), key=lambda i: units[i][0].stream.ids):
        # Full, or past the middle of what is this micro-batch's share of everything.
        if together and (size + sizes[i] > max_tokens or done + sizes[i] / 2 > share * begun):
            yield together
            together, size = [], 0
        if not together:
            begun += 1
        together.extend(units[i])
        size, done = size + sizes[i], done + sizes[i]
    if together:
        yield together


def _micro(rows: Sequence[_Row], pad_id: int, share: bool) -> MicroBatch:
    length = max(len(row.stream.ids) for row in rows)
    ids = torch.full((len(rows), length), pad_id, dtype=torch.long)
    policy = torch.zeros((len(rows), length - 1), dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row.stream.ids)] = torch.tensor(row.stream.ids)
        policy[i, torch.tensor(row.positions) - 1] = True
    places = tuple(place for row in rows for place in row.places)
    return MicroBatch(
        ids,
        policy,
        advantages=torch.tensor([a for row in rows for a in row.advantages]),
        sampler_logp=torch.tensor([row.stream.logprobs[p] for row in rows for p in row.positions]),
        row_weights=torch.tensor([row.weight for row in rows for _ in row.positions]),
        turns=_numbered(places),
        trajectories=_numbered([trajectory for trajectory, _ in places]),
        places=places,
        tree=make_tree([row.stream.ids for row in rows], [row.positions for row in rows]) if share else None,
    )


def _numbered(keys: Sequence[object]) -> Tensor:
    """Return a number per entry, counted in order of first appearance; equal keys have equal numbers."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return torch.tensor([numbers[key] for key in keys], dtype=torch.long)


def _longest(rows: Sequence[_Row]) -> int:
    return max(len(row.stream.ids) for row in rows)


def _sampled(trajectory: Trajectory) -> int:
    """Return the number of tokens the policy sampled."""
    return sum(sum(row.mask) for row in trajectory.rows)
