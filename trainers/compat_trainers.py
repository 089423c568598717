"""The founding document's trainers: thin wrappers that read its options and call ours.

An option is one of the document's names, or any that our trainer has; each has an effect, and others are refused.
"""

from __future__ import annotations

import abc
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.evaluation.plots import read_metrics
from trajgym.trainers.compat_data import (
    default_dataset,
    problems_of_env,
    problems_of_rows,
    rows_to_imitate,
    split_rows,
)
from trajgym.trainers.compat_monitor import monitors_of, wandb_project
from trajgym.trainers.compat_names import NAMES, in_our_names
from trajgym.trainers.compat_rewards import reward_of
from trajgym.trainers.config import GRPOConfig, load_config
from trajgym.trainers.data_sources import DATASETS, DatasetLike, paired_reward
from trajgym.trainers.datasets import format_math_dataset
from trajgym.trainers.options import Options
from trajgym.trainers.pipeline_state import write_text
from trajgym.trainers.sft_config import SFTConfig, load_sft_config

__all__ = ["MODEL", "GRPOTrainerWrapper", "NoSFTWarning", "SFTTrainerWrapper", "run_of", "small_share"]

MODEL = "Qwen/Qwen3-0.6B"
"""What is trained where nothing is said."""

_ENV = "GSM8KTool-v0"
_SMALL = 0.2  # share of the data below which an accuracy says little
_OWN = ("algorithm", "model", "dataset", "output_dir", "name", "monitors")  # read here, under the document's names
_SWITCHES: tuple[str, ...] = (
    "model",
    "model_name",
    "output_dir",
    "dataset",
    "custom_dataset",
    "split",
    "optimizer",
    "use_tensorboard",
    "use_wandb",
    "wandb_project",
)
_REWARDS = ("reward_type", "reward_config", "custom_reward", "batch_size", "gradient_accumulation_steps")


CLIP_RANGE = 0.2
"""The document's, where nobody gives another."""


class NoSFTWarning(UserWarning):
    """Reinforcement learning starts from a model of which no supervised fine-tuning is known."""


class _Wrapper(abc.ABC):
    """What both trainers share."""

    algorithm: ClassVar[str]
    kind: ClassVar[type[Options]]
    more: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, config: Mapping[str, Any] | None = None, dataset: DatasetLike | None = None, **options: Any
    ) -> None:
        given = {**(config or {}), **options}
        self._refuse_unknown(given)
        if "model" in given and "model_name" in given:
            raise ConfigError("model and model_name say the same. Give one of them.")
        if given.pop("optimizer", "adamw") != "adamw":
            raise ConfigError("optimizer must be 'adamw', the only one that our trainers have.")
        self.model_name = str(given.pop("model", given.pop("model_name", MODEL)))
        self.output_dir = Path(given.pop("output_dir", "output")).expanduser()
        self.project: str | None = given.pop("wandb_project", None)
        self.split: str = given.pop("split", "train")
        direct, named = given.pop("custom_dataset", None), given.pop("dataset", None)
        rows = next((data for data in (dataset, direct, named) if data is not None), None)
        # Rows themselves, or what is found under a name.
        self.rows: DatasetLike | None = None if isinstance(rows, str) else rows
        env = given.setdefault("env", _ENV)
        self.dataset = rows if isinstance(rows, str) else default_dataset(env) if rows is None else "custom_dataset"
        monitors = monitors_of(
            use_tensorboard=given.pop("use_tensorboard", True), use_wandb=given.pop("use_wandb", False)
        )
        rank = given.setdefault("lora_rank", 8)
        self.given = {
            "use_lora": True,
            "lora_alpha": 2 * rank if isinstance(rank, int) else rank,
            "num_epochs": 3,
            "warmup_ratio": 0.1,
            "lr_schedule": "linear",
            "monitors": monitors,
            "model": str(finished_model(self.model_name)),
            "output_dir": self.output_dir.parent,
            "name": self.output_dir.name,
            **given,
        }
        if {"updates", "epochs"} & set(given) and "num_epochs" not in given:
            del self.given["num_epochs"]

    @classmethod
    def keys(cls) -> list[str]:
        """Return the options that can be given."""
        return sorted({*cls.kind.model_fields, *NAMES[cls.algorithm], *_SWITCHES, *cls.more} - set(_OWN[4:]))

    @abc.abstractmethod
    def train(self) -> dict[str, Any]:
        """Train, and return what came of it as JSON values.

        Raises:
            ConfigError, DataError, TemplateError, CheckpointError: Before anything is computed or written.
            StorageError, TrainingError: During the run; checkpoints written so far are intact.
        """

    def save_model(self, output_dir: str | Path | None = None) -> Path:
        """Write the trained model as a folder that anything can load, and return it.

        Args:
            output_dir: Where to; by default ``model`` in the run's folder, where it is after :meth:`train`.

        Raises:
            ConfigError: When nothing was trained yet, or the folder is taken.
        """
        from trajgym.trainers.export import export

        if not self.output_dir.is_dir():
            raise ConfigError(f"{self.output_dir} holds no run. Call train() first.")
        own = self.output_dir / "model"
        target = own if output_dir is None else Path(output_dir)
        if target == own and own.is_dir():
            return own
        return export(self.output_dir, target).folder

    def _finish(self, used: int, available: int | None, **told: Any) -> dict[str, Any]:
        """Write down what came of it, for people and for a later evaluation."""
        share = None if available is None else used / available
        result = {
            "status": "success",
            "algorithm": self.algorithm.upper(),
            "model": self.model_name,
            "output_dir": str(self.output_dir),
            "model_path": str(self.save_model()),
            "dataset": self.dataset,
            "dataset_size": used,
            "num_samples": used,
            "data_share": share,
            **told,
            "note": small_share(used, available),
        }
        write_text(self.output_dir / "training.json", json.dumps(result, indent=1) + "\n")
        return result

    def _refuse_unknown(self, given: Mapping[str, Any]) -> None:
        for key in given:
            if key not in self.keys():
                raise UnknownNameError(f"option of {self.algorithm} training", key, self.keys())

    def _options(self, **more: Any) -> dict[str, Any]:
        return in_our_names(self.algorithm, {**self.given, **more}, "The call")


