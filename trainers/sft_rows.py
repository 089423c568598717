"""Where the rows of supervised training come from, and which of them are trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trajgym.envs.make import make
from trajgym.envs.tasks import FiniteTasks, TaskSource
from trajgym.errors import ConfigError, DataError
from trajgym.evaluation.evaluate import fit_arguments
from trajgym.policies.llm import LLMPolicy
from trajgym.policies.render import Renderer
from trajgym.rollout import derive_seed
from trajgym.trainers.data import tokenized
from trajgym.trainers.data_expert import expert_set
from trajgym.trainers.data_quality import check_quality, format_of
from trajgym.trainers.data_rows import fingerprint
from trajgym.trainers.data_sources import Loaded, load_rows
from trajgym.trainers.datasets import format_math_dataset
from trajgym.trainers.sft_config import SFTConfig
from trajgym.types import Task, Trajectory

__all__ = ["Rows", "Sample", "Samples", "TokenRow", "demonstrated", "find_samples", "make_rows", "split_samples"]

Sample = Mapping[str, Any] | Trajectory
"""A row before it is tokens; see :func:`trajgym.trainers.data.tokenized`."""

TokenRow = dict[str, list[int]]
"""``{input_ids, completion_mask}``, two lists of the same length."""

_PATIENCE = 20  # draws per wanted task until a source counts as too small


@dataclass(frozen=True)
class Samples:
    """What there is to imitate, in its order.

    Args:
        train: To train on.
        held_out: To measure on.
        available: How many there are in all; ``None`` where they never end.
        dropped: Why others were left out, with their number.
    """

    train: Sequence[Sample]
    held_out: Sequence[Sample] = ()
    available: int | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """What a run trains on.

    Args:
        train: Rows to train on, at least one.
        held_out: Rows for ``eval_loss``, none of which is trained on.
        used: Samples that the rows to train on were made of.
        available: How many there are in all; ``None`` where they never end.
        dropped: Why samples or rows were left out, with their number.
    """

    train: list[TokenRow]
    held_out: list[TokenRow]
    used: int
    available: int | None
    dropped: Mapping[str, int]

    @property
    def record(self) -> dict[str, Any]:
        """What the run folder keeps of them, as JSON values."""
        return {
            "rows": len(self.train),
            "held_out": len(self.held_out),
            "tokens": sum(len(row["input_ids"]) for row in self.train),
            "trained_tokens": sum(sum(row["completion_mask"]) for row in self.train),
            "samples": self.used,
            "samples_available": self.available,
            "left_out": dict(self.dropped),
            "fingerprint": fingerprint([*self.train, *self.held_out]),
        }


def find_samples(config: SFTConfig, policy: LLMPolicy, tokenizer: Any) -> Samples:
    """Return what ``dataset`` names.

    Args:
        config: All options.
        policy: Who will be trained; decides in which form tool calls are written.
        tokenizer: Writes the prompts of problems that are no dialogues yet.

    Raises:
        ConfigError: When there is no such data set, or it never ends and ``max_samples`` is not given.
        DataError: When it cannot be read, has empty or duplicate rows, or nothing is left to train on.
        TemplateError: When the model's template cannot be followed.
    """

    def part(split: str | None, count: int | None) -> Samples:
        if config.dataset == "expert":
            return _played(config, policy, split, count)
        return _loaded(config, tokenizer, split, count)

    if config.eval_split is None:
        wanted = None if config.max_samples is None else config.max_samples + config.eval_samples
        found = part(None, wanted)
        parts = split_samples(config, found.train)
        return replace(parts, available=found.available, dropped=found.dropped)
    found = part(None, config.max_samples)
    held_out = part(config.eval_split, config.eval_samples).train if config.eval_samples else ()
    return Samples(found.train, held_out, found.available, found.dropped)


def split_samples(config: SFTConfig, samples: Iterable[Sample]) -> Samples:
    """Keep the last ``eval_samples`` of the first ``max_samples + eval_samples`` samples out of training.

    Raises:
        DataError: When nothing is left to train on, or rows to train on are empty or duplicates.
    """
    everything = list(samples)
    wanted = None if config.max_samples is None else config.max_samples + config.eval_samples
    chosen = everything[:wanted]
    used = len(chosen) - config.eval_samples
    if used < 1:
        raise DataError(
            f"There are {len(chosen)} samples and eval_samples ({config.eval_samples}) are to be held out, so nothing "
            "is left to train on. Lower eval_samples, or use more data."
        )
    _require_sound("The samples", [sample for sample in chosen[:used] if isinstance(sample, Mapping)])
    return Samples(chosen[:used], chosen[used:], available=len(everything))


def make_rows(config: SFTConfig, renderer: Renderer, found: Samples) -> Rows:
    """Return samples as rows of tokens, those that fit.

    Args:
        config: All options.
        renderer: Writes dialogues in the model's own form.
        found: What there is to imitate.

    Raises:
        DataError: When a sample cannot be read, or nothing is left to train on.
        TemplateError: When the model's template does not fit the samples.
    """
    dropped = Counter(found.dropped)
    train, long = _fitting(tokenized(found.train, renderer), config.max_length)
    if not train:
        raise DataError(
            f"No row fits max_length ({config.max_length} tokens); the shortest has {min(long, default=0)}."
        )
    held_out, also_long = _fitting(tokenized(found.held_out, renderer), config.max_length)
    dropped[f"rows longer than max_length ({config.max_length})"] = len(long) + len(also_long)
    known = {tuple(row["input_ids"]) for row in train}
    unseen = [row for row in held_out if tuple(row["input_ids"]) not in known]
    dropped["held-out rows that are trained on too"] = len(held_out) - len(unseen)
    return Rows(train, unseen, len(found.train), found.available, {k: n for k, n in dropped.items() if n})


def _loaded(config: SFTConfig, tokenizer: Any, split: str | None, count: int | None) -> Samples:
    """Read rows; problems with a worked solution become dialogues of one turn."""
    loaded = load_rows(config.dataset, **({} if split is None else {"split": split}))
    chosen = Loaded(loaded.name, loaded.rows[:count])
    if {"question", "answer"} <= set(chosen.rows[0]) and "completion" not in chosen.rows[0]:
        written = format_math_dataset(
            chosen, tokenizer=tokenizer, env=config.env, env_kwargs=config.env_arguments, thinking=config.thinking
        )
        chosen = Loaded(loaded.name, list(written))
    else:
        _require_sound(chosen.name, chosen.rows)
    return Samples(chosen.rows, available=len(loaded.rows))


def _require_sound(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Hold dialogues and completions to what problems with solutions are held to.

    Rows in no such form are left to :func:`trajgym.trainers.data.tokenized`, which says what it takes.
    """
    if format_of(rows) in ("messages", "sft"):
        check_quality(Loaded(name, rows), near=None).require()


