"""How fast the gradient of an update is, beside TRL's GRPO on the same tensors.

    python benchmarks/update.py --lengths 64/64 128/64
    python benchmarks/update.py --model ~/models/SmolLM2-135M-Instruct --lengths 128/128 200/100 --rounds 5

One group of trajectories with one prompt, the same model object, the same loss (DAPO's: one Z for all tokens, no KL,
temperature 1), forward and backward; no optimiser step. Ours begins with lists of token ids, TRL's with its tensors.
What both log of a step, entropies included, is computed by both. All completions are equally long, so that TRL has
nothing to pad, and neither recomputes activations.

Timed in rounds, all contenders in each, since a machine's speed changes by the minute. Gradients are compared before.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from machine import machine
from rich.console import Console
from rich.table import Table
from rounds import Estimate, estimate, interleave, median, median_ratio
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from trajgym.trainers.config import load_config
from trajgym.trainers.learner import Learner
from trajgym.trainers.models import load_model
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.sharding import Shards
from trajgym.trainers.stopwatch import Stopwatch
from trajgym.types import Action, Group, Observation, Step, Task, TokenStream, Trajectory

__all__ = ["Cell", "main", "make_group"]

CLOSE = 1e-4  # relative difference of float32 gradients above which contenders do not do the same
SHARED, PADDED, TRL = "trajgym, shared", "trajgym, padded", "TRL"


@dataclass(frozen=True)
class Cell:
    """What came of one pair of lengths.

    Args:
        prompt: Tokens of the prompt.
        completion: Tokens of each completion.
        seconds: Of each contender, the median.
        speed: TRL's time over ours, with shared prompts and with padded rows.
        off: Relative difference of our gradients to TRL's.
        peak: Most bytes that torch had allocated at once during a pass, beyond what was there before.
        rounds: The seconds of every round.
    """

    prompt: int
    completion: int
    seconds: dict[str, Estimate]
    speed: dict[str, Estimate]
    off: dict[str, float]
    peak: dict[str, int]
    rounds: dict[str, list[float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns the exit status: 1 where gradients differ."""
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    facts = machine()
    if facts.busy:
        _say(f"load average {facts.load:.2f}: something else is running, better wait")
    _say("loading")
    model, tokenizer = load_model(options.model)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cells = []
        for prompt, completion in options.lengths:
            _say(f"{prompt}/{completion}")
            cells.append(_measure(model, tokenizer, prompt, completion, options, Path(folder)))
    _show(cells, options, f"{facts.processor}, {options.threads} of {facts.cores} cores, load {facts.load:.1f}")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        report = {
            "model": options.model,
            "members": options.members,
            "threads": options.threads,
            "cpu_time": options.cpu_time,
            "torch": torch.__version__,
            "machine": asdict(facts),
            "cells": [asdict(cell) for cell in cells],
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    wrong = [cell for cell in cells if max(cell.off.values()) > CLOSE]
    for cell in wrong:
        print(f"update: at {cell.prompt}/{cell.completion} the gradients differ: {cell.off}", file=sys.stderr)
    return 1 if wrong else 0


def make_group(vocabulary: int, members: int, prompt: int, completion: int, seed: int = 0) -> Group:
    """Return a group of one-turn trajectories over random tokens that share their prompt."""
    draw = random.Random(seed)
    question = [draw.randrange(3, vocabulary) for _ in range(prompt)]
    out = []
    for _ in range(members):
        ids = question + [draw.randrange(3, vocabulary) for _ in range(completion)]
        marks = (-1,) * prompt + (0,) * completion
        row = TokenStream(tuple(ids), tuple(int(t >= 0) for t in marks), marks, (0.0,) * len(ids))
        out.append(Trajectory(Task("t", "", ""), (), (Step(Action(""), Observation()),), (row,)))
    return Group(out[0].task, tuple(out))


def _measure(
    model: Any, tokenizer: Any, prompt: int, completion: int, options: argparse.Namespace, folder: Path
) -> Cell:
    group = make_group(model.config.vocab_size, options.members, prompt, completion)
    draw = random.Random(1)
    advantages = [[draw.uniform(-1.0, 1.0)] for _ in group.trajectories]
    passes: dict[str, Callable[[], None]] = {
        SHARED: _ours(model, group, advantages, "auto", folder),
        PADDED: _ours(model, group, advantages, "off", folder),
        TRL: _theirs(model, tokenizer, group, advantages, folder),
    }
    found = {name: _gradient(model, work) for name, work in passes.items()}
    off = {name: float((found[name] - found[TRL]).norm() / found[TRL].norm()) for name in (SHARED, PADDED)}
    del found
    peak = {name: _peak(model, work) for name, work in passes.items()}
    clock = time.process_time if options.cpu_time else time.perf_counter
    timed = {name: partial(_seconds, model, work, clock) for name, work in passes.items()}
    rounds = interleave(timed, options.rounds, warmup=options.warmup)
    return Cell(
        prompt,
        completion,
        {name: estimate(median, rounds[name]) for name in passes},
        {name: estimate(median_ratio, rounds[TRL], rounds[name]) for name in (SHARED, PADDED)},
        off,
        peak,
        rounds,
    )


def _ours(model: Any, group: Group, advantages: Any, share: str, folder: Path) -> Callable[[], None]:
    """Return a pass as `trajgym train` makes it."""
    longest = max(len(t.rows[0].ids) for t in group.trajectories)
    config = load_config(
        {
            "updates": 1,
            "kl_coef": 0.0,
            "normalizer": "token",
            "share_prefix": share,
            "max_turn_tokens": longest - 1,
            "max_episode_tokens": longest,
            "microbatch_tokens": longest * len(group.trajectories),
        }
    )
    ranks = Ranks(cpu=True, deadline=60.0)
    learner = Learner(
        model,
        config,
        reference=None,
        ranks=ranks,
        shards=Shards(ranks, config),
        watch=Stopwatch(),
        device=torch.device("cpu"),
        folder=folder,
    )
    if share == "auto" and not learner.share:
        raise SystemExit(f"update: {learner.sharing}")

    def work() -> None:
        batch = learner.lay_out([group], [advantages])
        sums = dict.fromkeys(("loss", "kl", "entropy", "clip", "gap"), 0.0)
        if wrong := learner._add_gradients(batch.micro, [None] * len(batch.micro), batch.normalizer, sums, None):
            raise SystemExit(f"update: {wrong}")

    return work


def _theirs(model: Any, tokenizer: Any, group: Group, advantages: Any, folder: Path) -> Callable[[], None]:
    """Return a pass as TRL's trainer makes it."""
    from datasets import Dataset
    from trl import GRPOConfig as Config
    from trl import GRPOTrainer

    logging.getLogger("trl").setLevel(logging.ERROR)
    members = len(group.trajectories)
    rows = [t.rows[0] for t in group.trajectories]
    start = rows[0].mask.index(1)
    arguments = Config(
        output_dir=str(folder),
        per_device_train_batch_size=members,
        num_generations=members,
        max_completion_length=len(rows[0].ids) - start,
        beta=0.0,
        loss_type="dapo",
        temperature=1.0,
        epsilon_high=0.28,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
    )
    forward = model.__dict__.get("forward")
    trainer: Any = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * members}),
        processing_class=tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1
    theirs = model.__dict__.get("forward")
    model.eval()
    prompts = torch.tensor([row.ids[:start] for row in rows])
    completions = torch.tensor([row.ids[start:] for row in rows])
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions,
        "completion_mask": torch.ones_like(completions),
        "advantages": torch.tensor([turns[0] for turns in advantages]),
        "num_items_in_batch": torch.tensor(completions.numel()),
    }

    def work() -> None:
        model.forward = theirs  # TRL replaces the model's own, which the others are to have
        try:
            trainer._compute_loss(model, inputs).backward()
        finally:
            if forward is None:
                del model.forward
            else:
                model.forward = forward

    if forward is None:
        del model.forward
    else:
        model.forward = forward
    return work


