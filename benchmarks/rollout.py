"""How fast whole episodes are sampled, beside TRL's tool loop, and single turns beside ``model.generate``.

    python benchmarks/rollout.py [--model tiny] [--episodes 32] [--turns 6 12] [--rounds 5]

All measure the same model in the same process, one after the other in every round, on as many threads as the machine
has cores. Only tokens that were sampled and kept count. See :mod:`rollout_contenders` for what makes the work the same:
with other prompts, turns or numbers of tokens in any round there are no figures.

The same seeds mean the same tasks, and the same prompts of single turns. They do not mean the same draws of tokens: TRL
and ``model.generate`` draw from torch's global generator, and here every turn has a generator of its own.

The last table is about tools that take their time: how long episodes take beside the slowest one and beside the sum.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import tyro
from machine import machine
from rollout_contenders import Sampled, decode_ours, decode_theirs, lengths, measured, ours, slow_tool, teach, theirs
from rounds import Array, estimate, median, median_ratio

from trajgym.envs.make import make
from trajgym.policies.base import TextPolicy
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.trainers.models import load_model
from trajgym.types import Message, Task

__all__ = ["main"]

_WORK = "turns of each | tokens that each sampled | tokens of a prompt"


def main(
    model: Annotated[str, tyro.conf.arg(help="Hub id, folder, or tiny.")] = "tiny",
    episodes: Annotated[int, tyro.conf.arg(help="Episodes at the same time, a multiple of 8.")] = 32,
    turns: Annotated[tuple[int, ...], tyro.conf.arg(help="Lengths of episodes to measure.")] = (6, 12),
    rounds: Annotated[int, tyro.conf.arg(help="How often each is measured.")] = 5,
    tokens: Annotated[int, tyro.conf.arg(help="Tokens of a single long turn.")] = 64,
    dtype: Annotated[str, tyro.conf.arg(help="Of the weights: float32 or bfloat16.")] = "float32",
    steps: Annotated[int, tyro.conf.arg(help="Most updates in which the model learns to call.")] = 200,
    rate: Annotated[float, tyro.conf.arg(help="Learning rate of those.")] = 1e-3,
) -> int:
    """Measure and print the tables."""
    import torch

    facts = machine()  # before anything is at work here
    weights, tokenizer = load_model(model)
    teach(weights, tokenizer, steps=steps, rate=rate, say=lambda text: print(text, file=sys.stderr, flush=True))
    weights = weights.to(getattr(torch, dtype)).eval()
    busy = ", busy with other work" if facts.busy else ""
    print(
        f"{model}, {dtype}, {episodes} at once; {facts.cores} × {facts.processor}{busy}; medians of {rounds} rounds\n"
    )
    print(f"| episodes | tokens/s here | tokens/s TRL | ratio | {_WORK} |\n|{'---|' * 7}")
    for count in turns:
        both = {
            "ours": ours(weights, tokenizer, episodes=episodes, turns=count),
            "theirs": theirs(weights, tokenizer, episodes=episodes, turns=count),
        }
        print(_row(f"{count} turns", both, rounds))
    print(f"\n| one turn | tokens/s here | tokens/s `model.generate` | ratio | {_WORK} |\n|{'---|' * 7}")
    for prompt in (16, 256):
        size = {"rows": episodes, "prompt": prompt, "tokens": tokens}
        both = {"ours": decode_ours(weights, **size), "theirs": decode_theirs(weights, **size)}
        print(_row(f"{tokens} tokens after {prompt}", both, rounds))
    print("\n| a tool that takes | episodes | seconds | slowest episode's tools | all tools |\n|---|---|---|---|---|")
    for seconds in (0.2, 1.0):
        print(slow(seconds))
    return 0


def slow(seconds: float, episodes: int = 16) -> str:
    """Return a row about episodes of one to four calls of a slow tool, all at the same time."""

    class Waiting(TextPolicy):
        def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
            done = sum(m.role == "tool" for m in messages)
            if done > seed % 4:
                return "#### 1"
            return f'<tool_call>\n{{"name": "wait", "arguments": {{"seconds": {seconds}}}}}\n</tool_call>'

    calls = [1 + seed % 4 for seed in range(episodes)]
    with EnvPool(lambda: make("ArithmeticTool-v0", tools=[slow_tool()]), threads=episodes) as pool:
        plans = [Episode(seed, seed) for seed in range(episodes)]
        collect(Waiting(capacity=episodes), pool, plans[:1])  # makes what is made once
        began = time.perf_counter()
        played = collect(Waiting(capacity=episodes), pool, plans)
        took = time.perf_counter() - began
    assert [len(t.steps) - 1 for t in played] == calls
    return f"| {seconds:g} s | {episodes} | {took:.2f} | {max(calls) * seconds:.1f} | {sum(calls) * seconds:.1f} |"


def _row(name: str, contenders: dict[str, Callable[[], Sampled]], rounds: int) -> str:
    times, work = measured(contenders, rounds)
    rates = {key: estimate(_rate, values).value for key, values in times.items()}
    ratio = estimate(median_ratio, times["theirs"], times["ours"])
    return (
        f"| {name} | {rates['ours']:,.0f} | {rates['theirs']:,.0f} | {ratio.value:.2f} "
        f"[{ratio.low:.2f}, {ratio.high:.2f}] | {work.turns:,} | {work.tokens:,} | {lengths(work)} |"
    )


def _rate(seconds: Array) -> Array:
    return 1.0 / median(seconds)


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
