"""The contenders of the rollout benchmark: one model that does nothing but call a tool, and who may sample from it.

Everybody must do the same work, and how long an episode is must not hang on luck. So the model is taught to answer
whatever it sees with the same call, and the environment ends each episode by its turn limit.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rounds import interleave
from torch.nn.functional import cross_entropy

from trajgym.envs.make import make
from trajgym.envs.tools.base import Tool, tool
from trajgym.policies.base import Sampler, TextPolicy
from trajgym.policies.hf import HFSampler
from trajgym.policies.llm import LLMPolicy
from trajgym.policies.render import Renderer
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.trainers.data import demonstration
from trajgym.types import Message, Task

__all__ = [
    "CALL",
    "Sampled",
    "UnequalWorkError",
    "decode",
    "decode_ours",
    "decode_theirs",
    "lengths",
    "measured",
    "ours",
    "slow_tool",
    "teach",
    "theirs",
]

ENV = "ArithmeticTool-v0"
CALL = (
    "First I look at what is known, then I compute the next value.\n"
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "7*6"}}\n</tool_call>'
)
GROUP = 8  # episodes of the same task, as for GRPO
_TURN_TOKENS = 96
_TEMPERATURE = 0.2  # so that what is almost certain is certain
_LEARNED = 1e-3  # loss per token at which the model has learned its call


@dataclass(frozen=True)
class Sampled:
    """What a rollout came to.

    Args:
        seconds: From the first prompt to the last reward.
        tokens: Sampled by the model and kept.
        turns: Of all episodes.
        prompts: Token ids that each episode began with.
    """

    seconds: float
    tokens: int
    turns: int
    prompts: tuple[tuple[int, ...], ...]

    @property
    def work(self) -> tuple[Any, ...]:
        """What all contenders must have in common."""
        return self.tokens, self.turns, sorted(self.prompts)

    def __str__(self) -> str:
        after = f"{len(self.prompts):,} prompts of {lengths(self)} each"
        return f"{self.tokens:,} tokens in {self.turns:,} turns after {after}"


class UnequalWorkError(Exception):
    """Contenders did not do the same work, so that their times say nothing; the message says who did what."""


def lengths(done: Sampled) -> str:
    """Return how long the prompts were, in tokens: one figure, or the shortest and the longest."""
    found = sorted({len(ids) for ids in done.prompts})
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} … {found[-1]:,}"


def measured(
    contenders: dict[str, Callable[[], Sampled]], rounds: int, warmup: int = 1
) -> tuple[dict[str, list[float]], Sampled]:
    """Time contenders in the same rounds.

    Args:
        contenders: By name.
        rounds: How often each is measured.
        warmup: Rounds before those, which are thrown away.

    Returns:
        The seconds per token of each, round by round, and what every one of them did.

    Raises:
        UnequalWorkError: When one did something else than the first, in any round.
    """
    first: list[tuple[str, Sampled]] = []

    def timed(name: str) -> Callable[[], float]:
        def run() -> float:
            done = contenders[name]()
            if not first:
                first.append((name, done))
            other, expected = first[0]
            if done.work != expected.work:
                said = " (the same lengths, other tokens)" if str(done) == str(expected) else ""
                raise UnequalWorkError(f"Not the same work. {name}: {done}; {other}: {expected}{said}.")
            return done.seconds / done.tokens

        return run

    return interleave({name: timed(name) for name in contenders}, rounds, warmup), first[0][1]


class Calling(TextPolicy):
    """Answers everything with the same call."""

    def __init__(self, text: str) -> None:
        super().__init__(capacity=64)
        self._text = text

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        """Write the call."""
        return self._text


@tool
def wait(seconds: float) -> str:
    """Take some time.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "done"


def slow_tool() -> Tool:
    """Return a tool that does nothing for some seconds."""
    return wait


def teach(model: Any, tokenizer: Any, *, steps: int, rate: float, turns: int = 12, say: Callable[[str], None]) -> None:
    """Teach a model to answer everything with :data:`CALL`.

    Args:
        model: Trained in place.
        tokenizer: Its own.
        steps: Most updates, of four dialogues each.
        rate: Learning rate.
        turns: Of a dialogue.
        say: Told about the progress.
    """
    with EnvPool(lambda: make(ENV, max_turns=turns), threads=0) as pool:
        played = collect(Calling(CALL), pool, [Episode(i, i) for i in range(64)])
    rows = [demonstration(Renderer(tokenizer), trajectory) for trajectory in played]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    rng = random.Random(0)
    model.train()
    for step in range(steps):
        loss = torch.zeros(())
        for row in rng.sample(rows, 4):
            ids = torch.tensor([row.ids])
            said = torch.tensor(row.mask[1:], dtype=torch.bool)
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1][said]
            loss = loss + cross_entropy(logits.float(), ids[0, 1:][said]) / 4
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            say(f"step {step:3d}/{steps}  loss {loss.item():.4f}")
        if loss.item() < _LEARNED:
            break
    model.eval()


