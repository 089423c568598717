"""The models that the learning benchmark begins with: very small, made in minutes, and mediocre on purpose.

A run of the benchmark may take a minute or so of one core, so its model has half a million weights at most, and a
tokenizer that writes the frame of a call, a number and a room as one token each: what is copied from the question is
then copied in one go, which is what so small a model can learn in minutes. It first learns the work from sound
demonstrations, then a bad habit: to slip at half of the steps of a calculation, or to settle for the box at half of the
turns. What reinforcement learning has left to teach is which of the two things that the model does was right, at
every step, which is a matter of credit.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from learning_demonstrators import Calculating, Walking
from tokenizers import AddedToken
from torch import Tensor
from torch.nn.functional import cross_entropy

from trajgym.envs.make import make
from trajgym.policies.base import Policy
from trajgym.policies.render import Renderer
from trajgym.policies.tiny import build_model, build_tokenizer
from trajgym.protocols import get_protocol
from trajgym.rollout import EnvPool, Episode, collect, derive_seed
from trajgym.trainers.data import demonstration
from trajgym.types import TokenStream, ToolCall, ToolSpec, Trajectory

__all__ = ["STUDENTS", "Lesson", "Student", "prepare"]

_BATCH = 16
_MARK = "@@"
# Weight of predicting questions and observations too: rooms and numbers come again there, so copying is learned sooner.
_GIVEN_WEIGHT = 0.3
_WORD = re.compile("[a-z]+")
_ROLES = ("system", "user", "assistant", "tool")
_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True)
class Lesson:
    """Demonstrations to learn from.

    Args:
        count: How many.
        difficulty: The environment's argument.
        habit: How often the demonstrator gives way to its bad habit.
        passes: How often each is seen.
        rate: Peak learning rate of a new schedule, which begins with this lesson; the schedule of the lesson before
            goes on when it is left out.
    """

    count: int
    difficulty: tuple[int, int]
    habit: float = 0.0
    passes: int = 1
    rate: float | None = None


@dataclass(frozen=True)
class Student:
    """How a model is made.

    Args:
        env: Environment id.
        demonstrator: Makes the policy to imitate from how bad its habit is.
        lessons: One after the other.
        env_kwargs: The environment's other arguments.
        width: Hidden size.
        layers: Number of layers.
        learning_rate: Peak rate.
        sharpness: The logits are multiplied by it in the end: so small a model is less sure than it is right, and at
            temperature 1 most of what it got wrong would be the sampler's doing.
    """

    env: str
    demonstrator: Callable[[float], Policy]
    lessons: tuple[Lesson, ...]
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    width: int = 64
    layers: int = 3
    learning_rate: float = 4e-3
    sharpness: float = 1.0


STUDENTS = {
    "arithmetic": Student(
        "ArithmeticTool-v0",
        Calculating,
        (
            Lesson(3000, (1, 2), passes=2),
            Lesson(12000, (1, 8), passes=7),
            Lesson(1500, (1, 8), habit=0.5, rate=1e-3),
        ),
        {"system": "", "distractors": 0.0},
        width=96,
        learning_rate=3e-3,
        sharpness=1.5,
    ),
    "detour": Student(
        "Detour-v0",
        Walking,
        (Lesson(5000, (1, 1), habit=0.15, passes=7), Lesson(1500, (1, 1), habit=0.5)),
        {"system": ""},
        layers=2,
        learning_rate=5e-3,
    ),
}
"""What is trained for which environment."""


def prepare(name: str, folder: Path, *, seed: int = 0, student: Student | None = None) -> Path:
    """Return the folder of a model, which is made when it is not there.

    Args:
        name: A key of :data:`STUDENTS`; names the folder.
        folder: Where models are kept.
        seed: Seeds demonstrations and weights.
        student: Made in place of the one of that name.
    """
    target = folder / name
    if (target / "config.json").is_file():
        return target
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model, tokenizer = teach(
        student or STUDENTS[name], seed=seed, say=lambda text: print(f"{name}: {text}", flush=True)
    )
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    os.replace(partial, target)
    return target


def teach(student: Student, *, seed: int, say: Callable[[str], None]) -> tuple[Any, Any]:
    """Return a model that has had its lessons, and its tokenizer.

    Args:
        student: What to make.
        seed: Seeds demonstrations and weights.
        say: Told about the progress.
    """
    start = time.monotonic()
    lessons = [_play(student, lesson, derive_seed(seed, "lesson", i)) for i, lesson in enumerate(student.lessons)]
    tools: Mapping[str, ToolSpec] = make(student.env, **student.env_kwargs).unwrapped.tools  # type: ignore[attr-defined]
    tokenizer = compact_tokenizer([t for lesson in lessons for t in lesson[:1500]], tools)
    renderer = Renderer(tokenizer)
    model = build_model(tokenizer, width=student.width, layers=student.layers, seed=seed)
    say(f"{model.num_parameters():,} weights, {len(tokenizer)} tokens; demonstrations {time.monotonic() - start:.0f} s")
    model.train()
    for course in _courses(student.lessons):
        batches = []
        for i in course:
            rows = [demonstration(renderer, t) for t in lessons[i]]
            for turn in range(student.lessons[i].passes):
                batches += _batches(rows, seed + turn)
        peak = student.lessons[course[0]].rate or student.learning_rate
        for step, imitation in enumerate(_learn(model, batches, peak)):
            if step % 100 == 0 or step == len(batches) - 1:
                say(f"step {step:4d}/{len(batches)}  loss {imitation:.4f}  {time.monotonic() - start:.0f} s")
    with torch.no_grad():
        model.model.norm.weight.mul_(student.sharpness)  # the last thing before the logits, which are linear in it
    return model.eval(), tokenizer


def compact_tokenizer(played: Sequence[Trajectory], tools: Mapping[str, ToolSpec]) -> Any:
    """Train a tokenizer on dialogues, with roles, frames of calls and what is copied into them as one token each."""
    tokenizer = build_tokenizer([m.content for t in played for m in t.messages], vocab_size=640)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{role}|>" for role in _ROLES]})
    whole = ["#### "]
    for tool in tools.values():
        (argument,) = tool.parameters["properties"]
        whole += get_protocol("hermes").render(ToolCall(tool.name, {argument: _MARK})).split(_MARK)
    for call in (call for t in played for step in t.steps for call in step.action.calls):
        whole += [word for value in call.arguments.values() for word in _WORD.findall(value)]
    whole += [str(number) for number in range(1000)]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in dict.fromkeys(whole)])
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _play(student: Student, lesson: Lesson, seed: int) -> list[Trajectory]:
    """Return demonstrations, played through the environment."""
    episodes = [Episode(derive_seed(seed, "env", i), derive_seed(seed, "habit", i)) for i in range(lesson.count)]
    options = {**student.env_kwargs, "difficulty": lesson.difficulty}
    with EnvPool(lambda: make(student.env, **options), threads=1) as pool:
        return collect(student.demonstrator(lesson.habit), pool, episodes, deterministic=True)


def _courses(lessons: Sequence[Lesson]) -> list[list[int]]:
    """Return the lessons that share a schedule, by their places."""
    begins = [i for i, lesson in enumerate(lessons) if i == 0 or lesson.rate is not None]
    return [list(range(a, b)) for a, b in itertools.pairwise([*begins, len(lessons)])]


def _learn(model: Any, batches: Sequence[Sequence[TokenStream]], peak: float) -> Iterator[float]:
    """Imitate batch after batch, and yield each one's loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.01, betas=(0.9, 0.98))
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 50) * _cosine(s / len(batches)))
    for batch in batches:
        loss, imitation = _imitation(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        optimizer.zero_grad()
        yield imitation


def _batches(rows: Sequence[TokenStream], seed: int) -> list[list[TokenStream]]:
    """Cut rows into batches of similar length, in no order of length."""
    rng = random.Random(seed)
    batches = []
    for start in range(0, len(rows), 16 * _BATCH):
        near = sorted(rows[start : start + 16 * _BATCH], key=lambda row: len(row.ids))
        some = [near[i : i + _BATCH] for i in range(0, len(near), _BATCH)]
        rng.shuffle(some)
        batches += some
    return batches


def _imitation(model: Any, rows: Sequence[TokenStream]) -> tuple[Tensor, float]:
    """Return the loss, and the mean of −log P over the demonstrator's tokens alone."""
    length = max(len(row.ids) for row in rows)
    ids = torch.zeros((len(rows), length), dtype=torch.long)
    kind = torch.full((len(rows), length), -1)  # 1 said by the demonstrator, 0 given, -1 padding
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        kind[i, : len(row.ids)] = torch.tensor(row.mask)
    real = kind[:, 1:] >= 0
    states = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][real]
    costs = cross_entropy(model.lm_head(states), ids[:, 1:][real], reduction="none")
    said = kind[:, 1:][real] == 1
    imitation = costs[said].mean()
    return imitation + _GIVEN_WEIGHT * costs[~said].sum() / said.sum(), imitation.item()


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress))) * 0.95 + 0.05
