"""What a whole training step costs beside the least this machine could need, and how both grow.

    python benchmarks/step.py [--rounds 3] [--figure FILE.png]
    python benchmarks/step.py --model ~/models/SmolLM2-135M-Instruct --dtype bfloat16 --lora --rate 1e-4

One factor at a time is changed: turns of an episode, episodes of a group, context in front of the first turn, size of
the model. The context is the task's question and turns about it that were played before: each task has its own, since
one that all share would be computed once for all. The model is taught to call the calculator whatever it sees
(:mod:`rollout_contenders`), so that an episode has as many turns as the environment allows; where one has fewer, the
output says so. The calculator answers at random: episodes of a group, which all say the same, differ from their second
turn on, and what is the same T_LB counts once. Rewards are random too, so that every episode teaches something. The
update is that of ``trajgym train``: GRPO without a KL, checkpoints apart.

T_LB and the parts are those of ``metrics.jsonl`` (docs/metrics.md). What is measured beyond T_LB is named in the
table: sampling and learning beyond their bounds, waiting, and the rest, in which no model works. They are means over
the updates of a run, and add up to its update. Every setting is run once in each round; the table shows the round whose
update took the median time, and in brackets the range over all rounds.
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
from functools import partial
from pathlib import Path
from statistics import fmean, median_low
from typing import Annotated, Any

import gymnasium
import tyro
from machine import machine
from rollout_contenders import CALL, teach
from rounds import interleave

from trajgym.envs.arithmetic import ArithmeticEnv
from trajgym.envs.tools.base import tool
from trajgym.policies.tiny import build_model
from trajgym.rewards import Rubric
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train
from trajgym.trainers.models import load_model, pick_device
from trajgym.trainers.peaks import peaks_of
from trajgym.types import Message, Step, Task

__all__ = ["main"]

_TURN_TOKENS = 96
# An earlier turn, as the model was taught to see it.
_EARLIER = (Message("assistant", CALL), Message("tool", "42", name="calculator", call_id="call_0"))
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
        group: Episodes of a group.
        context: Turns played before, about the same question.
        width: Hidden size of the embedded model's relatives; 0 for the model that was given.
    """

    turns: int = 4
    group: int = 8
    context: int = 0
    width: int = 0

    def __str__(self) -> str:
        changed = [f for f in FACTORS if getattr(self, f) != getattr(Point(), f)]
        return ", ".join(f"{getattr(self, f):,} {NAMES[f]}" for f in changed) or "base"


@dataclass(frozen=True)
class Measured:
    """What an update came to, in the mean of a run.

    Args:
        parts: Its seconds by what they went into; they add up to the update.
        bound: T_LB in seconds.
        useful: Tokens that had to be processed over those that were.
        turns: Of an episode.
    """

    parts: dict[str, float]
    bound: float
    useful: float
    turns: float

    @property
    def update(self) -> float:
        """Seconds of an update."""
        return sum(self.parts.values())

    @property
    def eta(self) -> float:
        """Share of T_LB in those."""
        return self.bound / self.update


FACTORS: dict[str, tuple[int, ...]] = {
    "turns": (2, 4, 6, 8),
    "group": (4, 8, 16, 32),
    "context": (0, 2, 4, 6),
    "width": (64, 128, 256, 512),
}
NAMES = {"turns": "turns", "group": "episodes of a group", "context": "turns of context", "width": "hidden size"}


def _noise(step: Step, task: Task, history: Sequence[Step]) -> float:
    return _draws.random()


@tool
def calculator(expression: str) -> str:
    """Return a number.

    Args:
        expression: Does not matter.
    """
    return str(_draws.randrange(10, 100))


class _TurnsEnv(ArithmeticEnv):
    """Arithmetic that goes on for a number of turns and pays at random."""

    def __init__(self, turns: int, context: int, **kwargs: Any) -> None:
        reward = Rubric({"noise": (_noise, 1.0)})
        super().__init__(max_turns=turns, tools=(calculator,), reward=reward, system="", **kwargs)
        self._context = context

    def prompt(self, task: Task) -> tuple[Message, ...]:
        """Return the question and the turns that were played before."""
        return (*super().prompt(task), *_EARLIER * self._context)


gymnasium.register("Turns-v0", entry_point=_TurnsEnv)


