"""How many turns per second rollout workers play, beside this process alone, and what a model of it says.

    python benchmarks/ray_workers.py [--workers 1 2] [--groups 8] [--rounds 3] [--slow 0.2]

Needs Ray. A policy without a model calls a tool, then answers: so that what is measured is turns of environments, and
not how fast this machine computes a model. Every contender plays the same episodes, in pieces of one group; ``here``
is this process, which plays its pieces one after the other. All start before the first round, and each is measured
once in every round.

Then the costs that the forecast of :mod:`trajgym.trainers.throughput` needs are measured one by one: bytes of a
trajectory, seconds for weights by their size, for credit and for learning. The last tables put the forecast beside
what was measured, go on to numbers of workers that are not here, and compare whole updates of a real model, which
learns (:mod:`ray_updates`). The lines from there on are meant to be kept, in docs/ray.md.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
import tyro
from machine import machine
from ray_updates import SIZE, costs_of, options_of, table, whole_updates
from rounds import estimate, interleave, median

from trajgym.envs.make import make
from trajgym.envs.tools import tool
from trajgym.envs.tools.base import Tool
from trajgym.errors import ConfigError
from trajgym.policies.base import TextPolicy
from trajgym.rollout import EnvPool, Episode
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.ray_crew import RayCrew
from trajgym.trainers.rollout_share import Share, play_groups
from trajgym.trainers.stopwatch import Stopwatch
from trajgym.trainers.throughput import Costs, forecast
from trajgym.trainers.worker import Piece, PlayedPiece
from trajgym.trainers.worker_answer import Answer
from trajgym.trainers.worker_weights import Packed
from trajgym.trainers.workers import Workers
from trajgym.types import Message, Task

__all__ = ["main"]

TURNS = 4
CONFIG = GRPOConfig(env="ArithmeticTool-v0", num_generations=SIZE, updates=1, deterministic=True)


def waiting_tool(seconds: float) -> Tool:
    """Return a tool that takes its time, and no processor's."""

    @tool(name="wait")
    def wait(number: int) -> int:
        """Wait.

        Args:
            number: Given back.
        """
        if seconds:
            time.sleep(seconds)
        return number

    return wait


class Caller(TextPolicy):
    """Calls the tool in every turn but the last."""

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        """Write a turn."""
        done = sum(message.role == "tool" for message in messages)
        if done == TURNS - 1:
            return "#### 1"
        return f'<tool_call>\n{{"name": "wait", "arguments": {{"number": {done}}}}}\n</tool_call>'


class Player:
    """What a worker's process holds: a worker whose policy needs no model.

    Args:
        seconds: Of the tool.
    """

    def __init__(self, seconds: float) -> None:
        self._pool = EnvPool(lambda: make("ArithmeticTool-v0", tools=[waiting_tool(seconds)]), threads=SIZE)
        self._policy = Caller(SIZE)

    def prepare(self) -> Answer[None]:
        """Play something, so that what is made once is made."""
        return Answer.of(lambda: self._play(Piece(0, 0, [[Episode(0, i) for i in range(SIZE)]])) and None)

    def load(self, packed: Packed, progress: float) -> Answer[float]:
        """Copy weights, and return the seconds that it took."""

        def copy() -> float:
            began = time.perf_counter()
            for _, numbers in packed.values():
                np.array(numbers)
            return time.perf_counter() - began

        return Answer.of(copy)

    def play(self, piece: Piece) -> Answer[PlayedPiece]:
        """Play a piece."""
        return Answer.of(lambda: self._play(piece))

    def close(self) -> Answer[None]:
        """Close the environments."""
        return Answer.of(self._pool.close)

    def _play(self, piece: Piece) -> PlayedPiece:
        share: Share = play_groups(
            self._policy, self._pool, piece.groups, CONFIG, update=0, round=0, values=False, watch=Stopwatch()
        )
        return PlayedPiece(share)


