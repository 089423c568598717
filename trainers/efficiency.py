"""How close an update comes to what the machine allows: a lower bound of its time, and what is lost on the way.

    T_LB = max(generation FLOPs / peak, decode bytes / bandwidth, slowest episode) + learning FLOPs / peak

Where the episodes of the next update are played while this one is learned, both share the device, and only waiting
for environments costs nothing: T_LB = max(all FLOPs / peak, decode bytes / bandwidth, slowest episode).

Every token is processed once, and what trajectories begin with in common once for all of them, whichever task they are
of; so are its keys and values read in each step that samples. Peaks are measured on the machine
(:mod:`trajgym.trainers.peaks`). The share of the bound in the measured time, η, is 1 at best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from trajgym.trainers.credit import turn_tokens
from trajgym.trainers.flops import Chain, Work, chain_of, forward_flops, keys_read, training_flops, work_of
from trajgym.trainers.hardware import peak_host_memory
from trajgym.trainers.metrics import no_signal
from trajgym.trainers.peaks import Peaks
from trajgym.trainers.shape import ModelShape
from trajgym.types import Group, Trajectory

__all__ = ["PARTS", "Efficiency", "Passes", "StepCounts", "count_step", "efficiency", "peak_memory", "telling_tokens"]

Credits: TypeAlias = Sequence[Sequence[Sequence[float | Sequence[float]]]]
"""By group, trajectory and turn: one number, or one per token."""

PARTS = ("generation", "environment", "lockstep", "logprobs", "train", "sync")
"""Parts of an update that :class:`trajgym.trainers.stopwatch.Stopwatch` is to measure.

