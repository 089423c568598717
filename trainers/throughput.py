"""How many trajectories per second a run with rollout workers gets, and what is in the way of more.

An update has B trajectories, which workers play in pieces of g. Its stages, each with the trajectories per second that
it could do if nothing else were in the way:

    workers   N·g / p                 N workers, each p seconds at a piece
    weights   B / (T_send + T_load)   they reach all machines, and every worker copies them into its model
    ingest    min(b / s, 1 / q)       s bytes of a trajectory over the trainer's link, and q seconds to read them
    credit    1 / c                   the trainer's own work on a trajectory, before learning
    learner   1 / l                   passes and optimiser steps

One update after the other takes the sum of the stages' times; stages that overlap without end, the longest of them.

Weights spread over machines as a tree: whoever has them sends them to one who has not, so that 1 + 2 + 4 + … machines
have them after each round of W / b seconds. Workers of one machine share one copy.

Source: number of trajectories under way, and with it their staleness, by Little's law, Operations Research 9 (1961),
383–387.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trajgym.errors import ConfigError

__all__ = ["Costs", "Forecast", "forecast", "send_seconds", "workers_needed"]


@dataclass(frozen=True)
class Costs:
    """What one unit of each kind of work takes.

    Args:
        piece_seconds: p, of a worker at a piece.
        piece_trajectories: g, trajectories of a piece.
        weight_bytes: W, of what is trained.
        load_seconds: Of a worker, from its machine's store into its model.
        trajectory_bytes: s, on their way to the trainer.
        read_seconds: q, of the trainer, to make objects of a trajectory's bytes.
        credit_seconds: c, of the trainer, for the advantages and tensors of a trajectory.
        learn_seconds: l, of the learner for a trajectory.
        link: b, bytes per second between two machines, in each direction; infinite where there is one machine.
        workers_per_machine: How many share a copy of the weights.

    Raises:
        ConfigError: When a time or a size is negative or not finite, or a count is below 1.
    """

    piece_seconds: float
    piece_trajectories: int
    weight_bytes: float
    load_seconds: float
    trajectory_bytes: float
    read_seconds: float
    credit_seconds: float
    learn_seconds: float
    link: float = math.inf
    workers_per_machine: int = 1

    def __post_init__(self) -> None:
        times = ("piece_seconds", "weight_bytes", "load_seconds", "trajectory_bytes", "read_seconds")
        for name in (*times, "credit_seconds", "learn_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} must be a finite number of at least 0, got {value!r}.")
        _at_least_one(piece_trajectories=self.piece_trajectories, workers_per_machine=self.workers_per_machine)
        if not (self.piece_seconds > 0 and self.link > 0):
            raise ConfigError(f"piece_seconds and link must be above 0, got {self.piece_seconds!r} and {self.link!r}.")


@dataclass(frozen=True)
class Forecast:
    """What a number of workers gives.

    Args:
        stages: Trajectories per second that each stage could do, by name.
        update_seconds: Of one update, stages one after the other.
        in_turn: Trajectories per second, stages one after the other.
        overlapped: The same, stages at the same time: that of the slowest.
        limit: The slowest stage.
        staleness: Updates that pass while a piece is played, where stages overlap; 0 where they do not.
    """

    stages: dict[str, float]
    update_seconds: float
    in_turn: float
    overlapped: float
    limit: str
    staleness: float


def send_seconds(machines: int, size: float, link: float) -> float:
    """Return the seconds until as many machines have ``size`` bytes that the trainer's machine has.

    >>> send_seconds(1, 8.0, 4.0), send_seconds(3, 8.0, 4.0), send_seconds(625, 8.0, 4.0)
    (2.0, 4.0, 20.0)
    """
    _at_least_one(machines=machines)
    return machines.bit_length() * size / link  # ⌈log₂(machines + 1)⌉ rounds


def forecast(costs: Costs, *, workers: int, batch: int) -> Forecast:
    """Return what a number of workers gives.

    Args:
        costs: What each kind of work takes.
        workers: N.
        batch: B, trajectories of an update.

    Raises:
        ConfigError: When one of them is below 1.

    Four pieces for two workers, who take 4 seconds, and then 32 trajectories to learn from, in 8 seconds:

    >>> costs = Costs(2.0, 8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.25)
    >>> two = forecast(costs, workers=2, batch=32)
    >>> two.update_seconds, round(two.in_turn, 2), two.overlapped, two.limit
    (12.0, 2.67, 4.0, 'learner')
    """
    _at_least_one(workers=workers, batch=batch)
    pieces = math.ceil(batch / costs.piece_trajectories)
    playing = math.ceil(pieces / workers) * costs.piece_seconds  # nobody plays half a piece
    machines = math.ceil(workers / costs.workers_per_machine)
    sending = send_seconds(machines, costs.weight_bytes, costs.link) + costs.load_seconds
    reading = max(costs.trajectory_bytes / costs.link, costs.read_seconds)
    stages = {
        "workers": workers * costs.piece_trajectories / costs.piece_seconds,
        "weights": _per_second(batch, sending),
        "ingest": _per_second(1, reading),
        "credit": _per_second(1, costs.credit_seconds),
        "learner": _per_second(1, costs.learn_seconds),
    }
    seconds = sending + playing + batch * (reading + costs.credit_seconds + costs.learn_seconds)
    limit = min(stages, key=lambda name: stages[name])
    overlapped = stages[limit]
    return Forecast(
        stages, seconds, batch / seconds, overlapped, limit, staleness=overlapped * costs.piece_seconds / batch
    )


def workers_needed(costs: Costs, *, batch: int, most: int = 100_000) -> int:
    """Return the least number of workers at which they are no longer what limits a run whose stages overlap.

    Args:
        costs: What each kind of work takes.
        batch: B, trajectories of an update.
        most: Where to give up looking; returned when workers are the limit even there.
    """
    low, high = 1, most
    while low < high:  # more workers play faster, and weights reach them later: the limit changes once
        middle = (low + high) // 2
        if forecast(costs, workers=middle, batch=batch).limit == "workers":
            low = middle + 1
        else:
            high = middle
    return low


def _per_second(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else math.inf


def _at_least_one(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}.")
