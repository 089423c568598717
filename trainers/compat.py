"""The founding document's one tool for everything: :class:`RLTrainingTool` with its four actions.

Calls that were written for it run as they stand, and each of their keys has an effect. A key that it does not have is
an error that names the closest one, where the original ignored it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from trajgym.errors import ConfigError, TrajgymError, UnknownNameError
from trajgym.rewards.catalogue import register_reward_function
from trajgym.trainers.compat_data import default_dataset, split_rows
from trajgym.trainers.compat_evaluate import evaluate_model
from trajgym.trainers.compat_rewards import DESCRIPTIONS, reward_of
from trajgym.trainers.compat_trainers import MODEL, GRPOTrainerWrapper, NoSFTWarning, SFTTrainerWrapper, small_share
from trajgym.trainers.data_rows import fingerprint, subset
from trajgym.trainers.data_sources import DatasetLike, Loaded, register_dataset
from trajgym.trainers.datasets import format_math_dataset

__all__ = ["Answer", "GRPOTrainerWrapper", "NoSFTWarning", "RLTrainingTool", "SFTTrainerWrapper"]

_LOAD_KEYS = ("format", "split", "max_samples", "model_name", "dataset", "custom_dataset", "env", "env_kwargs", "seed")
_REWARD_KEYS = ("reward_type", "reward_config", "max_length", "target_length", "penalty_weight", "step_bonus")
_FORMATS = ("raw", "sft", "rl")


class Answer(str):
    """What an action answers: JSON text whose values can be asked for as well, since the document does both.

    >>> answer = Answer({"status": "success", "num_samples": 5})
    >>> json.loads(answer)["num_samples"], answer["num_samples"], answer.get("note")
    (5, 5, None)

    Args:
        values: JSON values by name.
    """

    values: Mapping[str, Any]

    def __new__(cls, values: Mapping[str, Any]) -> Answer:
        """Write the values down."""
        answer = super().__new__(cls, json.dumps(values, ensure_ascii=False, indent=2))
        answer.values = dict(values)
        return answer

    def __getitem__(self, key: Any) -> Any:
        """Return the value of this name; with a number or a slice, a part of the text."""
        return self.values[key] if isinstance(key, str) else super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of this name, or ``default``."""
        return self.values.get(key, default)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.values,)


class RLTrainingTool:
    """Training, data, rewards and evaluation behind one :meth:`run`.

    Args:
        errors: ``"raise"`` raises what goes wrong; ``"return"`` answers ``{"status": "error", "message": …}``, for an
            agent that reads what its tools say.

    Raises:
        UnknownNameError: For another value.
    """

    name = "rl_training"
    description = "Loads data, makes rewards, trains models with SFT and GRPO, and measures them."

    def __init__(self, errors: Literal["raise", "return"] = "raise") -> None:
        if errors not in ("raise", "return"):
            raise UnknownNameError("value of errors", errors, ("raise", "return"))
        self._raises = errors == "raise"
        self._actions: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "train": _train,
            "load_dataset": _load_dataset,
            "create_reward": _create_reward,
            "evaluate": evaluate_model,
        }

    def run(self, parameters: Mapping[str, Any]) -> Answer:
        """Do one thing.

        Args:
            parameters: ``action`` (``"train"`` when it is left out, ``"load_dataset"``, ``"create_reward"`` or
                ``"evaluate"``) and the options of that action; ``docs/pipeline.md`` lists them.

        Raises:
            UnknownNameError: For an action, an algorithm or an option that does not exist.
            TrajgymError: Whatever the action raises.
        """
        try:
            given = dict(parameters)
            action = given.pop("action", "train")
            if action not in self._actions:
                raise UnknownNameError("action", action, self._actions)
            return Answer(self._actions[action](given))
        except TrajgymError as error:
            if self._raises:
                raise
            return Answer({"status": "error", "message": str(error), "error": type(error).__name__})

    def register_dataset(self, name: str, dataset: DatasetLike) -> None:
        """Let ``dataset=name`` find these rows; a reward registered under the same name pays them.

        Raises:
            ConfigError: When it is no name, or no data set.
            DataError: When it holds no rows.
        """
        register_dataset(name, dataset, replace=True)

    def register_reward_function(self, name: str, reward_fn: Callable[..., Any]) -> None:
        """Let the data set of this name be paid by a function ``(completions, **columns) -> list[float]``.

        Raises:
            ConfigError: When it is no such function.
        """
        register_reward_function(name, reward_fn, replace=True)


def _train(given: dict[str, Any]) -> dict[str, Any]:
    wrappers: Mapping[str, type[SFTTrainerWrapper | GRPOTrainerWrapper]]
    wrappers = {"sft": SFTTrainerWrapper, "grpo": GRPOTrainerWrapper}
    algorithm = given.pop("algorithm", "sft")
    if algorithm not in wrappers:
        raise UnknownNameError("algorithm", algorithm, wrappers)
    return wrappers[algorithm](given).train()


def _load_dataset(given: dict[str, Any]) -> dict[str, Any]:
    _require_known("load_dataset", given, _LOAD_KEYS)
    kind, split, limit = given.get("format", "sft"), given.get("split", "train"), given.get("max_samples", 100)
    if kind not in _FORMATS:
        raise UnknownNameError("format", kind, _FORMATS)
    env, rows = given.get("env", "GSM8KTool-v0"), given.get("custom_dataset")
    dataset = given.get("dataset", default_dataset(env)) if rows is None else rows
    loaded = split_rows(dataset, split)
    chosen: Any = subset(loaded.rows, limit, seed=given.get("seed", 0))
    hashed = fingerprint(chosen)
    if kind != "raw":
        chosen = format_math_dataset(
            Loaded(loaded.name, chosen),
            kind,
            given.get("model_name", MODEL),
            env=env,
            env_kwargs=given.get("env_kwargs"),
        )
    return {
        "status": "success",
        "format": kind,
        "split": split,
        "dataset": loaded.name,
        "dataset_size": len(chosen),
        "available": len(loaded.rows),
        "sample_keys": list(chosen[0]),
        "fingerprint": hashed,
        "note": small_share(len(chosen), len(loaded.rows)),
    }


def _create_reward(given: dict[str, Any]) -> dict[str, Any]:
    _require_known("create_reward", given, _REWARD_KEYS)
    kind, options = given.pop("reward_type", "accuracy"), dict(given.pop("reward_config", None) or {})
    for key, value in given.items():
        if key in options:
            raise ConfigError(f"{key} is given twice, in reward_config too. Give it once.")
        options[key] = value
    reward = reward_of(kind, options)
    told = {"length_penalty": {"max_length": 200, "penalty_weight": 0.001}, "step": {"step_bonus": 0.1}}.get(kind, {})
    shown = {**told, **{("max_length" if key == "target_length" else key): value for key, value in options.items()}}
    description = DESCRIPTIONS.get(kind, f"the registered reward {kind!r}")
    return {"status": "success", "reward_type": kind, "description": description, **shown, "reward": reward}


def _require_known(action: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise UnknownNameError(f"option of {action}", key, known)
