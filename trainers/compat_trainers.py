"""The founding document's trainers: thin wrappers that read its options and call ours.

An option is one of the document's names, or any that our trainer has; each has an effect, and others are refused.
"""

from __future__ import annotations

import abc
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.evaluation.plots import read_metrics
from trajgym.trainers.compat_data import Data, NamedTasks, problems_of_rows, rows_of, rows_to_imitate, told
from trajgym.trainers.compat_monitor import monitors_of, wandb_project
from trajgym.trainers.compat_names import NAMES, in_our_names
from trajgym.trainers.compat_options import MODEL, GRPOCall, SFTCall, TrainCall, read_call, require_mapping
from trajgym.trainers.compat_rewards import reward_of
from trajgym.trainers.compat_runs import fine_tuned, finished_model, positions_of, require_free, small_share
from trajgym.trainers.config import GRPOConfig, load_config
from trajgym.trainers.data_sources import DATASETS, DatasetLike, Loaded, paired_reward
from trajgym.trainers.datasets import format_math_dataset
from trajgym.trainers.options import Options, read_options
from trajgym.trainers.pipeline_state import write_text
from trajgym.trainers.sft_config import SFTConfig, load_sft_config

__all__ = ["GRPOTrainerWrapper", "NoSFTWarning", "SFTTrainerWrapper"]

_OWN = ("algorithm", "model", "dataset", "output_dir", "name", "monitors")  # read here, under the document's names

_BATCH = ("batch_size", "gradient_accumulation_steps")

CLIP_RANGE = 0.2
"""The document's, where nobody gives another."""


class NoSFTWarning(UserWarning):
    """Reinforcement learning starts from a model of which no supervised fine-tuning is known."""


Config = TypeVar("Config", SFTConfig, GRPOConfig)


