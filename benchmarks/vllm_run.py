"""How fast turns are sampled: our engine, vLLM's in the same process, and ``model.generate``.

    python benchmarks/vllm_run.py [--model tiny] [--rows 8 32] [--prompt 128] [--tokens 64] [--rounds 5]

Needs vLLM in the environment, see docs/vllm.md. All three sample the same number of tokens after the same prompts, with
the same weights, at temperature 1, and report nothing but them. They run one after the other in every round; with other
prompts or numbers of tokens in any round there are no figures. vLLM's cache of prefixes is dropped before each run, as
our own cache is.

vLLM is asked for what training needs, and charged for it: a seed for every request, without which it draws for all of
them at once, and the log-probability of each token. So are we; ``model.generate`` gives neither. The same seeds mean
the same prompts, and the same seed for a stream here and in vLLM. They do not mean the same tokens: each engine draws
in its own way from a seed, and ``model.generate`` draws from torch's global generator.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated

import torch
import tyro
from machine import machine
from rollout_contenders import Sampled, decode, decode_ours, decode_theirs, lengths, measured
from rounds import Array, estimate, median, median_ratio

from trajgym.policies.vllm import VLLMSampler
from trajgym.policies.vllm_options import VLLMOptions
from trajgym.trainers.models import load_model

__all__ = ["main"]


def main(
    model: Annotated[str, tyro.conf.arg(help="Hub id, folder, or tiny.")] = "tiny",
    rows: Annotated[tuple[int, ...], tyro.conf.arg(help="Turns at the same time.")] = (8, 32),
    prompt: Annotated[int, tyro.conf.arg(help="Tokens of each prompt; all prompts differ.")] = 128,
    tokens: Annotated[int, tyro.conf.arg(help="New tokens of each turn.")] = 64,
    rounds: Annotated[int, tyro.conf.arg(help="How often each is measured.")] = 5,
    warmup: Annotated[int, tyro.conf.arg(help="Rounds before those, which are thrown away.")] = 1,
    dtype: Annotated[str, tyro.conf.arg(help="Of the weights: float32 or bfloat16.")] = "float32",
    eager: Annotated[bool, tyro.conf.arg(help="Run vLLM's model without compiling it.")] = False,
    cache: Annotated[float, tyro.conf.arg(help="Size of vLLM's cache in GiB.")] = 1.0,
) -> int:
    """Measure and print the table."""
    facts = machine()  # before anything is at work here
    weights, _ = load_model(model, dtype=dtype)
    options = VLLMOptions.model_validate({"enforce_eager": eager, "kv_cache_gib": cache})
    engine = VLLMSampler(
        str(weights.name_or_path),
        slots=max(rows),
        max_length=prompt + tokens,
        stop_ids=(),
        dtype=dtype,
        options=options,
    )
    busy = ", busy with other work" if facts.busy else ""
    threads = os.environ.get("OMP_NUM_THREADS") or torch.get_num_threads()
    how = "without compiling" if eager else "compiled"
    print(
        f"{model}, {dtype}, {tokens} tokens after {prompt}; {facts.cores} × {facts.processor}{busy}, {threads} "
        f"threads; vLLM {how}, a seed for each turn and log-probabilities, as here; medians of {rounds} rounds\n"
    )
    print(
        "| turns at once | tokens/s here | tokens/s vLLM | tokens/s `model.generate` | here / vLLM | vLLM / generate "
        "| tokens that each sampled | tokens of a prompt |"
    )
    print(f"|{'---|' * 8}")
    for count in rows:
        size = {"rows": count, "prompt": prompt, "tokens": tokens}
        contenders = {
            "here": decode_ours(weights, **size),
            "vllm": decode(engine, weights, **size),
            "generate": decode_theirs(weights, **size),
        }
        print(_row(count, contenders, rounds, warmup))
    engine.close_engine()
    return 0


def _row(count: int, contenders: dict[str, Callable[[], Sampled]], rounds: int, warmup: int) -> str:
    times, work = measured(contenders, rounds, warmup)
    rates = " | ".join(f"{estimate(_rate, times[key]).value:,.0f}" for key in contenders)
    ratios = []
    for fast, slow in (("here", "vllm"), ("vllm", "generate")):
        ratio = estimate(median_ratio, times[slow], times[fast])
        ratios.append(f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]")
    return f"| {count} | {rates} | {' | '.join(ratios)} | {work.tokens:,} | {lengths(work)} |"


def _rate(seconds: Array) -> Array:
    return 1.0 / median(seconds)


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
