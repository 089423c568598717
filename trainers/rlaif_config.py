"""The options of RLAIF: typed, checked, read from YAML and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trajgym.errors import ConfigError
from trajgym.rewards.judge_prompt import DEFAULT_CRITERION
from trajgym.trainers.config import GRPOConfig, load_config
from trajgym.trainers.options import Json, Options, read_options
from trajgym.trainers.preference_config import RewardModelConfig, load_reward_config

__all__ = ["RLAIFConfig", "load_rlaif_config"]

_RUN = ("output_dir", "name", "resume", "overwrite")
_SHARED = ("model", "dtype", "device", "seed")


class RLAIFConfig(Options):
    """Options of ``trajgym rlaif``. Every key has an effect; unknown keys are refused."""

    algorithm: Literal["rlaif"] = Field("rlaif", description="Learn from a judge's feedback.")

    policy: Annotated[dict[str, Any], Json] = Field(
        {}, description="Options of `trajgym train` for the policy: model, env, updates, budgets, …; no reward."
    )
    terms: Annotated[dict[str, Any], Json] = Field(
        {}, description='Reward terms beside the learned one, as JSON: {"format": 0.1}.'
    )

    # Step 1
    tasks: int = Field(64, ge=2, description="Tasks to sample answers to.")
    candidates: int = Field(4, ge=2, description="Answers to each.")

    # Step 2
    judge: str = Field("tiny", description="The model that judges: a folder or a Hugging Face hub id.")
    judge_tokens: int = Field(512, ge=1, description="Most tokens of a verdict.")
    judge_context: int = Field(8192, ge=2, description="Most tokens of a question to the judge, its verdict included.")
    judge_timeout: float = Field(600.0, gt=0, allow_inf_nan=False, description="Most seconds for a batch of verdicts.")
    judging: Literal["grades", "choices"] = Field(
        "choices", description="Grade each answer, or compare two at a time, in both orders."
    )
    criterion: str = Field(DEFAULT_CRITERION, min_length=1, description="What makes an answer good.")
    reference: bool = Field(False, description="Show the judge the task's right answer.")
    least_gap: float = Field(0.0, ge=0, lt=10, description="Grades, 0 … 10, no further apart than this are equal.")
    most_per_task: int = Field(6, ge=1, description="Most pairs about one task.")

    # Step 3
    reward_model: Annotated[dict[str, Any], Json] = Field(
        {}, description="Options of `trajgym reward-model`; model, dtype, device and seed are the policy's."
    )

    # Step 4
    eval_tasks: int = Field(64, ge=1, description="Tasks to measure the policy on, before and after.")
    eval_kwargs: Annotated[dict[str, Any], Json] = Field(
        {}, description='Other arguments of the environment for that, as JSON: {"split": "test"}.'
    )

    # The run itself
    seed: int = Field(0, ge=0, lt=2**32, description="Seeds everything.")
    output_dir: Path = Field(Path("runs"), description="Parent of the run folder.")
    name: str | None = Field(None, description="Name of the run folder; 'rlaif' and the seed when unset.")
    resume: bool = Field(False, description="Go on with what is missing in this run folder.")
    overwrite: bool = Field(False, description="Replace a run folder of this name.")
    keep_checkpoints: int = Field(2, ge=1, description="How many checkpoints of the policy to keep.")

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.resume and self.overwrite:
            raise ValueError("resume and overwrite exclude each other")
        for name in ("policy", "reward_model"):
            taken = [key for key in _RUN if key in getattr(self, name)]
            if taken:
                raise ValueError(f"{name} holds {', '.join(taken)}, which this run decides itself")
        if "pairs" in self.reward_model:
            raise ValueError("reward_model holds pairs, which the judge makes")
        if "reward" in self.policy.get("env_kwargs", {}):
            raise ValueError(
                "policy has a reward in its env_kwargs, but is to be trained on the learned one; terms beside it go "
                "into terms"
            )
        if "reward" in self.eval_kwargs:
            raise ValueError(
                "eval_kwargs holds a reward, but the policy is measured by the learned one and the environment's truth"
            )
        if "learned" in self.terms:
            raise ValueError("terms holds 'learned', which is the reward model's name")
        return self

    @property
    def folder(self) -> Path:
        """Where everything goes."""
        return self.output_dir.expanduser().absolute() / (self.name or f"rlaif-seed{self.seed}")

    def policy_options(self) -> GRPOConfig:
        """Return the options of the policy's training, but for its reward and its folder.

        Raises:
            ConfigError: For a key or a value that is not allowed; names it.
        """
        return load_config({"seed": self.seed, "keep_checkpoints": self.keep_checkpoints, **self.policy})

    def reward_options(self) -> RewardModelConfig:
        """Return the options of the reward model's training, but for its pairs and its folder.

        Raises:
            ConfigError: For a key or a value that is not allowed; names it.
        """
        policy = self.policy_options()
        return load_reward_config({**{name: getattr(policy, name) for name in _SHARED}, **self.reward_model})


def load_rlaif_config(source: str | Path | Mapping[str, Any], args: Sequence[str] = ()) -> RLAIFConfig:
    """Read the options of RLAIF; see :func:`trajgym.trainers.options.read_options`.

    Args:
        source: A recipe's name, a YAML file, or the values themselves.
        args: Command-line overrides such as ``["--tasks", "128"]``.

    Raises:
        ConfigError: For a key or a value that is not allowed; names it.
        SystemExit: After ``--help``, and for an option that does not exist, with the closest ones printed.
    """
    config = read_options(RLAIFConfig, source, args, command="rlaif")
    try:
        config.reward_options()  # whatever is wrong with it is said before anything is computed
    except ConfigError as error:
        raise ConfigError(f"In the options of RLAIF: {error}") from error
    return config