def ours(model: Any, tokenizer: Any, *, episodes: int, turns: int) -> Callable[[], Sampled]:
    """Return a rollout of this library.

    Args:
        model: From :func:`teach`.
        tokenizer: Its own.
        episodes: At the same time, in groups of the same task.
        turns: Of each.
    """
    renderer = Renderer(tokenizer)
    length = min(512 + 160 * turns, model.config.max_position_embeddings)
    sampler = HFSampler(model, slots=episodes, max_length=length, stop_ids=renderer.stop_ids, temperature=_TEMPERATURE)
    policy = LLMPolicy(sampler, renderer, max_turn_tokens=_TURN_TOKENS, max_episode_tokens=length)
    pool = EnvPool(lambda: make(ENV, max_turns=turns, reward="hybrid"), threads=16)
    tasks = _tasks(episodes // GROUP)
    plans = [Episode(i // GROUP, i, task=tasks[i // GROUP]) for i in range(episodes)]

    def run() -> Sampled:
        sampler.reset()
        began = time.perf_counter()
        played = collect(policy, pool, plans, deterministic=True)
        seconds = time.perf_counter() - began
        tokens = sum(sum(row.mask) for t in played for row in t.rows)
        prompts = tuple(t.rows[0].ids[: t.rows[0].mask.index(1)] for t in played)
        return Sampled(seconds, tokens, sum(len(t.steps) for t in played), prompts)

    return run


def theirs(model: Any, tokenizer: Any, *, episodes: int, turns: int) -> Callable[[], Sampled]:
    """Return a rollout of TRL's GRPOTrainer, whose tool loop runs the same environment's tools.

    The reward is a constant, so that TRL pays for nothing but the rollout.

    Args:
        model: From :func:`teach`.
        tokenizer: Its own.
        episodes: At the same time, in groups of the same task.
        turns: Of each.
    """
    from trl import GRPOConfig, GRPOTrainer

    from trajgym.trainers.trl import environment_factory, ready_tokenizer

    factory = environment_factory(ENV, max_turns=turns + 1)  # its own limit is the number of rounds
    rows = factory.dataset(episodes // GROUP)
    options = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=episodes,
        num_generations=GROUP,
        steps_per_generation=1,
        max_steps=1,
        max_completion_length=160 * turns,
        max_tool_calling_iterations=turns - 1,
        temperature=_TEMPERATURE,
        beta=0.0,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **columns: [0.0] * len(completions),
        args=options,
        train_dataset=rows,
        processing_class=ready_tokenizer(tokenizer),
        environment_factory=factory,
    )
    batch = [dict(row) for row in rows for _ in range(GROUP)]

    def run() -> Sampled:
        model.eval()
        began = time.perf_counter()
        with torch.no_grad():
            output = trainer._generate_and_score_completions([dict(row) for row in batch])
        seconds = time.perf_counter() - began
        kept = output["completion_mask"] * output.get("tool_mask", 1)
        starts = kept[:, 1:].sum() - (kept[:, 1:] * kept[:, :-1]).sum() + kept[:, 0].sum()
        asked = zip(output["prompt_ids"], output["prompt_mask"].bool(), strict=True)
        prompts = tuple(tuple(ids[there].tolist()) for ids, there in asked)
        return Sampled(seconds, int(kept.sum()), int(starts), prompts)

    return run


def decode_ours(model: Any, *, rows: int, prompt: int, tokens: int) -> Callable[[], Sampled]:
    """Return the sampling of one long turn in each of some streams, prompts included.

    Args:
        model: Any that the engine takes.
        rows: Streams, each with a prompt of its own.
        prompt: Tokens of a prompt.
        tokens: To sample in each.
    """
    sampler = HFSampler(model, slots=rows, max_length=prompt + tokens, stop_ids=())
    return decode(sampler, model, rows=rows, prompt=prompt, tokens=tokens)


def decode(sampler: Sampler, model: Any, *, rows: int, prompt: int, tokens: int) -> Callable[[], Sampled]:
    """Return the same by another sampler of ours.

    Args:
        sampler: With the same weights, and no stop tokens.
        model: Tells the size of the vocabulary, from which prompts are drawn.
        rows: Streams, each with a prompt of its own.
        prompt: Tokens of a prompt.
        tokens: To sample in each.
    """
    prompts = _prompts(model, rows, prompt)

    def run() -> Sampled:
        sampler.reset()
        began = time.perf_counter()
        for number, ids in enumerate(prompts):
            sampler.generate(sampler.open(ids, seed=number), max_new_tokens=tokens)
        turns: list[Sequence[int]] = []
        while len(turns) < rows:
            turns += [turn.ids for turn in sampler.step()]
        return Sampled(time.perf_counter() - began, sum(map(len, turns)), rows, prompts)

    return run


def decode_theirs(model: Any, *, rows: int, prompt: int, tokens: int) -> Callable[[], Sampled]:
    """Return the same by ``model.generate``."""
    prompts = _prompts(model, rows, prompt)
    ids = torch.tensor(prompts)

    def run() -> Sampled:
        began = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                pad_token_id=0,
            )
        return Sampled(time.perf_counter() - began, int(out.shape[1] - prompt) * rows, rows, prompts)

    return run


def _tasks(count: int) -> list[Task]:
    """Return the tasks that TRL's rows are: an environment factory draws them with the same seed."""
    source = make(ENV).unwrapped.tasks  # type: ignore[attr-defined]
    draws = np.random.default_rng(0)
    return [source.sample(draws) for _ in range(count)]


def _prompts(model: Any, rows: int, length: int) -> tuple[tuple[int, ...], ...]:
    rng = random.Random(0)
    size = int(model.get_input_embeddings().weight.shape[0])
    return tuple(tuple(rng.randrange(size) for _ in range(length)) for _ in range(rows))