class SFTTrainerWrapper(_Wrapper):
    """Supervised fine-tuning under the document's options.

    Args:
        config: Options by name.
        dataset: Rows to imitate, in any of our formats; else the option ``dataset`` names them.
        **options: Further options.

    Raises:
        UnknownNameError: For an option that does not exist.
        ConfigError: For a value that is not allowed.
    """

    algorithm, kind = "sft", SFTConfig

    def __init__(
        self, config: Mapping[str, Any] | None = None, dataset: DatasetLike | None = None, **options: Any
    ) -> None:
        super().__init__(config, dataset, **options)
        self.config = load_sft_config(self._options(dataset=self.dataset))

    def train(self) -> dict[str, Any]:
        """Train; see :class:`SFTTrainerWrapper`. The result has ``final_loss`` beside what both trainers tell."""
        from trajgym.trainers.sft import train_sft

        samples, available = self._samples()
        with wandb_project(self.project):
            folder = train_sft(self.config, samples=samples)
        record = json.loads((folder / "data.json").read_text(encoding="utf-8"))
        losses = [line["loss"] for line in read_metrics(folder / "metrics.jsonl") if line.get("loss") is not None]
        return self._finish(
            record["samples"],
            record["samples_available"] if available is None else available,
            num_epochs=self.config.epochs,
            final_loss=losses[-1] if losses else None,
        )

    def _samples(self) -> tuple[list[Any] | None, int | None]:
        """Return rows that were given as such, with their number; ``None`` where our trainer finds them by name."""
        config = self.config
        if self.rows is None and (self.dataset == "expert" or self.split == "train"):
            return None, None
        loaded = split_rows(self.dataset if self.rows is None else self.rows, self.split)
        count = None if config.max_samples is None else config.max_samples + config.eval_samples
        rows, raw = rows_to_imitate(loaded, count)
        if raw:
            written = format_math_dataset(
                type(loaded)(loaded.name, rows),
                "sft",
                config.model,
                env=config.env,
                env_kwargs=config.env_arguments,
                thinking=config.thinking,
            )
            rows = list(written)
        return list(rows), len(loaded.rows)


