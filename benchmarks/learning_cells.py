"""What the learning benchmark compares: settings, methods, rewards and discounts, as tables of options.

A cell is one training run. Its name, such as ``long-return_to_go-hybrid-g0.9-s3``, says everything and names its files.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "DISCOUNTS",
    "METHODS",
    "OURS",
    "RATES",
    "REFERENCE",
    "SEARCH_SEED",
    "SETTINGS",
    "Cell",
    "Setting",
    "cells",
    "kinds",
    "options",
    "search_cells",
]

_REWARDS = ("sparse", "dense", "hybrid")
DISCOUNTS = (1.0, 0.9)
RATES = (3e-4, 1e-4, 1e-3)
"""Learning rates that are tried for each method with each reward, on seeds of their own; see :attr:`Setting.rates`."""

REFERENCE = ("trajectory", "sparse")
"""Method and reward that the goal compares with. They play twice as long, or it could not be seen that they need it."""

SEARCH_SEED = 1000
"""The first seed of the search for a learning rate; smaller ones are the benchmark's."""


@dataclass(frozen=True)
class Setting:
    """An environment, and how long there is time to learn.

    Args:
        env: Environment id.
        env_kwargs: Its arguments.
        model: The name of the model to begin with, of :mod:`learning_models`.
        target: Share of right answers that counts as having learned it.
        budget: Turns that a run may play, all episodes counted; see :attr:`Cell.budget`.
        max_turn_tokens: Most tokens of a turn.
        max_episode_tokens: Most tokens of an episode.
        title: For people.
        rewards: What may be paid.
        rates: Learning rates that are tried.
    """

    env: str
    env_kwargs: Mapping[str, Any]
    model: str
    target: float
    budget: int
    max_turn_tokens: int
    max_episode_tokens: int
    title: str
    rewards: tuple[str, ...] = _REWARDS
    rates: tuple[float, ...] = RATES


SETTINGS = {
    "short": Setting(
        env="ArithmeticTool-v0",
        env_kwargs={"difficulty": [1, 3], "distractors": 0.0, "system": ""},
        model="arithmetic",
        target=0.65,
        budget=3_000,
        max_turn_tokens=16,
        max_episode_tokens=256,
        title="ArithmeticTool-v0, 1 to 3 steps",
        rewards=(*_REWARDS, "process"),
    ),
    "long": Setting(
        env="ArithmeticTool-v0",
        env_kwargs={"difficulty": [5, 8], "distractors": 0.0, "system": ""},
        model="arithmetic",
        target=0.2,
        budget=12_000,
        max_turn_tokens=16,
        max_episode_tokens=384,
        title="ArithmeticTool-v0, 5 to 8 steps",
        rewards=(*_REWARDS, "process"),
    ),
    "detour": Setting(
        env="Detour-v0",
        env_kwargs={"difficulty": 1, "system": ""},
        model="detour",
        target=0.5,
        budget=6_000,
        max_turn_tokens=8,
        max_episode_tokens=192,
        title="Detour-v0, the key one door away",
        rates=(*RATES, 3e-3),  # 1e-3 was the best of the others
    ),
}

METHODS: dict[str, dict[str, Any]] = {
    # Scales and baselines as the publications have them; what has no scale of its own is divided by the batch's spread.
    "trajectory": {"estimator": "trajectory", "baseline": "mean", "advantage_scale": "group_std"},
    "trajectory_batch": {"estimator": "trajectory", "baseline": "mean", "advantage_scale": "batch_std"},
    "return_to_go": {"estimator": "return_to_go", "advantage_scale": "batch_std"},
    "earned": {"estimator": "return_to_go", "baseline": "earned", "advantage_scale": "batch_std"},
    "gigpo": {"estimator": "gigpo"},
    "grpo_process": {"estimator": "grpo_process"},
    "mt_grpo": {"estimator": "mt_grpo"},
    "rebn": {"estimator": "rebn"},
    "ppo": {"algorithm": "ppo", "estimator_options": {"lam": 0.95}, "advantage_scale": "batch_std"},
}
"""What sets each method apart, as options of :class:`trajgym.trainers.config.GRPOConfig`."""

OURS = ("return_to_go", "earned")
"""The trainer's own method, with its two baselines; where nothing is paid before the end, they are the same."""

_RESCALED = "trajectory_batch"
"""Run on the detour alone, where it shows what division by the group's own spread does to ``trajectory``."""

_PROCESS = ("trajectory", *OURS, "ppo")
"""The methods that are run on the reward ``process``, whose question is what the trainer's own method makes of it."""

