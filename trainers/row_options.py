"""The options that all trainings on ready rows share: fine-tuning, reward models, DPO."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from trajgym.trainers.options import Options

__all__ = ["RowOptions"]


class RowOptions(Options):
    """What a training that passes over rows can be told, whatever it learns from them.

    Names that :class:`trajgym.trainers.config.GRPOConfig` has too mean the same here.
    """

    # What is trained
    model: str = Field("tiny", description="'tiny' (embedded), a folder, or a Hugging Face hub id.")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Format to compute in, and of the final model; weights that are trained are float32."
    )
    device: str = Field("auto", description="'auto', 'cpu', 'cuda', 'cuda:1', …")

    # Length of the run
    epochs: float = Field(1.0, gt=0, allow_inf_nan=False, description="Passes over the data.")
    batch_size: int = Field(8, ge=1, description="Rows per forward pass.")
    gradient_accumulation: int = Field(1, ge=1, description="Forward passes per optimiser step.")
    max_length: int = Field(1024, ge=2, description="Most tokens of a row.")

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
