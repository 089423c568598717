"""The options that the founding document's four actions have of their own: each by name, with its type.

They are read here and nowhere else, so that a value of another type is the same error wherever it is given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, create_model

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.compat_names import NAMES
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.options import Options, read_options
from trajgym.trainers.sft_config import SFTConfig

__all__ = [
    "MODEL",
    "DataCall",
    "EvaluateCall",
    "GRPOCall",
    "LoadCall",
    "RewardCall",
    "SFTCall",
    "TrainCall",
    "read_call",
    "require_mapping",
]

MODEL = "Qwen/Qwen3-0.6B"
"""What is trained where nothing is said."""


def _place(value: Any) -> Any:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(text, str) and "\0" in text:
        raise ValueError("a name of a folder or a model cannot hold a null character")
    if isinstance(text, str) and os.path.expanduser(text).startswith("~"):
        raise ValueError("there is no such user, so there is no home folder")
    return text


_Place = Annotated[str, BeforeValidator(_place)]
"""A folder, or the name of a model."""


class DataCall(Options):
    """What every action that needs data can be told of them."""

    dataset: Any = None
    custom_dataset: Any = None
    split: str | None = None
    env: str = "GSM8KTool-v0"
    env_kwargs: dict[str, Any] = Field({})


class LoadCall(DataCall):
    """Options of ``load_dataset``."""

    format: str = "sft"
    max_samples: int | None = Field(100, ge=1)
    model_name: _Place = MODEL
    seed: int = Field(0, ge=0)


class RewardCall(Options):
    """Options of ``create_reward``; what the reward's own may be, it says itself."""

    reward_type: str = "accuracy"
    reward_config: dict[str, Any] | None = None
    max_length: Any = None
    target_length: Any = None
    penalty_weight: Any = None
    step_bonus: Any = None


class EvaluateCall(DataCall):
    """Options of ``evaluate``. What is ``None`` is left to whoever plays."""

    model_path: _Place | None = None
    max_samples: int | None = Field(100, ge=1)
    use_lora: bool = True
    metrics: list[str] | None = None
    k: int | None = Field(None, ge=1)
    return_details: bool = False
    protocol: str | None = None
    max_new_tokens: int = Field(256, ge=1)
    max_episode_tokens: int | None = Field(None, ge=2)
    temperature: float | None = Field(None, ge=0, allow_inf_nan=False)
    slots: int | None = Field(None, ge=1)
    dtype: str | None = None
    device: str | None = None
    thinking: bool | None = None
    seed: int = Field(0, ge=0)


class TrainCall(DataCall):
    """What both ways of training have beside the options of our trainers."""

    model: _Place | None = None
    model_name: _Place | None = None
    output_dir: _Place | None = None
    optimizer: str = "adamw"
    use_tensorboard: bool = True
    use_wandb: bool = False
    wandb_project: str | None = Field(None, pattern=r"^[^\x00]*$")  # it becomes an environment variable


class _GRPO(TrainCall):
    reward_type: str | None = None
    reward_config: dict[str, Any] | None = None
    custom_reward: Any = None
    batch_size: int | None = Field(None, ge=1)
    gradient_accumulation_steps: int | None = Field(None, ge=1)


def _named(name: str, base: type[TrainCall], algorithm: str, trainer: type[Options]) -> type[TrainCall]:
    """Return the options with those that our trainer has under another name, which mean the same in every respect."""
    fields: dict[str, Any] = {}
    for theirs, ours in NAMES[algorithm].items():
        field = trainer.model_fields[ours]
        fields[theirs] = (field.annotation, field)
    return create_model(name, __base__=base, **fields)


SFTCall = _named("SFTCall", TrainCall, "sft", SFTConfig)
GRPOCall = _named("GRPOCall", _GRPO, "grpo", GRPOConfig)

Call = TypeVar("Call", bound=Options)


def read_call(action: str, kind: type[Call], given: Mapping[str, Any]) -> Call:
    """Read the options of an action.

    Args:
        action: What to call it in messages.
        kind: Its options.
        given: Options by name.

    Raises:
        UnknownNameError: For an option that it does not have.
        ConfigError: For a value that is not allowed; names the option, what was got and what is allowed.
    """
    for key in given:
        if key not in kind.model_fields:
            raise UnknownNameError(f"option of {action}", key, kind.model_fields)
    return read_options(kind, given, command=action)


def require_mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping of options as it is.

    Raises:
        ConfigError: When it is something else.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"Options must be a mapping, such as {{'action': 'train'}}, got {value!r:.80}.")
    return value