def main(
    model: Annotated[str, tyro.conf.arg(help="Hub id, folder, or tiny.")] = "tiny",
    dtype: Annotated[str, tyro.conf.arg(help="Of the weights: float32 or bfloat16.")] = "float32",
    lora: Annotated[bool, tyro.conf.arg(help="Train adapters.")] = False,
    factors: Annotated[tuple[str, ...], tyro.conf.arg(help="Which to change; none for the one point alone.")] = (
        *FACTORS,
    ),
    updates: Annotated[int, tyro.conf.arg(help="Of each run; the first and the last, which saves, do not count.")] = 6,
    rounds: Annotated[int, tyro.conf.arg(help="Runs of each point.")] = 3,
    groups: Annotated[int, tyro.conf.arg(help="Groups of an update.")] = 4,
    steps: Annotated[int, tyro.conf.arg(help="Most updates in which the model learns to call.")] = 200,
    rate: Annotated[float, tyro.conf.arg(help="Learning rate of those.")] = 1e-3,
    figure: Annotated[Path | None, tyro.conf.arg(help="Draw the growth there.")] = None,
) -> int:
    """Measure and print the table."""
    facts = machine()
    _check(factors, updates, rounds)
    measured = [f for f in factors if f != "width" or model == "tiny"]
    peaks_of(str(pick_device("auto")), dtype, again=True)  # those that are kept may be of a busy hour
    busy = ", busy with other work" if facts.busy else ""
    name = f"{model}, {dtype}{', LoRA' if lora else ''}"
    runs = f"means of {updates - 2} updates, median of {rounds} rounds"
    print(f"{name}, {groups} groups; {facts.cores} × {facts.processor}{busy}; {runs}\n")
    with tempfile.TemporaryDirectory() as folder:
        models = _Models(model, Path(folder), steps, rate)
        options = {"groups_per_update": groups, "dtype": dtype, "use_lora": lora, "updates": updates}
        points = {str(point): point for point in _points(measured)}
        runners = {label: partial(_measure, models, point, options) for label, point in points.items()}
        taken = interleave(runners, rounds, warmup=0)
    titles = ["setting", "update", "T_LB", "η", "sampling: bound", "beyond", "learning: bound", "beyond"]
    print(f"| {' | '.join([*titles, 'waiting', 'rest', 'useful'])} |")
    print("|---" * 11 + "|")
    for label, those in taken.items():
        print(_row(label, those))
    for label, those in taken.items():
        turns = fmean(found.turns for found in those)
        if turns < points[label].turns:
            print(f"\n{label}: {turns:.2f} turns instead of {points[label].turns}, as the model did not always call.")
    if len(measured) < len(factors):
        print("\nwidth is left out: models of other sizes are made like the embedded one, not like the one given.")
    if figure is not None:
        _draw({points[label]: _typical(those) for label, those in taken.items()}, measured, figure, name)
    return 0


def _check(factors: Sequence[str], updates: int, rounds: int) -> None:
    unknown = [f for f in factors if f not in FACTORS]
    if unknown:
        raise SystemExit(f"--factors may be {', '.join(FACTORS)}; got {', '.join(unknown)}.")
    if updates < 3 or rounds < 1:
        raise SystemExit(f"--updates must be at least 3 and --rounds 1, got {updates} and {rounds}.")


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


def _measure(models: _Models, point: Point, options: dict[str, Any]) -> Measured:
    model = models.folder(point.width)
    print(f"running: {point}", file=sys.stderr)
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
            "max_episode_tokens": 128 + 80 * (point.context + point.turns),
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
    return _mean(lines[1:-1])


def _mean(lines: Sequence[dict[str, float]]) -> Measured:
    each = [_parts(line) for line in lines]
    return Measured(
        {part: fmean(parts[part] for parts in each) for part in COLOURS},
        fmean(line["efficiency/bound"] for line in lines),
        fmean(line["efficiency/useful_token_share"] for line in lines),
        fmean(line["turns"] for line in lines),
    )


def _parts(line: dict[str, float]) -> dict[str, float]:
    """Return the seconds of an update by what they went into; they add up to it."""
    needed = line["efficiency/mfu"] * line["time/train"]
    sampling = line["efficiency/bound"] - needed
    waiting = sum(line.get(f"time/{part}", 0.0) for part in ("environment", "lockstep", "sync"))
    learning = line["time/train"] + line.get("time/logprobs", 0.0)
    parts = {
        "sampling, bound": sampling,
        "sampling, beyond": line["time/generation"] - sampling,
        "learning, bound": needed,
        "learning, beyond": learning - needed,
        "waiting": waiting,
    }
    return {**parts, "rest": line["time/update"] - sum(parts.values())}


def _typical(rounds: Sequence[Measured]) -> Measured:
    """Return the round whose update took the median time: medians of the parts would not add up."""
    middle = median_low(found.update for found in rounds)
    return next(found for found in rounds if found.update == middle)


def _row(label: str, rounds: Sequence[Measured]) -> str:
    found = _typical(rounds)
    seconds = _ranged(found.update, [other.update for other in rounds], " s")
    eta = _ranged(found.eta, [other.eta for other in rounds])
    shares = [f"{part / found.update:.0%}" for part in found.parts.values()]
    return f"| {' | '.join([label, seconds, f'{found.bound:.2f} s', eta, *shares, f'{found.useful:.0%}'])} |"


def _ranged(value: float, all_of: Sequence[float], unit: str = "") -> str:
    return f"{value:.2f}{unit}" + (f" ({min(all_of):.2f} to {max(all_of):.2f})" if len(all_of) > 1 else "")


def _draw(found: dict[Point, Measured], factors: Sequence[str], target: Path, title: str) -> None:
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
        for part in COLOURS:
            heights = [max(0.0, found[p].parts[part]) for p in points]
            axis.bar(range(len(points)), heights, bottom=bottom, label=part, color=COLOURS[part])
            bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
        for i, p in enumerate(points):
            axis.annotate(f"η {found[p].eta:.2f}", (i, bottom[i]), ha="center", va="bottom", fontsize=8)
        axis.set_xticks(range(len(points)), [f"{getattr(p, factor):,}" for p in points])
        axis.set_xlabel(NAMES[factor])
        axis.margins(y=0.12)
    axes[0].set_ylabel("seconds of an update")
    canvas.suptitle(title, fontsize=10)
    canvas.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    canvas.savefig(target, dpi=110)


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
