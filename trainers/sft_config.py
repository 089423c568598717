"""The options of supervised fine-tuning: typed, checked, read from YAML and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trajgym.trainers.options import Json, read_options, recipes_of
from trajgym.trainers.row_options import RowOptions

__all__ = ["SFTConfig", "load_sft_config", "sft_recipe_names"]


class SFTConfig(RowOptions):
    """Options of ``trajgym sft``. Every key has an effect; unknown keys are refused."""

    algorithm: Literal["sft"] = Field("sft", description="Supervised fine-tuning: imitate demonstrations.")
    thinking: bool = Field(False, description="Let the chat template open a reasoning block, where it has one.")

    # On what
    dataset: str = Field(
        "expert",
        description="'expert' plays the demonstrations of env; else a registered name such as 'gsm8k', or a .jsonl "
        "file with rows {prompt, completion}, {messages} or {question, answer}.",
    )
    env: str = Field(
        "ArithmeticTool-v0",
        description="Environment id: gives the demonstrations, and to problems of other data sets the system message.",
    )
    env_kwargs: Annotated[dict[str, Any], Json] = Field({}, description="Arguments of gym.make, as JSON.")
    protocol: str = Field(
        "auto", description="Written form of tool calls; 'auto' takes the chat template's, or hermes where it has none."
    )
    protocol_mismatch: Literal["error", "allow"] = Field(
        "error", description="What to do where a protocol is named that is not the chat template's."
    )
    max_samples: int | None = Field(None, ge=1, description="Train on the first so many samples; all when unset.")
    eval_samples: int = Field(0, ge=0, description="Samples behind those that are kept out of training, for eval_loss.")
    eval_every: int = Field(500, ge=1, description="Optimiser steps between looks at eval_samples; also at the end.")
    eval_split: str | None = Field(None, description="Take eval_samples from this split instead, e.g. 'test'.")
    max_length: int = Field(
        1024, ge=2, description="Most tokens of a row; longer ones are left out. With packing, the size of a pack."
    )
    packing: bool = Field(False, description="Put several rows into one sequence, none of which sees another.")

    # Other values than those of the base
    epochs: float = Field(3.0, gt=0, allow_inf_nan=False, description="Passes over the data.")
    batch_size: int = Field(4, ge=1, description="Rows, or packs, per forward pass.")
    learning_rate: float = Field(5e-5, gt=0, le=10, description="Peak learning rate.")
    lora_rank: int = Field(8, ge=1, description="Rank r.")
    lora_alpha: int = Field(16, ge=1, description="Scale α; the update is multiplied by α/r.")
    name: str | None = Field(None, description="Name of the run folder; the recipe's name and the seed when unset.")
    keep_checkpoints: int = Field(2, ge=1, description="How many checkpoints to keep.")

    @model_validator(mode="after")
    def _together(self) -> Self:
        named = self.env_kwargs.get("protocol", self.protocol)
        if self.protocol not in ("auto", getattr(named, "name", named)):
            raise ValueError(f"protocol is {self.protocol!r} and {named!r} in env_kwargs; give it once")
        return self

    @property
    def env_arguments(self) -> dict[str, Any]:
        """The environment's arguments: ``env_kwargs``, and the protocol if one is named."""
        return ({} if self.protocol == "auto" else {"protocol": self.protocol}) | self.env_kwargs


def sft_recipe_names() -> list[str]:
    """Return the recipes of supervised fine-tuning that ship with the package."""
    return recipes_of(SFTConfig)


def load_sft_config(source: str | Path | Mapping[str, Any], args: Sequence[str] = ()) -> SFTConfig:
    """Read the options of supervised fine-tuning; see :func:`trajgym.trainers.options.read_options`.

    Args:
        source: A recipe's name, a YAML file, or the values themselves.
        args: Command-line overrides such as ``["--learning-rate", "1e-4"]``.

    Raises:
        ConfigError: For a key or a value that is not allowed; names it.
        SystemExit: After ``--help``, and for an option that does not exist, with the closest ones printed.
    """
    return read_options(SFTConfig, source, args, command="sft")