``generation``: the policy samples. ``environment``: nobody has a turn to write, all wait for their environments.
``lockstep``: some could write, and wait for others' environments. ``logprobs``: passes without gradients. ``train``:
passes with them, and optimiser steps. ``sync``: processes wait for one another, and exchange.
"""


@dataclass(frozen=True)
class Passes:
    """How often an update needs to go through what it learns from.

    Args:
        old: Without gradients, for π_old; 0 or 1.
        reference: Without gradients, for π_ref; 0 or 1.
        train: With gradients: passes over the batch.
        value: Without gradients, through a value model.
        value_train: With gradients, through it.
    """

    old: int = 0
    reference: int = 0
    train: int = 1
    value: int = 0
    value_train: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.old + self.reference + self.train + self.value + self.value_train


@dataclass(frozen=True)
class StepCounts:
    """What an update had to do, and what it did.

    Args:
        generated: To sample everything that was played.
        chains: One per episode.
        read: Cached keys that sampling it reads at least.
        slots: Episodes that can be live at once, over all processes.
        learned: One pass over what the loss acts on.
        passes: How many of those.
        processed: Tokens that really went through models, padding and repetitions included, over all processes.
        telling: Sampled tokens with an advantage that is not 0.
    """

    generated: Work
    chains: tuple[Chain, ...]
    read: int
    slots: int
    learned: Work
    passes: Passes
    processed: int
    telling: int


@dataclass(frozen=True)
class Efficiency:
    """How well an update used the machine.

    Args:
        bound: T_LB in seconds.
        limit: What bounds the rollout: ``"compute"``, ``"bandwidth"`` or ``"latency"`` (of the slowest episode).
        eta: T_LB over the measured time.
        mfu: Share of the peak that the needed operations of the training passes reached, in their own time.
        useful_token_share: Tokens that had to be processed over those that were.
        goodput: Sampled tokens with an advantage that is not 0, per second of the update.
        lockstep_loss: Share of the update's time in which turns could have been written, but had to wait for
            the environments of others; beside the learning, no more of it than was waited for.
    """

    bound: float
    limit: str
    eta: float
    mfu: float
    useful_token_share: float
    goodput: float
    lockstep_loss: float

    def metrics(self) -> dict[str, float]:
        """Return the numbers by their names in the log."""
        names = ("bound", "eta", "mfu", "useful_token_share", "goodput", "lockstep_loss")
        return {f"efficiency/{name}": getattr(self, name) for name in names}


def count_step(
    played: Sequence[Trajectory],
    groups: Sequence[Group],
    advantages: Credits,
    *,
    passes: Passes,
    slots: int,
    processed: int,
    kl_acts: bool = False,
) -> StepCounts:
    """Count what an update had to do.

    Args:
        played: Everything that was sampled in it, by all processes.
        groups: What was learned from.
        advantages: Of every group.
        passes: How often.
        slots: Episodes that can be live at once, over all processes.
        processed: Tokens that went through models, padding included: what the samplers computed, and the padded tokens
            of each pass of each micro-batch; over all processes.
        kl_acts: Whether trajectories without a signal are learned from as well, because a KL acts on them.
    """
    learned = [
        trajectory
        for group, credit in zip(groups, advantages, strict=True)
        for trajectory, turns in zip(group.trajectories, credit, strict=True)
        if kl_acts or not no_signal([turns])
    ]
    return StepCounts(
        generated=work_of(played),
        chains=tuple(map(chain_of, played)),
        read=keys_read(played, slots),
        slots=slots,
        learned=work_of(learned),
        passes=passes,
        processed=processed,
        telling=telling_tokens(groups, advantages),
    )


def telling_tokens(groups: Sequence[Group], advantages: Credits) -> int:
    """Return how many sampled tokens have an advantage that is not 0.

    Args:
        groups: The batch.
        advantages: Of every group.
    """
    count = 0
    for group, credit in zip(groups, advantages, strict=True):
        for trajectory, turns in zip(group.trajectories, credit, strict=True):
            for tokens, advantage in zip(turn_tokens(trajectory), turns, strict=True):
                if isinstance(advantage, Sequence):
                    count += sum(a != 0.0 for a in advantage)
                elif advantage != 0.0:
                    count += tokens
    return count


def efficiency(
    shape: ModelShape,
    counts: StepCounts,
    seconds: Mapping[str, float],
    total: float,
    peaks: Peaks,
    *,
    itemsize: int = 4,
    adapters: int | None = None,
    ranks: int = 1,
    waited: float | None = None,
    workers: int = 0,
) -> Efficiency:
    """Compare an update with the least time it could take.

    Args:
        shape: The policy's sizes; a value model is taken to be as large.
        counts: From :func:`count_step`.
        seconds: By part; see :data:`PARTS`. A missing part took no time.
        total: Of the whole update, in seconds.
        peaks: Of one device.
        itemsize: Bytes of a weight and of a cached number.
        adapters: Weights of the adapters that are trained; ``None`` when everything is.
        ranks: Processes, with a device each, that shared the work.
        waited: Seconds that the learning waited for episodes that are played beside it; ``None`` where they are played
            in front of it.
        workers: Processes that played in their place, taken to have a device each. Where they share one, the bound is
            lower than it could be, and still a bound.
    """
    flops, players = peaks.flops * ranks, workers or ranks
    passes, learned = counts.passes, counts.learned

    weights = itemsize * (shape.body + shape.head)  # read once for each step of the streams that are live together
    one_step = weights / peaks.bandwidth
    steps = [chain.steps for chain in counts.chains]
    together = max(max(steps, default=0), math.ceil(sum(steps) / max(1, counts.slots)))
    cache = itemsize * shape.kv_numbers * counts.read
    rollout = {
        "compute": forward_flops(shape, counts.generated) / (peaks.flops * players),
        "bandwidth": together * one_step + cache / (peaks.bandwidth * players),
        "latency": max((chain.steps * one_step + chain.seconds for chain in counts.chains), default=0.0),
    }
    train = passes.train * training_flops(shape, learned, adapters=adapters)
    others = (passes.old + passes.reference) * forward_flops(shape, learned)
    others += passes.value * forward_flops(shape, learned, head=False)
    value_train = passes.value_train * training_flops(shape, learned, adapters=adapters, head=False)

    learning = (train + value_train + others) / flops
    if waited is not None and not workers:
        rollout["compute"] += learning  # both on the same device
    limit = max(rollout, key=lambda name: rollout[name])
    bound = rollout[limit] + learning if waited is None else max(rollout[limit], learning)
    lockstep = seconds.get("lockstep", 0.0)
    needed = counts.generated.tokens + passes.total * learned.tokens
    training = seconds.get("train", 0.0)
    return Efficiency(
        bound=bound,
        limit=limit,
        eta=_share(bound, total),
        mfu=_share((train + value_train) / flops, training),
        useful_token_share=_share(needed, counts.processed),
        goodput=_share(counts.telling, total),
        lockstep_loss=_share(lockstep if waited is None else min(lockstep, waited), total),
    )


def peak_memory(device: str) -> int:
    """Return the most memory held on a device, in bytes: since the process began, or on a GPU since the last call.

    Args:
        device: ``"cpu"``, ``"cuda"``, …
    """
    import torch

    place = torch.device(device)
    if place.type != "cuda":
        return peak_host_memory()
    peak = torch.cuda.max_memory_allocated(place)
    torch.cuda.reset_peak_memory_stats(place)
    return peak


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
