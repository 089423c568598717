"""The options of training on logged trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trajgym.errors import ConfigError
from trajgym.trainers.config import GRPOConfig, load_config
from trajgym.trainers.options import Json, Options, read_options
from trajgym.trainers.sft_config import SFTConfig, load_sft_config

__all__ = ["OnlineConfig", "load_online_config"]

_OWN = ("model", "env", "env_kwargs", "seed", "output_dir", "name", "resume", "overwrite")
_POLICY_OWN = (*_OWN, "updates", "epochs", "sampler_correction", "sampler_cap", "num_generations", "dynamic_sampling")
_IMITATE_OWN = (*_OWN, "dataset", "max_samples")


class OnlineConfig(Options):
    """Options of ``trajgym online``. Every key has an effect; unknown keys are refused."""

    algorithm: Literal["online"] = Field("online", description="Go on from what a deployed policy has done.")
    model: str = Field("tiny", description="What to train: 'tiny', a folder with a whole model, or a hub id.")
    logs: tuple[Path, ...] = Field(
        (), description="Run folders, or files of trajectories (.jsonl, .parquet), the policy's own or a predecessor's."
    )
    mode: Literal["policy", "imitate"] = Field(
        "policy",
        description="'policy' takes policy-gradient steps, corrected for the age of the log, and needs its "
        "log-probabilities; 'imitate' fine-tunes on the right answers alone, and needs none.",
    )
    options: Annotated[dict[str, Any], Json] = Field(
        {}, description="Options of trajgym train (policy) or trajgym sft (imitate), as JSON."
    )
    env: str = Field("ArithmeticTool-v0", description="Environment id: of the log, and of the tasks measured on.")
    env_kwargs: Annotated[dict[str, Any], Json] = Field({}, description="Arguments of gym.make, as JSON.")

    # What of the log is used
    min_reward: float | None = Field(
        None, allow_inf_nan=False, description="With imitate, least total reward; right answers are asked for anyway."
    )
    max_gap: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="With policy, most nats per token between log and present policy."
    )
    cap: float = Field(2.0, ge=1, allow_inf_nan=False, description="With policy, largest importance weight of a token.")
    epochs: float = Field(1.0, gt=0, allow_inf_nan=False, description="Passes over what is used.")

    # Before and after
    eval_split: str = Field("test", description="Held-out part of the tasks; '' where an environment has no parts.")
    eval_tasks: int = Field(100, ge=1, description="Tasks to measure on, before and after, here and for the guard.")
    eval_turn_tokens: int = Field(256, ge=1, description="Most new tokens in a turn, with imitate.")
    guard_env: str = Field("ArithmeticTool-v0", description="Environment id of the tasks that must not be forgotten.")
    guard_env_kwargs: Annotated[dict[str, Any], Json] = Field({}, description="Its arguments of gym.make, as JSON.")
    guard_split: str = Field("test", description="Which part of its tasks; '' where it has no parts.")
    guard_tolerance: float = Field(0.02, ge=0, le=1, description="Loss of accuracy there that is put up with.")

    # The run itself
    seed: int = Field(0, ge=0, lt=2**32, description="Seeds everything.")
    output_dir: Path = Field(Path("runs"), description="Parent of the run folder.")
    name: str | None = Field(None, description="Name of the run folder; 'online' and the seed when unset.")
    overwrite: bool = Field(False, description="Replace a run folder of this name.")

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.min_reward is not None and self.mode == "policy":
            raise ValueError("min_reward acts with mode imitate; a policy gradient needs what went wrong as well")
        for mode, names, why in (
            ("policy", ("max_gap", "cap"), "imitation does not compare the log with the present policy"),
            ("imitate", ("eval_turn_tokens",), "a policy run has a budget of its own, max_turn_tokens in options"),
        ):
            for name in names if self.mode != mode else ():
                value, default = getattr(self, name), type(self).model_fields[name].default
                if value != default:
                    raise ValueError(f"{name} ({value}) acts with mode {mode}; {why}, so leave it at {default}")
        own = _POLICY_OWN if self.mode == "policy" else _IMITATE_OWN
        taken = [key for key in own if key in self.options]
        if taken:
            raise ValueError(f"options holds {', '.join(taken)}, which trajgym online decides or has as its own option")
        return self

    @property
    def folder(self) -> Path:
        """Where everything goes."""
        return self.output_dir.expanduser() / (self.name or f"online-seed{self.seed}")

    @property
    def resume(self) -> bool:
        """No: it is measured before and after in one go."""
        return False

    @property
    def keep_checkpoints(self) -> int:
        """Those of the training are in its own folder."""
        return 1

    def policy_options(self, updates: int = 1) -> GRPOConfig:
        """Return the options of the policy-gradient run.

        Args:
            updates: How many it takes to go through what is used.

        Raises:
            ConfigError: For an option or a value that is not allowed.
        """
        own = {"updates": updates, "sampler_correction": True, "sampler_cap": self.cap}
        config = load_config({**self.options, **self._shared(), **own})
        if config.algorithm != "grpo" or config.estimator == "vine":
            raise ConfigError(
                "Mode policy learns from trajectories that are there already; algorithm ppo and estimator vine value "
                "states of the present policy. Take grpo with another estimator."
            )
        return config

    def imitation_options(self) -> SFTConfig:
        """Return the options of the supervised run.

        Raises:
            ConfigError: For an option or a value that is not allowed.
        """
        return load_sft_config({**self.options, **self._shared(), "epochs": self.epochs})

    def _shared(self) -> dict[str, Any]:
        names = ("model", "env", "env_kwargs", "seed")
        return {name: getattr(self, name) for name in names} | {"output_dir": self.folder, "name": "train"}


def load_online_config(source: str | Path | Mapping[str, Any], args: Sequence[str] = ()) -> OnlineConfig:
    """Read the options; see :func:`trajgym.trainers.options.read_options`.

    Args:
        source: A YAML file, or the values themselves.
        args: Command-line overrides such as ``["--mode", "imitate"]``.

    Raises:
        ConfigError: For a key or a value that is not allowed; names it.
        SystemExit: After ``--help``, and for an option that does not exist, with the closest ones printed.
    """
    return read_options(OnlineConfig, source, args, command="online")