def crew_of(count: int, seconds: float) -> RayCrew:
    """Return actors around players."""
    return RayCrew(seconds, count=count, cpus=1, gpus=0, address=None, worker=Player)


def pieces_of(groups: int) -> list[Piece]:
    """Return pieces of one group each."""
    return [Piece(0, 0, [[Episode(g, g * SIZE + i) for i in range(SIZE)]]) for g in range(groups)]


def turns_per_second(tool_seconds: float, workers: Sequence[int], groups: int, rounds: int) -> dict[str, float]:
    """Measure this process and some numbers of workers; return the seconds of all pieces by contender."""
    pieces, here = pieces_of(groups), Player(tool_seconds)
    here.prepare().open()
    crews = {}
    for count in workers:
        crews[f"{count}"] = Workers(crew_of(count, tool_seconds), count, limit=1, deadline=600.0)
        crews[f"{count}"].open()

    def timed(play: Callable[[], list[PlayedPiece]]) -> Callable[[], float]:
        def run() -> float:
            began = time.perf_counter()
            played = play()
            took = time.perf_counter() - began
            found = [len(t.steps) for piece in played for group in piece.share.groups for t in group]
            assert found == [TURNS] * (groups * SIZE)
            return took

        return run

    contenders = {"here": timed(lambda: [here.play(piece).open() for piece in pieces])}
    contenders |= {name: timed(lambda crew=crew: crew.play(pieces)) for name, crew in crews.items()}
    times = interleave(contenders, rounds, warmup=1)
    for crew in crews.values():
        crew.close()
    here.close()
    return {name: float(estimate(median, values).value) for name, values in times.items()}