SHARED: dict[str, Any] = {
    "groups_per_update": 4,
    "num_generations": 8,
    "slots": 32,
    "env_threads": 0,
    "kl_coef": 0.0,
    "device": "cpu",
    "monitors": (),
    "log_trajectories": 0,
    "keep_checkpoints": 1,
    "save_every": 1_000_000,  # the last update of each part of a run is always saved
}


@dataclass(frozen=True, order=True)
class Cell:
    """One training run.

    Args:
        setting: A key of :data:`SETTINGS`.
        method: A key of :data:`METHODS`.
        reward: One of the setting's.
        gamma: Discount per turn.
        seed: The run's; the same seed deals the same tasks to every method.
        rate: Learning rate; not part of what is compared, but of the search for it.
    """

    setting: str
    method: str
    reward: str
    gamma: float
    seed: int
    rate: float = field(default=RATES[0], compare=False)

    @property
    def budget(self) -> int:
        """Turns to play: the setting's, and twice as many where :data:`REFERENCE` is tried."""
        long = (self.method, self.reward) == REFERENCE and self.seed < SEARCH_SEED
        return SETTINGS[self.setting].budget * (2 if long else 1)

    @property
    def name(self) -> str:
        """What the cell is called; a search for the rate names that, too."""
        rate = f"-r{self.rate:g}" if self.seed >= SEARCH_SEED else ""
        return f"{self.setting}-{self.method}-{self.reward}-g{self.gamma:g}-s{self.seed}{rate}"


def kinds(setting: str) -> list[tuple[str, float, str]]:
    """Return reward, discount and method of each kind of run in a setting."""
    every = itertools.product(SETTINGS[setting].rewards, DISCOUNTS, METHODS)
    return [(reward, gamma, method) for reward, gamma, method in every if _run(setting, reward, method)]


def cells(seeds: int, patterns: Iterable[str] = ("*",), rates: Mapping[str, float] | None = None) -> list[Cell]:
    """Return the cells of the sweep, all methods of a seed before the next seed.

    Args:
        seeds: How many runs of each kind.
        patterns: Which to take, by name, as in a shell: ``"long-*-sparse-*"``.
        rates: Learning rate by ``"setting-method-reward"``; where it is missing, the first of :data:`RATES`.
    """
    found = [
        Cell(setting, method, reward, gamma, seed, (rates or {}).get(f"{setting}-{method}-{reward}", RATES[0]))
        for seed, setting in itertools.product(range(seeds), SETTINGS)
        for reward, gamma, method in kinds(setting)
    ]
    return _chosen(found, patterns)


def search_cells(seeds: int, patterns: Iterable[str] = ("*",)) -> list[Cell]:
    """Return the cells of the search for a learning rate, without a discount and on other seeds than the sweep's."""
    found = [
        Cell(setting, method, reward, 1.0, SEARCH_SEED + seed, rate)
        for seed, setting in itertools.product(range(seeds), SETTINGS)
        for reward, rate, method in itertools.product(SETTINGS[setting].rewards, SETTINGS[setting].rates, METHODS)
        if _run(setting, reward, method)
    ]
    return _chosen(found, patterns)


def options(cell: Cell, model: Path, *, updates: int, output_dir: Path, resume: bool) -> dict[str, Any]:
    """Return a cell's options of :class:`trajgym.trainers.config.GRPOConfig`.

    Args:
        cell: The run.
        model: Folder of the model to begin with.
        updates: After how many to stop.
        output_dir: Where run folders are.
        resume: Whether to go on with the run.
    """
    setting = SETTINGS[cell.setting]
    return {
        **SHARED,
        "model": str(model),
        "env": setting.env,
        "env_kwargs": {**setting.env_kwargs, "reward": cell.reward},
        "max_turn_tokens": setting.max_turn_tokens,
        "max_episode_tokens": setting.max_episode_tokens,
        "gamma": cell.gamma,
        "learning_rate": cell.rate,
        "seed": cell.seed,
        **METHODS[cell.method],
        "updates": updates,
        "output_dir": output_dir,
        "name": cell.name,
        "resume": resume,
        "overwrite": not resume,
    }


def _run(setting: str, reward: str, method: str) -> bool:
    if method == _RESCALED and setting != "detour":
        return False
    if method == "earned" and reward == "sparse":
        return False  # the same as return_to_go
    return reward != "process" or method in _PROCESS


def _chosen(found: Sequence[Cell], patterns: Iterable[str]) -> list[Cell]:
    wanted = tuple(patterns)
    return [cell for cell in found if any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in wanted)]
