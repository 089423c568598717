"""The options of reward models and of DPO: typed, checked, read from YAML and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trajgym.trainers.options import Options, read_options

__all__ = ["DPOConfig", "PreferenceOptions", "RewardModelConfig", "load_dpo_config", "load_reward_config"]


class PreferenceOptions(Options):
    """What both kinds of training on preference pairs share.

    Names that :class:`trajgym.trainers.config.GRPOConfig` has too mean the same here.
    """

    # What is trained, and on what
    model: str = Field("tiny", description="'tiny' (embedded), a folder, or a Hugging Face hub id.")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Format to compute in, and of the final model; weights that are trained are float32."
    )
    device: str = Field("auto", description="'auto', 'cpu', 'cuda', 'cuda:1', …")
    pairs: Path = Field(
        Path("pairs.jsonl"),
        description="File of pairs {prompt, chosen, rejected}; or a run folder or a file of trajectories, of which "
        "right answers are paired with wrong ones.",
    )
    most_per_task: int = Field(8, ge=1, description="Most pairs about one task, where they are made of trajectories.")
    held_out: float = Field(0.1, ge=0, lt=1, description="Share of the questions that is only measured on.")
    max_length: int = Field(1024, ge=2, description="Most tokens of prompt and answer.")

    # Length of the run
    epochs: float = Field(1.0, gt=0, allow_inf_nan=False, description="Passes over the pairs.")
    batch_size: int = Field(8, ge=1, description="Pairs per forward pass.")
    gradient_accumulation: int = Field(1, ge=1, description="Forward passes per optimiser step.")

    # Loss
    learning_rate: float = Field(1e-5, gt=0, le=10, description="Peak learning rate.")
    warmup_ratio: float = Field(0.1, ge=0, lt=1, description="Share of optimiser steps with a rising rate.")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field("linear", description="Rate after the warm-up.")
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False, description="AdamW's decoupled weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, allow_inf_nan=False, description="Gradients are scaled down to this norm.")
    gradient_checkpointing: bool = Field(False, description="Less memory for a slower backward pass.")

    # LoRA
    use_lora: bool = Field(False, description="Train low-rank adapters instead of all weights.")
    lora_rank: int = Field(16, ge=1, description="Rank r.")
    lora_alpha: int = Field(32, ge=1, description="Scale α; the update is multiplied by α/r.")
    lora_targets: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj"), min_length=1, description="Names of the adapted layers."
    )

    # The run itself
    seed: int = Field(0, ge=0, lt=2**32, description="Seeds everything.")
    output_dir: Path = Field(Path("runs"), description="Parent of the run folder.")
    name: str | None = Field(None, description="Name of the run folder; the kind of run and the seed when unset.")
    resume: bool = Field(False, description="Go on from the newest checkpoint of this run folder.")
    overwrite: bool = Field(False, description="Replace a run folder of this name.")
    save_every: int = Field(500, ge=1, description="Optimiser steps between checkpoints; the last one is always saved.")
    keep_checkpoints: int = Field(1, ge=1, description="How many checkpoints to keep.")
    log_every: int = Field(10, ge=1, description="Optimiser steps between printed lines; metrics.jsonl has every one.")
    monitors: tuple[str, ...] = Field(("tensorboard",), description="Where numbers go: tensorboard, wandb, trackio.")

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        if self.resume and self.overwrite:
            raise ValueError("resume and overwrite exclude each other")
        return self


class RewardModelConfig(PreferenceOptions):
    """Options of ``trajgym reward-model``. Every key has an effect; unknown keys are refused."""

    algorithm: Literal["reward_model"] = Field("reward_model", description="Learn what is preferred, as a score.")
    use_margin: bool = Field(
        False, description="Ask of the two scores to differ by the pair's margin, not only to be in order."
    )
    center: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Weight of the squared sum of a pair's scores; keeps them near 0."
    )


class DPOConfig(PreferenceOptions):
    """Options of ``trajgym dpo``. Every key has an effect; unknown keys are refused."""

    algorithm: Literal["dpo"] = Field("dpo", description="Prefer what is preferred, without a reward model.")
    thinking: bool = Field(False, description="Let the chat template open a reasoning block, where it has one.")
    beta: float = Field(
        0.1, gt=0, allow_inf_nan=False, description="β: the larger, the closer to the model that the run starts from."
    )
    loss: Literal["sigmoid", "hinge", "ipo"] = Field("sigmoid", description="sigmoid is the one of the DPO paper.")


def load_reward_config(source: str | Path | Mapping[str, Any], args: Sequence[str] = ()) -> RewardModelConfig:
    """Read the options of a reward model; see :func:`trajgym.trainers.options.read_options`.

    Args:
        source: A recipe's name, a YAML file, or the values themselves.
        args: Command-line overrides such as ``["--learning-rate", "1e-4"]``.

    Raises:
        ConfigError: For a key or a value that is not allowed; names it.
        SystemExit: After ``--help``, and for an option that does not exist, with the closest ones printed.
    """
    return read_options(RewardModelConfig, source, args, command="reward-model")


def load_dpo_config(source: str | Path | Mapping[str, Any], args: Sequence[str] = ()) -> DPOConfig:
    """Read the options of DPO; arguments and errors as in :func:`load_reward_config`."""
    return read_options(DPOConfig, source, args, command="dpo")