def _gradient(model: Any, work: Callable[[], None]) -> Tensor:
    model.zero_grad(set_to_none=True)
    work()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _seconds(model: Any, work: Callable[[], None], clock: Callable[[], float]) -> float:
    model.zero_grad(set_to_none=True)
    start = clock()
    work()
    return clock() - start


def _peak(model: Any, work: Callable[[], None]) -> int:
    model.zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def _show(cells: Sequence[Cell], options: argparse.Namespace, where: str) -> None:
    table = Table(
        title=f"Gradient of one group of {options.members}, {options.model}, float32, {options.rounds} rounds\n{where}"
    )
    for name in (
        "prompt/completion",
        "contender",
        "s of processor" if options.cpu_time else "s",
        "TRL's time over ours (95 %)",
        "peak MiB",
        "off TRL's gradient",
    ):
        table.add_column(name, justify="left" if name == "contender" else "right")
    for cell in cells:
        for name, seconds in cell.seconds.items():
            speed = cell.speed.get(name)
            table.add_row(
                f"{cell.prompt}/{cell.completion}",
                name,
                f"{seconds.value:.3g}",
                f"{speed.value:.2f} ({speed.low:.2f} … {speed.high:.2f})" if speed else "",
                f"{cell.peak[name] / 2**20:.0f}",
                f"{cell.off[name]:.1e}" if name in cell.off else "",
            )
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(table)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="update.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="tiny", help="'tiny', a folder, or a Hugging Face hub id")
    parser.add_argument(
        "--lengths", nargs="+", type=_lengths, default=[(64, 64), (128, 64)], metavar="PROMPT/COMPLETION"
    )
    parser.add_argument("--members", type=int, default=8, help="trajectories of the group, at least 2")
    parser.add_argument("--rounds", type=int, default=20, help="at least 2")
    parser.add_argument("--warmup", type=int, default=1, help="rounds before those, thrown away")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of torch")
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor time of all threads, where others use the machine too"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    options = parser.parse_args(arguments)
    if options.rounds < 2 or options.members < 2 or options.warmup < 0 or options.threads < 1:
        parser.error("--rounds and --members must be at least 2, --warmup at least 0, --threads at least 1")
    return options


def _lengths(text: str) -> tuple[int, int]:
    try:
        prompt, completion = (int(part) for part in text.split("/"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be two numbers like 128/64, got {text!r}") from None
    if prompt < 1 or completion < 2:
        raise argparse.ArgumentTypeError(f"needs a prompt of 1 token and a completion of 2 at least, got {text!r}")
    return prompt, completion


def _say(text: str) -> None:
    print(f"update: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
