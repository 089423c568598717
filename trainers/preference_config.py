"""The options of reward models and of DPO: typed, checked, read from YAML and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from trajgym.trainers.options import read_options
from trajgym.trainers.row_options import RowOptions

__all__ = ["DPOConfig", "PreferenceOptions", "RewardModelConfig", "load_dpo_config", "load_reward_config"]


class PreferenceOptions(RowOptions):
    """What both kinds of training on preference pairs share."""

    pairs: Path = Field(
        Path("pairs.jsonl"),
        description="File of pairs {prompt, chosen, rejected}; or a run folder or a file of trajectories, of which "
        "right answers are paired with wrong ones.",
    )
    most_per_task: int = Field(8, ge=1, description="Most pairs about one task, where they are made of trajectories.")
    held_out: float = Field(0.1, ge=0, lt=1, description="Share of the questions that is only measured on.")
    batch_size: int = Field(8, ge=1, description="Pairs per forward pass.")
    max_length: int = Field(1024, ge=2, description="Most tokens of prompt and answer.")


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
