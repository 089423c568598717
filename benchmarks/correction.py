"""What the correction for a sampler that is not the trained policy repairs, and what it leaves: exactly, and trained.

    python benchmarks/correction.py [--seeds 10]

The policy is a table of logits, one row for each task and each beginning of an answer. All answers are enumerated with
their probabilities under the sampler μ and the policy π, and go through the trainer's own loss, so the expected
gradient is exact. Then policies are trained on sampled answers; how far they get is exact too. The output is Markdown,
the same on every run with the same options. Takes some minutes.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trajgym.trainers.loss import policy_loss, sampler_weights

__all__ = ["Answers", "expected_gradient", "main", "true_gradient"]

CAP = 2.0  # the default of sampler_cap
UNCAPPED = 1e30
WORDS, TASKS = 3, 4
LENGTHS = (1, 2, 4)
NOISE = (0.1, 0.3, 1.0)  # standard deviation of the difference of logits
KINDS = ("none", "uncapped", "capped", "product")
UPDATES, MEMBERS, KL_COEF = 100, 8, 0.1
RATES = {1: 4.0, 4: 16.0}  # by tokens of an answer
SAMPLERS: dict[str, Callable[[list[Tensor], Tensor], Tensor]] = {
    "the policy": lambda history, noise: history[-1],
    "1 update old, in bfloat16": lambda history, noise: history[-2:][0].bfloat16().double(),
    "8 updates old, in bfloat16": lambda history, noise: history[-9:][0].bfloat16().double(),
    "logits off by 0.3": lambda history, noise: history[-1] + 0.3 * noise,
    "logits off by 1": lambda history, noise: history[-1] + noise,
}


@dataclass(frozen=True)
class Answers:
    """Every answer to every task, token by token.

    Args:
        rows: Row of the table from which each token is drawn. Shape: (answers, tokens).
        words: What was drawn. Shape: (answers, tokens).
        rewards: Of each answer. Shape: (answers,).
        size: Rows of the table.
    """

    rows: Tensor
    words: Tensor
    rewards: Tensor
    size: int

    def logp(self, table: Tensor) -> Tensor:
        """Return log π of each token. Shape: (answers, tokens)."""
        return torch.log_softmax(table, -1)[self.rows, self.words]

    def chances(self, table: Tensor) -> Tensor:
        """Return the probability of each answer, of a task drawn evenly. Shape: (answers,)."""
        return self.logp(table).sum(-1).exp() / TASKS

    def value(self, table: Tensor) -> Tensor:
        """Return J, the expected reward."""
        return (self.chances(table) * self.rewards).sum()


def enumerate_answers(length: int, seed: int) -> Answers:
    """Return all answers of so many tokens, with rewards drawn from 0 … 1."""
    beginnings: dict[tuple[int, ...], int] = {}
    rows, words = [], []
    for task in range(TASKS):
        for answer in itertools.product(range(WORDS), repeat=length):
            keys = [(task, *answer[:t]) for t in range(length)]
            rows.append([beginnings.setdefault(key, len(beginnings)) for key in keys])
            words.append(list(answer))
    draws = torch.Generator().manual_seed(seed)
    rewards = torch.rand(len(rows), generator=draws, dtype=torch.float64)
    return Answers(torch.tensor(rows), torch.tensor(words), rewards, len(beginnings))


def true_gradient(answers: Answers, table: Tensor) -> Tensor:
    """Return ∇J. Shape: as ``table``."""
    leaf = table.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(answers.value(leaf), leaf)
    return gradient


def weights(kind: str, logp: Tensor, sampler_logp: Tensor) -> Tensor:
    """Return what each token of each answer is weighed by. Shape: (answers, tokens).

    ``"product"`` is the ratio of whole answers, which the trainer does not offer: it is exact, and its variance grows
    exponentially with the length.
    """
    if kind == "none":
        return torch.ones_like(logp)
    if kind == "product":
        return (logp - sampler_logp).sum(-1, keepdim=True).exp().expand_as(logp)
    cap = CAP if kind == "capped" else UNCAPPED
    return sampler_weights(logp.flatten(), sampler_logp.flatten(), cap=cap).view_as(logp)


def expected_gradient(answers: Answers, table: Tensor, sampler: Tensor, kind: str) -> Tensor:
    """Return the mean of what a step of the trainer takes for ∇J, where ``sampler`` plays and ``table`` is trained.

    The advantage is the reward less the task's mean reward under the sampler, which changes no expectation.

    Args:
        answers: All of them.
        table: Logits of π.
        sampler: Logits of μ.
        kind: Of weights, see :func:`weights`.
    """
    leaf = table.clone().requires_grad_()
    logp, sampler_logp = answers.logp(leaf), answers.logp(sampler)
    chances = answers.chances(sampler)
    means = (chances * answers.rewards).view(TASKS, -1).sum(-1) * TASKS
    advantages = answers.rewards - means.repeat_interleave(len(answers.rewards) // TASKS)
    loss = policy_loss(
        logp.flatten(),
        logp.detach().flatten(),
        advantages[:, None].expand_as(logp).flatten(),
        normalizer=1.0,
        weights=(chances[:, None] * weights(kind, logp.detach(), sampler_logp)).flatten(),
    ).loss
    (gradient,) = torch.autograd.grad(-loss, leaf)
    return gradient


def kl_gradient(answers: Answers, table: Tensor, sampler: Tensor, kind: str) -> Tensor:
    """Return the mean of what a step takes for the gradient of the KL to even chances, summed over tokens."""
    leaf = table.clone().requires_grad_()
    logp, sampler_logp = answers.logp(leaf), answers.logp(sampler)
    chances = answers.chances(sampler)[:, None] * weights(kind, logp.detach(), sampler_logp)
    loss = policy_loss(
        logp.flatten(),
        logp.detach().flatten(),
        torch.zeros_like(logp).flatten(),
        normalizer=1.0,
        ref_logp=torch.full_like(logp, -math.log(WORDS)).flatten(),
        kl_coef=1.0,
        kl_weights=chances.flatten(),
    ).loss
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient


def train(length: int, seed: int, sampler_of: Callable[[list[Tensor], Tensor], Tensor], kind: str) -> float:
    """Train on sampled answers; return what was gained of ``J − β·KL(π‖uniform)``, as a share of what can be.

    Args:
        length: Tokens of an answer.
        seed: Of rewards and draws.
        sampler_of: Makes the sampler's logits from the policy's after each update so far, and from fixed noise.
        kind: Of weights.
    """
    answers = enumerate_answers(length, seed)
    per_task = len(answers.rewards) // TASKS
    draws = torch.Generator().manual_seed(seed)
    noise = torch.randn(answers.size, WORDS, generator=draws, dtype=torch.float64)
    table = torch.zeros_like(noise, requires_grad=True)
    reference = torch.zeros_like(noise)
    history: list[Tensor] = []
    for _ in range(UPDATES):
        history.append(table.detach().clone())
        sampler = sampler_of(history, noise)
        chances = answers.chances(sampler).view(TASKS, per_task)
        drawn = torch.multinomial(chances, MEMBERS, replacement=True, generator=draws)
        chosen = (drawn + per_task * torch.arange(TASKS)[:, None]).flatten()
        rewards = answers.rewards[chosen].view(TASKS, MEMBERS)
        others = (rewards.sum(-1, keepdim=True) - rewards) / (MEMBERS - 1)
        logp = answers.logp(table)[chosen]
        correction = weights(kind, logp.detach(), answers.logp(sampler)[chosen]).flatten()
        loss = policy_loss(
            logp.flatten(),
            logp.detach().flatten(),
            (rewards - others).view(-1, 1).expand_as(logp).flatten(),
            normalizer=len(chosen),
            weights=correction,
            ref_logp=answers.logp(reference)[chosen].flatten(),
            kl_coef=KL_COEF,
            kl_weights=correction,
        ).loss
        (gradient,) = torch.autograd.grad(loss, table)
        with torch.no_grad():
            table -= RATES[length] * gradient
    return _gained(answers, table.detach())


def _gained(answers: Answers, table: Tensor) -> float:
    """Compare ``J − β·KL`` with the best that any policy can have, β·log E exp(R/β) under the reference."""
    uniform = torch.zeros_like(table)
    apart = (answers.logp(table) - answers.logp(uniform)).sum(-1)
    reached = answers.value(table) - KL_COEF * (answers.chances(table) * apart).sum()
    powers = (answers.rewards / KL_COEF).exp().view(TASKS, -1).mean(-1)
    best, start = KL_COEF * powers.log().mean(), answers.value(uniform)
    return float((reached - start) / (best - start))


def main(arguments: Sequence[str] | None = None) -> int:
    """Enumerate, train, and print the tables. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="correction.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, help="policies, and training runs (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("there must be at least one seed")
    for line in (*_exact(options.seeds), ""):
        print(line)
    for line in _trained(options.seeds):
        print(line, flush=True)
    return 0


def _exact(seeds: int) -> Iterator[str]:
    yield "| tokens | difference of logits | nats/token | " + " | ".join(f"{k}: bias, cosine" for k in KINDS) + " |"
    yield "|---|---|---|" + "---|" * len(KINDS)
    for length in LENGTHS:
        for noise in NOISE:
            gaps: list[float] = []
            found: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in KINDS}
            for seed in range(seeds):
                answers, table, sampler = setting(length, noise, seed)
                truth = true_gradient(answers, table)
                apart = (answers.logp(table) - answers.logp(sampler)).abs().mean(-1)
                gaps.append(float((answers.chances(sampler) * apart).sum()))
                for kind, (biases, cosines) in found.items():
                    mean = expected_gradient(answers, table, sampler, kind)
                    biases.append(float((mean - truth).norm() / truth.norm()))
                    cosines.append(float((mean * truth).sum() / (mean.norm() * truth.norm())))
            cells = [f"{_short(statistics.median(b))}, {statistics.median(c):.4f}" for b, c in found.values()]
            yield f"| {length} | {noise:g} | {statistics.median(gaps):.3f} | {' | '.join(cells)} |"


def setting(length: int, noise: float, seed: int) -> tuple[Answers, Tensor, Tensor]:
    """Return answers, the logits of a random policy, and those of a sampler that differs from it by noise."""
    answers = enumerate_answers(length, seed)
    draws = torch.Generator().manual_seed(1000 + seed)
    shape = (2, answers.size, WORDS)
    table, difference = torch.randn(shape, generator=draws, dtype=torch.float64)
    return answers, table, table + noise * difference


def _trained(seeds: int) -> Iterator[str]:
    yield "| tokens | sampler | " + " | ".join(KINDS) + " |"
    yield "|---|---|" + "---|" * len(KINDS)
    for length in RATES:
        for name, sampler_of in SAMPLERS.items():
            cells = []
            for kind in KINDS:
                ends = [train(length, seed, sampler_of, kind) for seed in range(seeds)]
                cells.append(f"{statistics.median(ends):.3f} [{min(ends):.3f}, {max(ends):.3f}]")
            yield f"| {length} | {name} | {' | '.join(cells)} |"


def _short(bias: float) -> str:
    return "0" if bias < 1e-9 else f"{100 * bias:.2g} %" if bias < 0.1 else f"{100 * bias:.0f} %"


if __name__ == "__main__":
    raise SystemExit(main())
