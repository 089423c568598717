"""The options of supervised fine-tuning: typed, checked, read from YAML and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trajgym.trainers.options import Json, Options, read_options, recipes_of

__all__ = ["SFTConfig", "load_sft_config", "sft_recipe_names"]


class SFTConfig(Options):
    """Options of ``trajgym sft``. Every key has an effect; unknown keys are refused.

    Names that :class:`trajgym.trainers.config.GRPOConfig` has too mean the same here.
    """

    algorithm: Literal["sft"] = Field("sft", description="Supervised fine-tuning: imitate demonstrations.")

    # What is trained
    model: str = Field("tiny", description="'tiny' (embedded), a folder, or a Hugging Face hub id.")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Format to compute in, and of the final model; weights that are trained are float32."
    )
    device: str = Field("auto", description="'auto', 'cpu', 'cuda', 'cuda:1', …")
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
    eval_split: str | None = Field(None, description="Take eval_samples from this split instead, e.g. 'test'.")
    max_length: int = Field(
        1024, ge=2, description="Most tokens of a row; longer ones are left out. With packing, the size of a pack."
    )
    packing: bool = Field(False, description="Put several rows into one sequence, none of which sees another.")

    # Length of the run
    epochs: float = Field(3.0, gt=0, allow_inf_nan=False, description="Passes over the data.")
    batch_size: int = Field(4, ge=1, description="Rows, or packs, per forward pass.")
    gradient_accumulation: int = Field(1, ge=1, description="Forward passes per optimiser step.")

    # Loss
    learning_rate: float = Field(5e-5, gt=0, le=10, description="Peak learning rate.")
    warmup_ratio: float = Field(0.1, ge=0, lt=1, description="Share of optimiser steps with a rising rate.")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field("linear", description="Rate after the warm-up.")
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False, description="AdamW's decoupled weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, allow_inf_nan=False, description="Gradients are scaled down to this norm.")
    gradient_checkpointing: bool = Field(False, description="Less memory for a slower backward pass.")

    # LoRA
    use_lora: bool = Field(False, description="Train low-rank adapters instead of all weights.")
    lora_rank: int = Field(8, ge=1, description="Rank r.")
    lora_alpha: int = Field(16, ge=1, description="Scale α; the update is multiplied by α/r.")
    lora_targets: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj"), min_length=1, description="Names of the adapted layers."
    )

    # The run itself
    seed: int = Field(0, ge=0, lt=2**32, description="Seeds everything.")
    output_dir: Path = Field(Path("runs"), description="Parent of the run folder.")
    name: str | None = Field(None, description="Name of the run folder; the recipe's name and the seed when unset.")
    resume: bool = Field(False, description="Go on from the newest checkpoint of this run folder.")
    overwrite: bool = Field(False, description="Replace a run folder of this name.")
    save_every: int = Field(500, ge=1, description="Optimiser steps between checkpoints; the last one is always saved.")
    keep_checkpoints: int = Field(2, ge=1, description="How many checkpoints to keep.")
    eval_every: int = Field(500, ge=1, description="Optimiser steps between looks at eval_samples; also at the end.")
    log_every: int = Field(10, ge=1, description="Optimiser steps between printed lines; metrics.jsonl has every one.")
    monitors: tuple[str, ...] = Field(("tensorboard",), description="Where numbers go: tensorboard, wandb, trackio.")

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.resume and self.overwrite:
            raise ValueError("resume and overwrite exclude each other")
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
