"""Seconds per update where episodes are played while the update before is learned, beside one after the other.

    python benchmarks/overlap.py [--delays 0 0.2 1] [--rounds 5]

Both runs train the same model on the same tasks in the same process, in turns, with as many threads as the machine has
cores. A tool that takes its time is an environment that sleeps in every step. The first and the last update of a run
do not count: nothing is played beside the one, or beside the other. What each run learns is not compared; see
correction.py.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import gymnasium
import tyro
from machine import machine
from rounds import estimate, interleave, median_ratio
from rounds import median as medians

from trajgym.envs.arithmetic import ArithmeticEnv
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train
from trajgym.types import Step

__all__ = ["main"]

_PARTS = ("turns", "time/rollout", "time/train", "time/wait", "time/update")


class _SlowEnv(ArithmeticEnv):
    """Arithmetic whose every step keeps the environment busy for some seconds, as a slow tool would."""

    def __init__(self, delay: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._delay = delay

    def _transition(self, action: str) -> Step:
        time.sleep(self._delay)
        return super()._transition(action)


gymnasium.register("SlowArithmetic-v0", entry_point=_SlowEnv)


def main(
    model: Annotated[str, tyro.conf.arg(help="Hub id, folder, or tiny.")] = "tiny",
    delays: Annotated[tuple[float, ...], tyro.conf.arg(help="Seconds that each step of an environment takes.")] = (
        0.0,
        0.2,
        1.0,
    ),
    groups: Annotated[int, tyro.conf.arg(help="Groups of an update, of eight episodes each.")] = 8,
    updates: Annotated[int, tyro.conf.arg(help="Of each run, at least 3.")] = 6,
    rounds: Annotated[int, tyro.conf.arg(help="How often each run is made.")] = 5,
) -> int:
    """Measure and print the table."""
    facts = machine()
    busy = ", busy with other work" if facts.busy else ""
    print(f"{model}, {8 * groups} episodes; {facts.cores} × {facts.processor}{busy}; medians of {rounds} rounds\n")
    print("| a step takes | turns | playing | learning | update, in turn | update, ahead | of it waiting | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for delay in delays:
        print(_row(delay, rounds, _options(model, delay, groups, updates)), flush=True)
    return 0


def _options(model: str, delay: float, groups: int, updates: int) -> dict[str, Any]:
    return {
        "model": model,
        "env": "SlowArithmetic-v0",
        "env_kwargs": {"delay": delay, "difficulty": (1, 4), "reward": "hybrid"},
        "updates": updates,
        "groups_per_update": groups,
        "num_generations": 8,
        "slots": 8 * groups,
        "env_threads": 8 * groups,
        "max_turn_tokens": 24,
        "max_episode_tokens": 400,
        "learning_rate": 1e-4,
        "monitors": (),
        "log_trajectories": 0,
        "save_every": updates,
        "sampler_correction": True,  # on both sides, so that the work is the same
    }


def _row(delay: float, rounds: int, options: dict[str, Any]) -> str:
    found: dict[str, list[dict[str, float]]] = {"in turn": [], "ahead": []}

    def run(name: str) -> float:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            at = train(
                load_config({**options, "output_dir": folder, "rollout_ahead": int(name == "ahead")}), name="run"
            )
            lines = [json.loads(line) for line in (Path(at) / "metrics.jsonl").read_text().splitlines()]
        found[name].append({part: fmean(line.get(part, 0.0) for line in lines[1:-1]) for part in _PARTS})
        return found[name][-1]["time/update"]

    times: dict[str, Any] = interleave({name: lambda name=name: run(name) for name in found}, rounds, warmup=0)
    ratio = estimate(median_ratio, times["in turn"], times["ahead"])
    cells = [
        f"{delay:g} s",
        f"{median(one['turns'] for one in found['in turn']):.1f}",
        *(f"{median(one[part] for one in found['in turn']):.2f} s" for part in ("time/rollout", "time/train")),
        *(f"{estimate(medians, times[name]).value:.2f} s" for name in found),
        f"{median(one['time/wait'] for one in found['ahead']):.2f} s",
        f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
