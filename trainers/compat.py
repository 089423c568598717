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
from trajgym.trainers.compat_data import Data, rows_of, told
from trajgym.trainers.compat_evaluate import evaluate_model
from trajgym.trainers.compat_options import LoadCall, RewardCall, read_call, require_mapping
from trajgym.trainers.compat_rewards import DESCRIPTIONS, reward_of
from trajgym.trainers.compat_runs import small_share
from trajgym.trainers.compat_trainers import GRPOTrainerWrapper, NoSFTWarning, SFTTrainerWrapper
from trajgym.trainers.data_quality import check_quality
from trajgym.trainers.data_sources import DatasetLike, Loaded, register_dataset
from trajgym.trainers.datasets import format_math_dataset

__all__ = ["Answer", "GRPOTrainerWrapper", "NoSFTWarning", "RLTrainingTool", "SFTTrainerWrapper"]

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
            ConfigError: For a value that is not allowed.
            TrajgymError: Whatever the action raises.
        """
        try:
            given = dict(require_mapping(parameters))
            action = given.pop("action", "train")
            if not isinstance(action, str) or action not in self._actions:
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
    if not isinstance(algorithm, str) or algorithm not in wrappers:
        raise UnknownNameError("algorithm", algorithm, wrappers)
    return wrappers[algorithm](given).train()


def _load_dataset(given: dict[str, Any]) -> dict[str, Any]:
    """Return what a training with the same options is on: the first rows, not just any."""
    call = read_call("load_dataset", LoadCall, given)
    if call.format not in _FORMATS:
        raise UnknownNameError("format", call.format, _FORMATS)
    data = Data.of(call)
    loaded, available = _rows(call, data)
    chosen: Any = loaded.rows
    if call.format == "raw":
        # A reward function of one's own may read truths that are no numbers.
        check_quality(loaded, numeric=False, near=None).require()
    else:
        chosen = format_math_dataset(
            loaded, call.format, call.model_name, env=call.env, env_kwargs={**call.env_kwargs, **_split(data)}
        )
    return {
        "status": "success",
        "format": call.format,
        "split": data.split,
        "dataset": loaded.name,
        "dataset_size": len(chosen),
        "available": available,
        "sample_keys": list(chosen[0]),
        "fingerprint": told(loaded.rows),
        "note": small_share(len(chosen), available),
    }


def _rows(call: LoadCall, data: Data) -> tuple[Loaded, int | None]:
    """Return the first rows, and how many there are in all; ``None`` where they never end."""
    if data.rows is not None or data.name != "expert":
        return data.loaded(call.max_samples)
    if call.format == "sft":
        raise ConfigError(
            f"The demonstrations of {call.env} are played when they are imitated, so they are no rows in the format "
            "'sft'. Ask for 'raw' or 'rl', or for another dataset."
        )
    tasks, available = data.problems({**call.env_kwargs, **_split(data)}, call.max_samples, seed=call.seed)
    if tasks is None:
        raise ConfigError(f"{call.env} makes up problems without end. Give max_samples.")
    return Loaded(f"{call.env}/{data.part}", rows_of(tasks)), available


def _split(data: Data) -> dict[str, str]:
    return {"split": data.part} if data.own else {}


def _create_reward(given: dict[str, Any]) -> dict[str, Any]:
    call = read_call("create_reward", RewardCall, given)
    kind, options = call.reward_type, dict(call.reward_config or {})
    for key, value in given.items():
        if key in ("reward_type", "reward_config"):
            continue
        if key in options:
            raise ConfigError(f"{key} is given twice, in reward_config too. Give it once.")
        options[key] = value
    reward = reward_of(kind, options)
    usual = {"length_penalty": {"max_length": 200, "penalty_weight": 0.001}, "step": {"step_bonus": 0.1}}.get(kind, {})
    shown = {**usual, **{("max_length" if key == "target_length" else key): value for key, value in options.items()}}
    description = DESCRIPTIONS.get(kind, f"the registered reward {kind!r}")
    return {"status": "success", "reward_type": kind, "description": description, **shown, "reward": reward}