def weights_seconds(size: int, rounds: int) -> tuple[float, float]:
    """Return the seconds until weights of so many bytes are in the store, and until one worker has copied them."""
    import ray

    numbers = {f"w{i}": ("float32", np.ones(size // 32, np.float32)) for i in range(8)}
    crew = crew_of(1, 0.0)
    worker = crew.hire()
    put, load = [], []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        where = crew.publish(numbers)
        put.append(time.perf_counter() - began)
        load.append(ray.get(worker.load.remote(where, 0.0)).open())
        del where
    crew.close()
    return float(np.median(put[1:])), float(np.median(load[1:]))


def main(
    workers: Annotated[tuple[int, ...], tyro.conf.arg(help="Numbers of workers to measure.")] = (1, 2),
    groups: Annotated[int, tyro.conf.arg(help=f"Groups to play, of {SIZE} episodes each.")] = 8,
    rounds: Annotated[int, tyro.conf.arg(help="How often each is measured.")] = 3,
    slow: Annotated[float, tyro.conf.arg(help="Seconds that the slow tool takes.")] = 0.2,
    sizes: Annotated[tuple[int, ...], tyro.conf.arg(help="MiB of weights to send.")] = (1, 64, 512),
    link: Annotated[float, tyro.conf.arg(help="Assumed: GB per second between machines.")] = 10.0,
    per_machine: Annotated[int, tyro.conf.arg(help="Assumed: workers on one machine.")] = 8,
    model: Annotated[str, tyro.conf.arg(help="Of the whole updates: hub id, folder, or tiny.")] = "tiny",
    updates: Annotated[int, tyro.conf.arg(help="Of each of those runs, at least 2; the first does not count.")] = 4,
) -> int:
    """Measure and print the tables."""
    if updates < 2:
        raise ConfigError(f"--updates must be at least 2, got {updates}: the first update of a run does not count.")
    import ray

    facts = machine()  # before anything is at work here
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=sum(workers) + 1, include_dashboard=False, logging_level="WARNING")
    busy = ", busy with other work" if facts.busy else ""
    print(
        f"{facts.cores} × {facts.processor}{busy}; Ray {ray.__version__}; {groups} groups of {SIZE} episodes of "
        f"{TURNS} turns, medians of {rounds} rounds\n"
    )
    turns = groups * SIZE * TURNS
    names = ["here", *map(str, workers)]
    heads = ["this process", *(f"{n} worker{'s' * (n > 1)}" for n in workers)]
    print(f"| tool | {' | '.join(f'turns/s, {head}' for head in heads)} |\n|{'---|' * (len(names) + 1)}")
    measured = {}
    for seconds in (0.0, slow):
        measured[seconds] = turns_per_second(seconds, workers, groups, rounds)
        row = " | ".join(f"{turns / measured[seconds][name]:,.0f}" for name in names)
        print(f"| {f'{seconds:g} s' if seconds else 'at once'} | {row} |", flush=True)

    print("\n| weights | s into the store | s of a worker to copy them |\n|---|---|---|")
    sent = {size: weights_seconds(size << 20, rounds) for size in sizes}
    for size, (put, load) in sent.items():
        print(f"| {size} MiB | {put:.4f} | {load:.4f} |", flush=True)
    own = costs_of(options_of(model, groups, rounds + 1), rounds, ray.put)
    print(f"\nOne trajectory, {model}: {_trajectory(own)}\n")

    print("| tool | workers | turns/s forecast | turns/s measured |\n|---|---|---|---|")
    for seconds in (0.0, slow):
        piece = measured[seconds]["here"] / groups  # of a worker, as long as it has a processor for itself
        for count in workers:
            alone = Costs(piece, SIZE, 0.0, 0.0, own.trajectory_bytes, own.read_seconds, 0.0, 0.0)
            said = forecast(alone, workers=count, batch=groups * SIZE).update_seconds
            took = measured[seconds][f"{count}"]
            print(f"| {seconds:g} s | {count} | {turns / said:,.0f} | {turns / took:,.0f} |")

    largest = max(sizes)
    costs = dataclasses.replace(
        own,
        piece_seconds=measured[slow]["here"] / groups,
        weight_bytes=largest << 20,
        load_seconds=sum(sent[largest]),
        link=link * 1e9,
        workers_per_machine=per_machine,
    )
    print(
        f"\nForecast: pieces of {costs.piece_seconds:.2f} s, weights of {largest} MiB, {link:g} GB/s between machines "
        f"of {per_machine} workers, as many pieces as workers in an update; the trainer's times as above, and with a "
        "learner that is 100 times as fast."
    )
    print("\n| workers | batch | trajectories/s in turn | overlapped | limit | 100 learners | limit | staleness |")
    print("|---|---|---|---|---|---|---|---|")
    for count in (1, 2, 10, 100, 1000, 5000):
        batch = count * SIZE
        one = forecast(costs, workers=count, batch=batch)
        many = forecast(dataclasses.replace(costs, learn_seconds=costs.learn_seconds / 100), workers=count, batch=batch)
        print(
            f"| {count:,} | {batch:,} | {one.in_turn:,.1f} | {one.overlapped:,.1f} | {one.limit} | "
            f"{many.overlapped:,.1f} | {many.limit} | {math.ceil(10 * many.staleness) / 10:.1f} |"
        )

    print(
        f"\n{facts.cores} × {facts.processor}{busy}; Ray {ray.__version__}; updates 2 … {updates} of {rounds} runs, "
        f"medians and 95 % intervals. The forecast's costs, measured without workers: a piece of {SIZE} trajectories "
        f"{own.piece_seconds:.3f} s; weights of {own.weight_bytes / 2**20:.1f} MiB sent and copied in "
        f"{1e3 * own.load_seconds:.2f} ms; a trajectory {_trajectory(own)}\n"
    )
    whole = whole_updates(options_of(model, groups, updates), workers, rounds)
    print("\n".join(table(model, own, whole, groups * SIZE)))
    ray.shutdown()
    return 0


def _trajectory(costs: Costs) -> str:
    return (
        f"{costs.trajectory_bytes:,.0f} bytes, read in {1e3 * costs.read_seconds:.3f} ms, credited and laid out in "
        f"{1e3 * costs.credit_seconds:.3f} ms, learned from in {1e3 * costs.learn_seconds:.2f} ms."
    )


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
