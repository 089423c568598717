"""Whole updates on rollout workers, with real weights and learning, beside what the forecast says of them.

Part of ray_workers.py. What the forecast needs is measured one by one in this process, where nobody plays but itself;
then :func:`trajgym.trainers.grpo.train` runs with workers, and its own clock says what updates took. So neither side
knows of the other. A run's first update does not count: it waits for its workers to get ready.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
from rounds import estimate, interleave, median

from trajgym.rewards import Rubric, register_rubric
from trajgym.trainers.config import GRPOConfig, load_config
from trajgym.trainers.grpo import GRPOTrainer, train
from trajgym.trainers.interrupt import Interrupt
from trajgym.trainers.rollout_share import play_groups
from trajgym.trainers.stopwatch import Stopwatch
from trajgym.trainers.throughput import Costs, forecast
from trajgym.trainers.worker_weights import Packed, pack_weights, packed_bytes, put_weights, trained_names
from trajgym.trainers.workers import cut
from trajgym.types import Step, Task

__all__ = ["SIZE", "Whole", "costs_of", "options_of", "table", "varied", "whole_updates"]

SIZE = 8  # trajectories of a group
REWARD = "benchmark-varied"


def varied(step: Step, task: Task, history: Sequence[Step]) -> float:
    """Pay something that differs from text to text: whatever a model can do, there is something to learn from."""
    return len(step.action.text) % 8 / 8


def rubric() -> Rubric:
    """Return the reward of the runs."""
    return Rubric({"varied": (varied, 1.0)})


register_rubric(REWARD, rubric, replace=True)


@dataclass(frozen=True)
class Whole:
    """What an update took, in seconds.

    Args:
        playing: Until its trajectories were there: weights sent, pieces played and read.
        update: All of it.
    """

    playing: float
    update: float


def options_of(model: str, groups: int, updates: int) -> dict[str, Any]:
    """Return the options of a run.

    Args:
        model: Hub id, folder, or tiny.
        groups: Of an update.
        updates: Of the run.
    """
    return {
        "model": model,
        "env": "ArithmeticTool-v0",
        "env_kwargs": {"reward": REWARD},
        "updates": updates,
        "groups_per_update": groups,
        "num_generations": SIZE,
        "max_turn_tokens": 32,
        "max_episode_tokens": 1024,
        "monitors": (),
        "log_trajectories": 0,
        "save_every": updates,
        "deterministic": True,
    }


def costs_of(options: Mapping[str, Any], rounds: int, put: Callable[[Packed], object]) -> Costs:
    """Measure what the forecast needs: medians over the first updates of a run, the very first left out.

    Pieces are played with as many threads as a worker has, all else is done with those of the trainer.

    Args:
        options: From :func:`options_of`, of more updates than ``rounds``.
        rounds: Updates that count.
        put: Puts weights where workers find them.
    """
    found: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(load_config({**options, "output_dir": folder}))
        with trainer.pool:
            for update in range(rounds + 1):
                for name, values in _costs(trainer, update, put).items():
                    found.setdefault(name, []).append(values)
    mid = {name: float(np.median(np.concatenate(values[1:]))) for name, values in found.items()}
    return Costs(
        piece_seconds=mid["piece"],
        piece_trajectories=trainer.config.worker_groups * SIZE,
        weight_bytes=mid["weights"],
        load_seconds=mid["load"],
        trajectory_bytes=mid["bytes"],
        read_seconds=mid["read"],
        credit_seconds=mid["credit"],
        learn_seconds=mid["learn"],
    )


def whole_updates(options: Mapping[str, Any], workers: Sequence[int], rounds: int) -> dict[int, list[list[Whole]]]:
    """Train with some numbers of workers, in turns; return what updates took by number of workers, run by run."""
    runs = {str(count): (lambda count=count: _run(options, count)) for count in workers}
    return {int(name): measured for name, measured in interleave(runs, rounds, warmup=0).items()}


def table(model: str, costs: Costs, measured: Mapping[int, Sequence[Sequence[Whole]]], batch: int) -> list[str]:
    """Return the lines of a table in Markdown, forecast beside measured.

    Args:
        model: For people.
        costs: From :func:`costs_of`.
        measured: From :func:`whole_updates`.
        batch: Trajectories of an update.
    """
    head = ("model", "workers", "batch", "s of playing, forecast", "measured", "s of an update, forecast", "measured")
    lines = [f"| {' | '.join(head)} | measured / forecast |", f"|{'---|' * (len(head) + 1)}"]
    playing = replace(costs, credit_seconds=0.0, learn_seconds=0.0)
    for count, runs in measured.items():
        cells = [model, f"{count}", f"{batch}"]
        for part, of in (("playing", playing), ("update", costs)):
            said = forecast(of, workers=count, batch=batch).update_seconds
            took = estimate(median, [[getattr(one, part) for one in run] for run in runs])
            cells += [f"{said:.3f}", f"{took.value:.3f} [{took.low:.3f}, {took.high:.3f}]"]
        lines.append(f"| {' | '.join(cells)} | {took.value / said:.2f} |")
    return lines


def _costs(trainer: GRPOTrainer, update: int, put: Callable[[Packed], object]) -> dict[str, list[float]]:
    """Go through one update, and return what its parts cost."""
    model, config = trainer.learner.model, trainer.config
    clock = _Clock()
    packed = pack_weights(model, trained_names(model))
    put(packed)
    put_weights(model, packed)
    load = clock.lap()
    pieces = _pieces(trainer, update)
    trainer.pool.advance(update / trainer.schedule.total)
    took = []
    with _threads(max(1, int(config.worker_cpus))):
        for piece in pieces:
            clock.lap()
            play_groups(
                trainer.policy, trainer.pool, piece, config, update=update, round=0, values=False, watch=Stopwatch()
            )
            took.append(clock.lap())
            trainer.policy.sampler.reset()  # as a worker does, which begins each piece with nothing cached
    played = trainer.play(update, Interrupt())
    count = len(played.trajectories)
    data = cloudpickle.dumps(played.trajectories)
    clock.lap()
    pickle.loads(data)  # noqa: S301  written two lines above
    read = clock.lap()
    advantages = trainer.credit(played.groups)
    credit = clock.lap()
    trainer.learner.lay_out(played.groups, advantages)
    tensors = clock.lap()
    trainer.learn(played.groups, advantages, Interrupt())
    learn = clock.lap() - tensors  # it lays them out itself
    trainer.update += 1
    each = {"bytes": len(data), "read": read, "credit": credit + tensors, "learn": max(0.0, learn)}
    whole = {"piece": took, "load": [load], "weights": [float(packed_bytes(packed))]}
    return {**whole, **{name: [value / count] for name, value in each.items()}}


def _pieces(trainer: GRPOTrainer, update: int) -> list[Any]:
    """Return the groups of each piece, as a run with workers deals them."""
    episodes = trainer.schedule.episodes(update, 0)
    return list(cut([episodes[i : i + SIZE] for i in range(0, len(episodes), SIZE)], trainer.config.worker_groups))


def _run(options: Mapping[str, Any], workers: int) -> list[Whole]:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        config: GRPOConfig = load_config({**options, "output_dir": folder, "rollout_workers": workers})
        at = train(config)
        lines = [json.loads(line) for line in (Path(at) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(line["no_signal_share"] < 1.0 for line in lines), "an update had nothing to learn from"
    return [Whole(line["time/rollout"], line["time/update"]) for line in lines[1:]]


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Clock:
    """Tells the seconds since it was asked last."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        before, self._last = self._last, time.perf_counter()
        return self._last - before