class GRPOTrainerWrapper(_Wrapper):
    """GRPO under the document's options.

    Args:
        config: Options by name.
        dataset: Problems in the raw or RL format; else the option ``dataset`` names them.
        reward_fn: A function ``(completions, **columns) -> list[float]``; else the options ``custom_reward``,
            ``reward_type`` or the data set's namesake.
        **options: Further options.

    Raises:
        UnknownNameError: For an option that does not exist.
        ConfigError: For a value that is not allowed, and for a batch that cannot be divided into groups.
    """

    algorithm, kind, more = "grpo", GRPOConfig, _REWARDS

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        dataset: DatasetLike | None = None,
        reward_fn: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(config, dataset, **options)
        given = self.given
        custom = given.pop("custom_reward", None) if reward_fn is None else reward_fn
        self.reward = self._reward(custom, given.pop("reward_type", None), given.pop("reward_config", None))
        batch = {key: given.pop(key) for key in ("batch_size", "gradient_accumulation_steps") if key in given}
        if "groups_per_update" not in given:
            batch = {"batch_size": 4, **batch}
        # The document clips at 0.2 on both sides; our own default above is another one.
        clip = {} if {"clip_range", "clip_range_high"} & given.keys() else {"clip_range": CLIP_RANGE}
        self.config = load_config({**self._options(**batch, **clip), "env_kwargs": self._arguments()})

    def train(self) -> dict[str, Any]:
        """Train; see :class:`GRPOTrainerWrapper`. The result has ``average_reward`` and ``final_kl`` beside the rest.

        Warns:
            NoSFTWarning: When no supervised fine-tuning of the model is known.
        """
        from trajgym.trainers.grpo import train

        if not fine_tuned(self.model_name):
            warnings.warn(
                f"No SFT of {self.model_name} is known here. GRPO learns from right answers alone, so it needs a model "
                "that gives some: run algorithm 'sft' first, and start from its model_path.",
                NoSFTWarning,
                stacklevel=2,
            )
        config, used, available = self._problems()
        with wandb_project(self.project):
            folder = train(config)
        lines = read_metrics(folder / "metrics.jsonl")
        rewards = [line["reward"] for line in lines if line.get("reward") is not None]
        kls = [line["kl"] for line in lines if line.get("kl") is not None]
        return self._finish(
            used,
            available,
            num_epochs=config.epochs,
            average_reward=rewards[-1] if rewards else None,
            final_kl=kls[-1] if kls else None,
        )

    def _reward(self, custom: Any, kind: str | None, options: Mapping[str, Any] | None) -> Any:
        """Return what the environment is to pay."""
        if custom is not None:
            if kind is not None or options:
                raise ConfigError(
                    "custom_reward and reward_type or reward_config exclude each other. Give one of them."
                )
            return custom
        if self.rows is None and self.dataset in DATASETS:
            paired = paired_reward(self.dataset, kind if kind in DATASETS else None)
            if kind is None and paired is not None:
                return paired
        return reward_of(kind or "accuracy", options)

    def _arguments(self) -> dict[str, Any]:
        """Return the environment's arguments, as far as they are known without data."""
        given: dict[str, Any] = dict(self.given.get("env_kwargs", {}))
        own = self.rows is None and self.dataset in ("gsm8k", "expert")
        if "reward" in given and self.reward != "accuracy":
            raise ConfigError("env_kwargs holds a reward, and another one is asked for. Give one of them.")
        return {**({"split": self.split} if own else {}), "reward": self.reward, **given}

    def _problems(self) -> tuple[GRPOConfig, int, int | None]:
        """Return the options with the problems in them, how many are trained on, and how many there are."""
        config, limit = self.config, self.config.max_samples
        arguments = dict(config.env_kwargs)
        if self.rows is None and self.dataset in ("gsm8k", "expert") and "[" not in self.split:
            made, available = problems_of_env(config.env, arguments, limit, seed=config.seed)
            if made is None:
                count = available if limit is None else min(limit, available or limit)
                return config, count or config.groups_per_update * (config.updates or 0), available
            return self._with(config, {**arguments, "tasks": made}), len(made), available
        arguments.pop("split", None)
        loaded = split_rows(self.dataset if self.rows is None else self.rows, self.split)
        # A reward function of one's own may read truths that are no numbers.
        numeric = isinstance(self.reward, dict) or self.reward == "accuracy"
        tasks = problems_of_rows(loaded, limit, numeric=numeric)
        return self._with(config, {**arguments, "tasks": tasks}), len(tasks), len(loaded.rows)

    def _with(self, config: GRPOConfig, arguments: dict[str, Any]) -> GRPOConfig:
        return config.model_copy(update={"env_kwargs": arguments, "max_samples": None})


def finished_model(name: str) -> str | Path:
    """Return the folder of a run's finished model; what is no run's folder is the model itself."""
    inside = Path(name).expanduser() / "model"
    return inside if (inside / "config.json").is_file() else name


def run_of(model: str | Path) -> Path | None:
    """Return the folder of the run that made a model, given by itself or by its ``model`` folder."""
    folder = Path(model).expanduser()
    for run in (folder, folder.parent):
        if (
            (run / "config.yaml").is_file()
            and (run / "checkpoints").is_dir()
            and (run == folder or folder.name == "model")
        ):
            return run
    return None


def fine_tuned(model: str | Path) -> bool:
    """Whether it is known that a model went through supervised fine-tuning, itself or what it was trained from."""
    if str(model) == "tiny":
        return True
    run = run_of(model)
    if run is None:
        return False
    options = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    if not isinstance(options, dict):
        return False
    return options.get("algorithm") == "sft" or fine_tuned(options.get("model", ""))


def small_share(used: int, available: int | None) -> str | None:
    """Say what a run on little of the data can be expected to do; ``None`` where it has seen enough.

    >>> small_share(100, 7473)
    'Trained on 100 of 7,473 problems (1.3 %): a low accuracy is to be expected. More of them, or all, will tell.'
    """
    if not available or used / available >= _SMALL:
        return None
    return (
        f"Trained on {used:,} of {available:,} problems ({used / available:.1%}): a low accuracy is to be expected. "
        "More of them, or all, will tell."
    ).replace("%)", " %)")
