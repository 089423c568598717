"""Make the embedded model: a tokenizer and under a million weights, by SFT on demonstrations.

    python -m trajgym.scripts.make_tiny --output policies/tiny_model

The demonstrations are trajectories of ``ArithmeticTool-v0`` (training split), played through the environment and each
seen once. The demonstrator knows the way but is hasty: at every turn there is a chance that it does not call the
calculator and blurts out a guess instead, as people's demonstrations do. The model that imitates it can solve the
problems and often does not; what it has yet to learn is *when to use the tool*, and that is what GRPO teaches it.

The same seed gives the same model on the same machine.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor
from torch.nn.functional import cross_entropy

from trajgym.envs.make import make
from trajgym.policies.render import Renderer
from trajgym.policies.scripted import ExpertPolicy
from trajgym.policies.tiny import build_model, build_tokenizer
from trajgym.rollout import EnvPool, Episode, collect, derive_seed
from trajgym.trainers.data import demonstration
from trajgym.types import Message, Task, TokenStream, Trajectory

__all__ = ["main"]

# Weight of predicting the questions too: a small model learns sooner where the numbers stand.
_QUESTION_WEIGHT = 0.25
# Share of the run that shows short problems only, so that copying is learned on short texts first.
_EASY_SHARE = 0.4


class HastyExpert(ExpertPolicy):
    """Plays the demonstration, but at each turn may guess the answer instead of going on.

    Args:
        haste: Probability of guessing at a turn.
    """

    def __init__(self, haste: float) -> None:
        super().__init__(capacity=64)
        self._haste = haste

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        """Write the next turn of the demonstration, or a guess."""
        turn = super().act(messages, task, seed)
        rng = random.Random(f"{seed}/{len(messages)}")
        if turn.startswith("####") or rng.random() >= self._haste:
            return turn
        return f"#### {max(0, int(task.answer) + rng.choice([-1, 1]) * rng.randint(1, 30))}"


def main(
    output: Annotated[Path, tyro.conf.arg(help="Folder for the model, in Hugging Face's format.")],
    demonstrations: Annotated[int, tyro.conf.arg(help="Number of demonstrations.")] = 36000,
    haste: Annotated[float, tyro.conf.arg(help="Chance of a guess at each turn.")] = 0.25,
    batch_size: Annotated[int, tyro.conf.arg(help="Demonstrations per optimiser step.")] = 16,
    learning_rate: Annotated[float, tyro.conf.arg(help="Peak learning rate.")] = 2e-3,
    seed: Annotated[int, tyro.conf.arg(help="Seeds tasks and weights.")] = 0,
) -> None:
    """Train the embedded model and save it."""
    start = time.monotonic()
    played = play(demonstrations, haste, seed)
    roles = ["system\n", "user\n", "assistant\n", "tool\n"] * 50
    tokenizer = build_tokenizer([m.content for t in played[:4000] for m in t.messages] + roles)
    model = build_model(tokenizer, seed=seed)
    renderer = Renderer(tokenizer)
    print(f"{len(played):,} demonstrations, {len(tokenizer):,} tokens, {model.num_parameters():,} weights", flush=True)

    easy = [t for t in played if (t.task.difficulty or 0) <= 2][: int(_EASY_SHARE * len(played))]
    chosen = {id(t) for t in easy}
    rows = [demonstration(renderer, t) for t in easy + [t for t in played if id(t) not in chosen]]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    steps = math.ceil(len(rows) / batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 100) * _cosine(s / steps))
    model.train()
    for step in range(steps):
        batch = sorted(rows[step * batch_size : (step + 1) * batch_size], key=lambda row: len(row.ids))
        said = sum(sum(row.mask) for row in batch)
        middle = len(batch) // 2  # two halves of similar length waste less padding than one batch
        loss = sum(_backward(model, half, said) for half in (batch[:middle], batch[middle:]) if half)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step:4d}/{steps}  loss {loss:.4f}  {time.monotonic() - start:.0f} s", flush=True)

    output.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(output)  # half the size; training starts from the rounded weights
    tokenizer.save_pretrained(output)
    size = sum(f.stat().st_size for f in output.iterdir())
    print(f"saved {size / 2**20:.1f} MiB in {output} after {time.monotonic() - start:.0f} s")


def play(count: int, haste: float, seed: int) -> list[Trajectory]:
    """Return ``count`` demonstrations, played through the environment."""
    episodes = [Episode(derive_seed(seed, "tiny", i), derive_seed(seed, "haste", i)) for i in range(count)]
    with EnvPool(lambda: make("ArithmeticTool-v0", split="train"), threads=1) as pool:
        return collect(HastyExpert(haste), pool, episodes, deterministic=True)


def _backward(model: Any, rows: Sequence[TokenStream], said: int) -> float:
    """Add the gradient of some rows; return ``−Σ log P / said`` over the demonstrator's tokens."""
    length = max(len(row.ids) for row in rows)
    ids = torch.zeros((len(rows), length), dtype=torch.long)
    kind = torch.full((len(rows), length), -1)  # 1 said by the demonstrator, 0 given, -1 padding
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        kind[i, : len(row.ids)] = torch.tensor(row.mask)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]

    def total(which: int) -> Tensor:
        chosen = kind[:, 1:] == which
        return cross_entropy(logits[chosen], ids[:, 1:][chosen], reduction="sum") / said

    imitation = total(1)
    (imitation + _QUESTION_WEIGHT * total(0)).backward()  # type: ignore[no-untyped-call]
    return imitation.item()


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress))) * 0.95 + 0.05


if __name__ == "__main__":
    import trajgym  # noqa: F401  # registers the environments

    tyro.cli(main)