class _Wrapper(abc.ABC):
    """What both trainers share."""

    algorithm: ClassVar[str]
    kind: ClassVar[type[Options]]
    call: ClassVar[type[TrainCall]]
    length: ClassVar[str]  # the option that says how many tokens the model must be able to read at once

    def __init__(
        self, config: Mapping[str, Any] | None = None, dataset: DatasetLike | None = None, **options: Any
    ) -> None:
        given = {**require_mapping({} if config is None else config), **options}
        self._refuse_unknown(given)
        ours = {key: value for key, value in given.items() if key not in self.call.model_fields}
        call = read_call("train", self.call, {key: value for key, value in given.items() if key not in ours})
        if call.model is not None and call.model_name is not None:
            raise ConfigError("model and model_name say the same. Give one of them.")
        if call.optimizer != "adamw":
            raise ConfigError("optimizer must be 'adamw', the only one that our trainers have.")
        self.asked = call
        self.model_name = call.model or call.model_name or MODEL
        self.output_dir = _folder(call.output_dir or f"output/{self.algorithm}")
        self.data = Data.of(call, dataset)
        self.dataset = self.data.name
        rank = ours.setdefault("lora_rank", 8)
        theirs = {key: getattr(call, key) for key in NAMES[self.algorithm] if key in given}
        self.given = {
            "use_lora": True,
            "lora_alpha": 2 * rank if isinstance(rank, int) else rank,
            "num_epochs": 3,
            "warmup_ratio": 0.1,
            "lr_schedule": "linear",
            "monitors": monitors_of(use_tensorboard=call.use_tensorboard, use_wandb=call.use_wandb),
            "model": str(finished_model(self.model_name)),
            "output_dir": self.output_dir.parent,
            "name": self.output_dir.name,
            "env": call.env,
            "env_kwargs": call.env_kwargs,
            **ours,
            **theirs,
        }
        if {"updates", "epochs"} & set(given) and "num_epochs" not in given:
            del self.given["num_epochs"]

    @classmethod
    def keys(cls) -> list[str]:
        """Return the options that can be given."""
        return sorted({*cls.kind.model_fields, *cls.call.model_fields} - set(_OWN[4:]))

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

    def _ready(self, config: Config) -> Config:
        """Return the options that fit the model, once it is known that a run can begin.

        Raises:
            ConfigError: When the folder is taken, or more is asked for than the model can read at once.
        """
        if not (config.resume or config.overwrite):
            require_free(self.output_dir)
        most, asked = positions_of(config.model), getattr(config, self.length)
        if most is None or asked <= most:
            return config
        if self.length in self.given:
            raise ConfigError(
                f"{self.length} ({asked}) is more than the {most} tokens that {self.model_name} can read at once. "
                "Lower it, or leave it out."
            )
        return read_options(type(config), {**dict(config), self.length: most}, command=self.algorithm)

    def _finish(self, used: int, available: int | None, fingerprint: str | None, **more: Any) -> dict[str, Any]:
        """Write down what came of it, for people and for a later evaluation."""
        share = None if available is None else used / available
        result = {
            "status": "success",
            "algorithm": self.algorithm.upper(),
            "model": self.model_name,
            "output_dir": str(self.output_dir),
            "model_path": str(self.save_model()),
            "dataset": self.dataset,
            "split": self.data.split,
            "dataset_size": used,
            "num_samples": used,
            "data_share": share,
            "fingerprint": fingerprint,
            **more,
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

    algorithm, kind, call, length = "sft", SFTConfig, SFTCall, "max_length"

    def __init__(
        self, config: Mapping[str, Any] | None = None, dataset: DatasetLike | None = None, **options: Any
    ) -> None:
        super().__init__(config, dataset, **options)
        arguments = self.asked.env_kwargs
        if self.data.own and (self.asked.split is not None or "split" in arguments):
            arguments = {**arguments, "split": self.data.part}
        self.config = load_sft_config(self._options(dataset=self.dataset, env_kwargs=arguments))

    def train(self) -> dict[str, Any]:
        """Train; see :class:`SFTTrainerWrapper`.

        The result has ``final_loss``, and ``left_out`` (how many did not fit, by the reason), beside what both trainers
        tell.
        """
        from trajgym.trainers.sft import train_sft

        config, samples, available, fingerprint = self._samples(self._ready(self.config))
        with wandb_project(self.asked.wandb_project):
            folder = train_sft(config, samples=samples)
        record = json.loads((folder / "data.json").read_text(encoding="utf-8"))
        losses = [line["loss"] for line in read_metrics(folder / "metrics.jsonl") if line.get("loss") is not None]
        return self._finish(
            min(
                record["samples"], record["rows"]
            ),  # a sample makes a row or more, and rows that are too long are left out
            available,
            fingerprint,
            num_epochs=config.epochs,
            final_loss=losses[-1] if losses else None,
            left_out=record["left_out"],
        )

    def _samples(self, config: SFTConfig) -> tuple[SFTConfig, list[Any] | None, int | None, str | None]:
        """Choose what is imitated.

        Returns:
            The options, with the problems in them that the environment is to demonstrate; rows where our trainer does
            not find them by name; how many there are in all; and the fingerprint of those to train on.
        """
        data, trained = self.data, config.max_samples
        count = None if trained is None else trained + config.eval_samples
        if data.rows is None and data.name == "expert":
            tasks, available = data.problems(config.env_arguments, count, seed=config.seed)
            fingerprint = None if tasks is None else told(rows_of(tasks)[:trained])
            if data.whole and (tasks is None or available is not None):
                return config, None, available, fingerprint
            if data.whole and config.eval_split is not None:  # of two splits our trainer draws the problems itself
                return config, None, available, None
            self._refuse_eval_split(config)
            arguments = {**config.env_kwargs, "tasks": NamedTasks(config.env, tasks or ())}
            return config.model_copy(update={"env_kwargs": arguments}), None, available, fingerprint
        loaded, available = data.loaded(count)
        fingerprint = told(loaded.rows[:trained])
        if data.rows is None and data.split == "train":
            return config, None, available, fingerprint
        self._refuse_eval_split(config)
        rows, raw = rows_to_imitate(loaded)
        if raw:
            written = format_math_dataset(
                Loaded(loaded.name, rows),
                "sft",
                config.model,
                env=config.env,
                env_kwargs=config.env_arguments,
                thinking=config.thinking,
            )
            rows = list(written)
        return config, list(rows), available, fingerprint

    def _refuse_eval_split(self, config: SFTConfig) -> None:
        if config.eval_split is not None:
            raise ConfigError(
                f"eval_split ({config.eval_split!r}) goes with a named data set of which all is trained on. Leave it "
                "out: the last eval_samples of these are held out."
            )


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

    algorithm, kind, call, length = "grpo", GRPOConfig, GRPOCall, "max_episode_tokens"

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        dataset: DatasetLike | None = None,
        reward_fn: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(config, dataset, **options)
        given, asked = self.given, dict(self.asked)
        custom = asked["custom_reward"] if reward_fn is None else reward_fn
        self.reward = self._reward(custom, asked["reward_type"], asked["reward_config"])
        batch = {key: asked[key] for key in _BATCH if asked[key] is not None}
        if "groups_per_update" not in given:
            batch = {"batch_size": 4, **batch}
        # The document clips at 0.2 on both sides; our own default above is another one.
        clips = "clip_range" in given or "clip_range_high" in given or given.get("objective") == "cispo"
        clip = {} if clips else {"clip_range": CLIP_RANGE}
        self.config = load_config({**self._options(**batch, **clip), "env_kwargs": self._arguments()})

    def train(self) -> dict[str, Any]:
        """Train; see :class:`GRPOTrainerWrapper`. The result has ``average_reward`` and ``final_kl`` beside the rest.

        Warns:
            NoSFTWarning: When no supervised fine-tuning of the model is known.
        """
        from trajgym.trainers.grpo import train

        ready = self._ready(self.config)
        if not fine_tuned(self.model_name):
            warnings.warn(
                f"No SFT of {self.model_name} is known here. GRPO learns from right answers alone, so it needs a model "
                "that gives some: run algorithm 'sft' first, and start from its model_path.",
                NoSFTWarning,
                stacklevel=2,
            )
        config, used, available, fingerprint = self._problems(ready)
        with wandb_project(self.asked.wandb_project):
            folder = train(config)
        lines = read_metrics(folder / "metrics.jsonl")
        rewards = [line["reward"] for line in lines if line.get("reward") is not None]
        kls = [line["kl"] for line in lines if line.get("kl") is not None]
        return self._finish(
            used,
            available,
            fingerprint,
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
        if self.data.rows is None and self.dataset in DATASETS:
            paired = paired_reward(self.dataset, kind if kind in DATASETS else None)
            if kind is None and paired is not None:
                return paired
        return reward_of(kind or "accuracy", options)

    def _arguments(self) -> dict[str, Any]:
        """Return the environment's arguments, as far as they are known without data."""
        given = self.asked.env_kwargs
        if "reward" in given and self.reward != "accuracy":
            raise ConfigError("env_kwargs holds a reward, and another one is asked for. Give one of them.")
        return {"reward": self.reward, **given, **({"split": self.data.part} if self.data.own else {})}

    def _problems(self, config: GRPOConfig) -> tuple[GRPOConfig, int, int | None, str | None]:
        """Choose what is trained on.

        Returns:
            The options with the problems in them, how many are trained on, how many there are in all, and the
            fingerprint of those to train on.
        """
        data, limit, arguments = self.data, config.max_samples, dict(config.env_kwargs)
        if data.own:
            own, available = data.problems(arguments, limit, seed=config.seed)
            if own is None:
                return config, config.groups_per_update * (config.updates or 0), None, None
            fingerprint = told(rows_of(own))
            if data.whole and available is not None:
                return config, len(own), available, fingerprint
            tasks = NamedTasks(config.env, own)
        else:
            loaded, available = data.loaded(limit)
            fingerprint = told(loaded.rows)
            # A reward function of one's own may read truths that are no numbers.
            tasks = problems_of_rows(loaded, numeric=isinstance(self.reward, dict) or self.reward == "accuracy")
        chosen = config.model_copy(update={"env_kwargs": {**arguments, "tasks": tasks}, "max_samples": None})
        return chosen, len(tasks), available, fingerprint


def _folder(name: str) -> Path:
    """Return a run's folder, which must have a name of its own."""
    folder = Path(os.path.expanduser(name))
    folder = folder if folder.name not in ("", "..") else Path(os.path.abspath(folder))
    if not folder.name:
        raise ConfigError(f"output_dir must be a folder of its own, got {name!r}.")
    return folder
