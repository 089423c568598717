"""What a whole training step costs beside the least this machine could need, and how both grow.

    python benchmarks/step.py [--figure FILE.png]
    python benchmarks/step.py --model ~/models/SmolLM2-135M-Instruct --dtype bfloat16 --lora --rate 1e-4

One factor at a time is changed: turns of an episode, episodes of a group, tokens of context before the question, size
of the model. The model is taught to call the calculator whatever it sees (:mod:`rollout_contenders`), so that an
episode has as many turns as the environment allows; rewards are drawn at random, so that every episode teaches
something. The update is that of ``trajgym train``: GRPO without a KL, checkpoints apart.

T_LB and the parts are those of ``metrics.jsonl`` (docs/metrics.md). What is measured beyond T_LB is named in the
table: sampling and learning beyond their bounds, waiting, and the rest, in which no model works.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import gymnasium
import tyro
from machine import machine
from rollout_contenders import teach

from trajgym.envs.arithmetic import ArithmeticEnv
from trajgym.policies.tiny import build_model
from trajgym.rewards import Rubric
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train
from trajgym.trainers.models import load_model, pick_device
from trajgym.trainers.peaks import peaks_of
from trajgym.types import Step, Task

__all__ = ["main"]

_TURN_TOKENS = 96
_WORD = "so "  # repeated for a longer context
COLOURS = {
    "sampling, bound": "#1f5fa8",
    "sampling, beyond": "#a9c8ea",
    "learning, bound": "#b4541a",
    "learning, beyond": "#f2c6a5",
    "waiting": "#8a8a8a",
    "rest": "#d9d9d9",
}
_draws = random.Random(0)


@dataclass(frozen=True)
class Point:
    """One setting of the factors.

    Args:
        turns: Of each episode.
        group: Episodes of a group; an update has four groups.
        context: Words in front of the question.
        width: Hidden size of the embedded model's relatives; 0 for the model that was given.
    """

    turns: int = 4
    group: int = 8
    context: int = 0
    width: int = 0


FACTORS: dict[str, tuple[int, ...]] = {
    "turns": (1, 2, 4, 8),
    "group": (4, 8, 16, 32),
    "context": (0, 64, 128, 256),
    "width": (64, 128, 256, 512),
}
NAMES = {"turns": "turns", "group": "episodes of a group", "context": "words of context", "width": "hidden size"}


def _noise(step: Step, task: Task, history: Sequence[Step]) -> float:
    return _draws.random()


class _TurnsEnv(ArithmeticEnv):
    """Arithmetic that goes on for a number of turns and pays at random."""

    def __init__(self, turns: int, context: int, **kwargs: Any) -> None:
        reward = Rubric({"noise": (_noise, 1.0)})
        super().__init__(max_turns=turns, reward=reward, system=_WORD * context, instructions="none", **kwargs)


gymnasium.register("Turns-v0", entry_point=_TurnsEnv)


def main(
    model: Annotated[str, tyro.conf.arg(help="Hub id, folder, or tiny.")] = "tiny",
    dtype: Annotated[str, tyro.conf.arg(help="Of the weights: float32 or bfloat16.")] = "float32",
    lora: Annotated[bool, tyro.conf.arg(help="Train adapters.")] = False,
    factors: Annotated[tuple[str, ...], tyro.conf.arg(help="Which to change; none for the one point alone.")] = (
        *FACTORS,
    ),
    updates: Annotated[
        int, tyro.conf.arg(help="Of each point; the first and the last, which saves, do not count.")
    ] = 6,
    groups: Annotated[int, tyro.conf.arg(help="Groups of an update.")] = 4,
    steps: Annotated[int, tyro.conf.arg(help="Most updates in which the model learns to call.")] = 200,
    rate: Annotated[float, tyro.conf.arg(help="Learning rate of those.")] = 1e-3,
    figure: Annotated[Path | None, tyro.conf.arg(help="Draw the growth there.")] = None,
) -> int:
    """Measure and print the table."""
    facts = machine()
    peaks_of(str(pick_device("auto")), dtype, again=True)  # those that are kept may be of a busy hour
    busy = ", busy with other work" if facts.busy else ""
    name = f"{model}, {dtype}{', LoRA' if lora else ''}"
    print(f"{name}, {groups} groups; {facts.cores} × {facts.processor}{busy}; medians of {updates - 2} updates\n")
    print("| | update | T_LB | η | sampling: bound | beyond | learning: bound | beyond | waiting | rest | useful |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    found: dict[Point, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        models = _Models(model, Path(folder), steps, rate)
        options = {"groups_per_update": groups, "dtype": dtype, "use_lora": lora, "updates": updates}
        for point in _points(factors):
            found[point] = _measure(models.folder(point.width), point, options)
            print(_row(point, found[point]), flush=True)
    if figure is not None:
        _draw(found, factors, figure, name)
    return 0


def _points(factors: Sequence[str]) -> Iterator[Point]:
    yield Point()
    for factor in factors:
        yield from (point for value in FACTORS[factor] if (point := replace(Point(), **{factor: value})) != Point())


class _Models:
    """Models that call, each taught once and kept.

    Args:
        given: Hub id, folder, or tiny.
        folder: Where they are kept.
        steps: Most updates in which one learns.
        rate: Learning rate of those.
    """

    def __init__(self, given: str, folder: Path, steps: int, rate: float) -> None:
        self._given, self._folder, self._steps, self._rate = given, folder, steps, rate

    def folder(self, width: int) -> Path:
        """Return the folder of the model of a width, or of the given one."""
        target = self._folder / str(width)
        if not target.exists():
            model, tokenizer = load_model("tiny" if width else self._given)
            model = build_model(tokenizer, width=width) if width else model
            teach(model, tokenizer, steps=self._steps, rate=self._rate, say=lambda text: print(text, file=sys.stderr))
            model.save_pretrained(target)
            tokenizer.save_pretrained(target)
        return target


def _measure(model: Path, point: Point, options: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        config = {
            **options,
            "model": str(model),
            "env": "Turns-v0",
            "env_kwargs": {"turns": point.turns, "context": point.context},
            "num_generations": point.group,
            "slots": options["groups_per_update"] * point.group,
            "env_threads": 0,
            "max_turn_tokens": _TURN_TOKENS,
            "max_episode_tokens": 128 + 2 * point.context + 80 * point.turns,
            "temperature": 0.2,  # so that what is almost certain is certain
            "learning_rate": 1e-7,
            "kl_coef": 0.0,
            "monitors": (),
            "log_trajectories": 0,
            "save_every": 1_000_000,
            "output_dir": folder,
        }
        at = train(load_config(config), name="run")
        lines = [json.loads(line) for line in (Path(at) / "metrics.jsonl").read_text().splitlines()]
    return {key: median(line.get(key, 0.0) for line in lines[1:-1]) for key in lines[-1]}


def _parts(found: dict[str, float]) -> dict[str, float]:
    """Return the seconds of an update by what they went into; they add up to it."""
    needed = found["efficiency/mfu"] * found["time/train"]
    sampling = found["efficiency/bound"] - needed
    waiting = sum(found.get(f"time/{part}", 0.0) for part in ("environment", "lockstep", "sync"))
    learning = found["time/train"] + found.get("time/logprobs", 0.0)
    parts = {
        "sampling, bound": sampling,
        "sampling, beyond": found["time/generation"] - sampling,
        "learning, bound": needed,
        "learning, beyond": learning - needed,
        "waiting": waiting,
    }
    return {**parts, "rest": found["time/update"] - sum(parts.values())}


def _row(point: Point, found: dict[str, float]) -> str:
    changed = [
        f"{getattr(point, factor):,} {NAMES[factor]}"
        for factor in FACTORS
        if getattr(point, factor) != getattr(Point(), factor)
    ]
    update = found["time/update"]
    shares = [f"{seconds / update:.0%}" for seconds in _parts(found).values()]
    cells = [f"{update:.2f} s", f"{found['efficiency/bound']:.2f} s", f"{found['efficiency/eta']:.2f}", *shares]
    return f"| {', '.join(changed) or 'base'} | {' | '.join(cells)} | {found['efficiency/useful_token_share']:.0%} |"


def _draw(found: dict[Point, dict[str, float]], factors: Sequence[str], target: Path, title: str) -> None:
    """Draw the seconds of an update, stacked by part, over each factor."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(3.4 * len(factors), 3.6), layout="constrained")
    axes = canvas.subplots(1, len(factors), squeeze=False)[0]
    for axis, factor in zip(axes, factors, strict=True):
        points = sorted(
            {p for p in found if p == replace(Point(), **{factor: getattr(p, factor)})},
            key=lambda p: getattr(p, factor),
        )
        if factor == "width":
            points = [p for p in points if p.width]
        bottom = [0.0] * len(points)
        for part in _parts(found[points[0]]):
            heights = [max(0.0, _parts(found[p])[part]) for p in points]
            axis.bar(range(len(points)), heights, bottom=bottom, label=part, color=COLOURS[part])
            bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
        for i, p in enumerate(points):
            axis.annotate(f"η {found[p]['efficiency/eta']:.2f}", (i, bottom[i]), ha="center", va="bottom", fontsize=8)
        axis.set_xticks(range(len(points)), [f"{getattr(p, factor):,}" for p in points])
        axis.set_xlabel(NAMES[factor])
        axis.margins(y=0.12)
    axes[0].set_ylabel("seconds of an update")
    canvas.suptitle(title, fontsize=10)
    canvas.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    canvas.savefig(target, dpi=110)


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
