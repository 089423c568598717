"""Make the embedded model: a tokenizer and under a million weights, by SFT on demonstrations.

    python -m trajgym.scripts.make_tiny --output policies/tiny_model

The demonstrations are expert trajectories of ``ArithmeticTool-v0`` (training split), played through the
environment, each seen once. The same seed gives the same model on the same machine.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import torch
import tyro

from trajgym.envs.make import make
from trajgym.policies.render import Renderer
from trajgym.policies.scripted import ExpertPolicy
from trajgym.policies.tiny import build_model, build_tokenizer
from trajgym.rollout import EnvPool, Episode, collect, derive_seed
from trajgym.trainers.batch import MicroBatch, make_batch
from trajgym.trainers.data import demonstration
from trajgym.trainers.models import token_logprobs
from trajgym.types import Trajectory

__all__ = ["main"]


def main(
    output: Annotated[Path, tyro.conf.arg(help="Folder for the model, in Hugging Face's format.")],
    demonstrations: Annotated[int, tyro.conf.arg(help="Number of expert trajectories.")] = 18000,
    batch_size: Annotated[int, tyro.conf.arg(help="Trajectories per optimiser step.")] = 32,
    learning_rate: Annotated[float, tyro.conf.arg(help="Peak learning rate.")] = 2e-3,
    seed: Annotated[int, tyro.conf.arg(help="Seeds tasks and weights.")] = 0,
) -> None:
    """Train the embedded model and save it."""
    start = time.monotonic()
    experts = play_experts(demonstrations, seed)
    texts = [m.content for t in experts[:4000] for m in t.messages] + [
        "system\n",
        "user\n",
        "assistant\n",
        "tool\n",
    ] * 50
    tokenizer = build_tokenizer(texts)
    model = build_model(tokenizer, seed=seed)
    renderer = Renderer(tokenizer)
    print(f"{len(experts):,} demonstrations, {len(tokenizer):,} tokens, {model.num_parameters():,} weights", flush=True)

    rows = [(t, demonstration(renderer, t)) for t in experts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    steps = math.ceil(len(rows) / batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 100) * _cosine(s / steps))
    model.train()
    for step in range(steps):
        part = rows[step * batch_size : (step + 1) * batch_size]
        tokens = sum(sum(row.mask) for _, row in part)
        labelled = [Trajectory(t.task, t.prompt, t.steps, (row,)) for t, row in part]
        ones = [[1.0] * len(t.steps) for t in labelled]
        batch = make_batch(labelled, ones, normalizer=float(tokens), pad_id=tokenizer.pad_token_id, max_tokens=16384)
        loss = sum(_backward(model, micro, tokens) for micro in batch.micro)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4d}/{steps}  loss {loss:.4f}  {time.monotonic() - start:.0f} s", flush=True)

    output.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(output)  # half the size; training starts from the rounded weights
    tokenizer.save_pretrained(output)
    size = sum(f.stat().st_size for f in output.iterdir())
    print(f"saved {size / 2**20:.1f} MiB in {output} after {time.monotonic() - start:.0f} s")


def play_experts(count: int, seed: int) -> list[Trajectory]:
    """Return ``count`` demonstrations, played through the environment."""
    episodes = [Episode(derive_seed(seed, "tiny", i), i) for i in range(count)]
    with EnvPool(lambda: make("ArithmeticTool-v0", split="train"), threads=1) as pool:
        return collect(ExpertPolicy(capacity=64), pool, episodes, deterministic=True)


def _backward(model: torch.nn.Module, micro: MicroBatch, tokens: int) -> float:
    """Add one micro-batch's gradient of ``−Σ log P / tokens``, the completion's tokens only."""
    loss = -token_logprobs(model, micro, 1.0)[0].sum() / tokens
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress))) * 0.95 + 0.05


if __name__ == "__main__":
    import trajgym  # noqa: F401  # registers the environments

    tyro.cli(main)