def _played(config: SFTConfig, policy: LLMPolicy, split: str | None, count: int | None) -> Samples:
    """Play the environment's demonstrations; only those that solve their task are worth imitating."""
    given = config.env_arguments | ({} if split is None else {"split": split})
    env = make(config.env, **given)
    arguments = fit_arguments(policy, env, given)
    source: Any = getattr(env.unwrapped, "tasks", None)
    available = len(source) if isinstance(source, FiniteTasks) else None
    tasks = demonstrated(config, source, count)
    env.close()
    played = expert_set(tasks, env=config.env, env_kwargs=arguments, seed=config.seed, threads=8)
    dropped = {f"demonstrations ({reason})": len(ids) for reason, ids in played.dropped.items()}
    return Samples(played.trajectories, available=available, dropped=dropped)


def demonstrated(config: SFTConfig, source: object, count: int | None) -> list[Task]:
    """Return the tasks whose demonstrations are played, in their order; the first n of a larger number are the same.

    Args:
        config: All options.
        source: The environment's tasks.
        count: How many; all of a finite set when ``None``.

    Raises:
        ConfigError: When there are no tasks, or they never end and ``count`` is ``None`` or more than there are.
    """
    if isinstance(source, FiniteTasks):
        return list(source)[:count]
    if not isinstance(source, TaskSource):
        raise ConfigError(f"dataset expert needs an environment with tasks of its own, which {config.env} has not.")
    if count is None:
        raise ConfigError(f"{config.env} makes up tasks without end, so max_samples must be given.")
    return _drawn(source, count, config)


def _drawn(source: TaskSource, count: int, config: SFTConfig) -> list[Task]:
    """Draw different tasks, so that none of those held out is trained on."""
    rng = np.random.default_rng(derive_seed(config.seed, "sft"))
    found: dict[str, Task] = {}
    for _ in range(_PATIENCE * count):
        task = source.sample(rng)
        found.setdefault(task.id, task)
        if len(found) == count:
            return list(found.values())
    raise ConfigError(
        f"{config.env} has hardly more than {len(found)} different tasks, and {count} samples are asked for. Lower "
        "max_samples and eval_samples, or allow for more tasks in env_kwargs."
    )


def _fitting(rows: Iterable[TokenRow], limit: int) -> tuple[list[TokenRow], list[int]]:
    """Return the rows that fit, and the lengths of those that do not: cut, they would teach to stop anywhere."""
    fitting, long = [], []
    for row in rows:
        if len(row["input_ids"]) <= limit:
            fitting.append(row)
        else:
            long.append(len(row["input_ids"]))
    return fitting, long
