"""The options of a training run: typed, checked, read from YAML and the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tyro
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from trajgym.errors import ConfigError, UnknownNameError

__all__ = ["GRPOConfig", "load_config", "recipe_names", "recipe_path"]

_RECIPES = Path(__file__).parent / "recipes"

_Json = tyro.conf.arg(constructor=json.loads, metavar="JSON")


class GRPOConfig(BaseModel):
    """Options of ``trajgym train``. Every key has an effect; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    algorithm: Literal["grpo", "ppo"] = Field(
        "grpo", description="'ppo' learns a value of each turn beside the policy; 'grpo' compares trajectories."
    )

    # What is trained, and on what
    model: str = Field("tiny", description="'tiny' (embedded), a folder, or a Hugging Face hub id.")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Weights' number format.")
    device: str = Field("auto", description="'auto', 'cpu', 'cuda', 'cuda:1', …")
    thinking: bool = Field(False, description="Let the chat template open a reasoning block, where it has one.")
    env: str = Field("ArithmeticTool-v0", description="Environment id.")
    env_kwargs: Annotated[dict[str, Any], _Json] = Field({}, description="Arguments of gym.make, as JSON.")
    protocol: str = Field(
        "auto", description="Written form of tool calls; 'auto' takes the chat template's, or hermes where it has none."
    )
    protocol_mismatch: Literal["error", "allow"] = Field(
        "error", description="What to do where a protocol is named that is not the chat template's."
    )

    # Length of the run
    updates: int | None = Field(None, ge=1, description="Optimiser rounds; give this or epochs.")
    epochs: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Passes over a finite data set; give this or updates."
    )
    max_samples: int | None = Field(None, ge=1, description="Train on the first so many tasks of a finite data set.")
    groups_per_update: int = Field(16, ge=1, description="Tasks per update.")
    num_generations: int = Field(8, ge=1, description="Trajectories per task (G).")
    minibatches: int = Field(1, ge=1, description="Optimiser steps that one batch of trajectories is split into.")
    inner_epochs: int = Field(1, ge=1, description="Passes over one batch of trajectories.")
    dynamic_sampling: int = Field(
        0, ge=0, description="Most further rounds of tasks while too few groups of an update have a signal; 0 is off."
    )

    # Rollout
    slots: int = Field(64, ge=1, description="Episodes that are live at once.")
    max_turn_tokens: int = Field(256, ge=1, description="Most new tokens in one turn.")
    max_episode_tokens: int = Field(2048, ge=2, description="Most tokens of the whole dialogue, prompt included.")
    temperature: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="Sampling temperature; the trained policy is the tempered one."
    )
    env_threads: int = Field(16, ge=1, description="Environments that may step at the same time.")
    deterministic: bool = Field(
        True, description="Same seed, same bits: wait for all environments of a tick. False overlaps slow tools."
    )

    # Credit
    reward_schedule: Annotated[dict[str, list[tuple[float, float]]], _Json] = Field(
        {}, description="Weights of reward terms over the run, as JSON: {term: [[progress 0 … 1, weight], …]}."
    )
    estimator: str = Field("return_to_go", description="How rewards become advantages.")
    baseline: str | None = Field(None, description="Baseline of the estimator; its own default when unset.")
    gamma: float = Field(1.0, ge=0, le=1, description="Discount per turn.")
    discount_weight: Literal["exact", "dropped"] = Field("exact", description="Keep γ^t before each turn's advantage.")
    estimator_options: Annotated[dict[str, Any], _Json] = Field(
        {}, description='Further options of the estimator, as JSON: {"lam": 0.95} for gae.'
    )
    vine_rollouts: int = Field(4, ge=1, description="Fresh rollouts per state for the estimator vine.")
    advantage_scale: Literal["none", "group_std", "batch_std", "ema_std"] = Field(
        "none", description="Spread to divide by; ema_std takes that of earlier updates."
    )
    truncated: Literal["keep", "drop", "penalty"] = Field(
        "keep", description="What to do with trajectories that a budget has cut."
    )
    truncation_penalty: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Taken from the last reward of such ones; needs truncated: penalty."
    )
    overlong_penalty: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Most that is taken from a turn's reward as it nears max_turn_tokens.",
    )
    overlong_buffer: int = Field(64, ge=1, description="Tokens before max_turn_tokens at which that begins.")

    # Loss
    learning_rate: float = Field(1e-5, gt=0, le=10, description="Peak learning rate.")
    warmup_ratio: float = Field(0.0, ge=0, le=1, description="Share of optimiser steps with a rising rate.")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="Rate after the warm-up.")
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False, description="AdamW's decoupled weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, allow_inf_nan=False, description="Gradients are scaled down to this norm.")
    importance: Literal["token", "turn", "trajectory"] = Field(
        "token", description="Over what the ratio π/π_old is averaged (geometric mean)."
    )
    objective: Literal["clip", "cispo", "dual_clip"] = Field("clip", description="How the ratio is bounded.")
    clip_range: float = Field(
        0.2, ge=0, lt=1, description="Lower clip of the ratio, ε_lo; acts from the second optimiser step of a batch on."
    )
    clip_range_high: float = Field(
        0.28, ge=0, allow_inf_nan=False, description="Upper clip, ε_hi; acts from the second step of a batch on."
    )
    cispo_cap: float = Field(5.0, allow_inf_nan=False, description="Largest ratio of cispo.")
    dual_clip: float = Field(3.0, allow_inf_nan=False, description="Largest loss factor of bad turns for dual_clip.")
    sampler_correction: bool = Field(
        False,
        description="Weigh tokens by trainer over sampler probability, where the two are not bit for bit one model.",
    )
    sampler_cap: float = Field(2.0, ge=1, allow_inf_nan=False, description="Largest such weight, C.")
    kl_coef: float = Field(0.05, ge=0, allow_inf_nan=False, description="β, weight of the KL to the reference.")
    kl_form: Literal["k3_ratio", "k3", "k2", "k1_in_reward"] = Field(
        "k3_ratio", description="Estimate of the KL in the loss, or the KL of a turn as part of its reward."
    )
    kl_control: Literal["fixed", "auto"] = Field(
        "fixed", description="'auto' moves kl_coef so that the KL per token stays within 0.01 … 0.1."
    )
    normalizer: Literal["constant", "token", "turn", "sequence"] = Field(
        "constant", description="Z: trajectories × max_turn_tokens, tokens, turns, or mean per trajectory."
    )
    microbatch_tokens: int = Field(16384, ge=1, description="Padded tokens per forward pass; bounds memory.")
    gradient_checkpointing: bool = Field(False, description="Less memory for a slower backward pass.")

    # PPO's value model
    value_learning_rate: float = Field(1e-4, gt=0, le=10, description="Its peak learning rate.")
    value_clip: float = Field(0.2, gt=0, allow_inf_nan=False, description="Most that a value moves per batch.")
    value_epochs: int = Field(1, ge=1, description="Passes of the value model over one batch.")
    value_warmup: int = Field(0, ge=0, description="Updates in which the value model alone learns.")
    value_levels: Literal["turn", "bilevel"] = Field(
        "turn", description="One value per turn, or one per token inside of turns as well."
    )
    token_lam: float = Field(1.0, ge=0, le=1, description="λ between tokens of a turn, for bilevel.")

    # LoRA
    use_lora: bool = Field(False, description="Train low-rank adapters instead of all weights.")
    lora_rank: int = Field(16, ge=1, description="Rank r.")
    lora_alpha: int = Field(32, ge=1, description="Scale α; the update is multiplied by α/r.")
    lora_targets: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj"), min_length=1, description="Names of the adapted layers."
    )

    # Faults of the environment's machinery, which are not the policy's
    fault_alarm: float = Field(
        0.05, ge=0, le=1, description="Share of an update's episodes lost to faults above which to warn; 1 never warns."
    )
    fault_limit: int = Field(
        3, ge=1, description="Updates in a row without a usable group after which the run stops; fewer are skipped."
    )

    rank_deadline: float = Field(
        1800.0, gt=0, allow_inf_nan=False, description="Seconds that one of several processes waits for the others."
    )

    # The run itself
    seed: int = Field(0, ge=0, description="Seeds everything.")
    output_dir: Path = Field(Path("runs"), description="Parent of the run folder.")
    name: str | None = Field(None, description="Name of the run folder; the recipe's name and the seed when unset.")
    resume: bool = Field(False, description="Go on from the newest checkpoint of this run folder.")
    overwrite: bool = Field(False, description="Replace a run folder of this name.")
    save_every: int = Field(20, ge=1, description="Updates between checkpoints; the last update is always saved.")
    keep_checkpoints: int = Field(2, ge=1, description="How many checkpoints to keep.")
    log_trajectories: int = Field(16, ge=0, description="Trajectories written to the run folder per update.")
    monitors: tuple[str, ...] = Field(("tensorboard",), description="Where numbers go: tensorboard, wandb, trackio.")
    progress: Literal["table", "line"] = Field("table", description="How updates are printed.")

    @model_validator(mode="before")
    @classmethod
    def _before(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        if values.get("kl_form") == "k1":
            raise ValueError(
                "kl_form k1 is no loss: the expected gradient of log π − log π_ref is zero; k1_in_reward subtracts it "
                "from the reward, k3_ratio and k2 have the gradient of the KL"
            )
        if values.get("importance") == "sequence":
            raise ValueError(
                "importance sequence, one ratio for all tokens with the gradient through it, would give every turn the "
                "same credit; trajectory is the same ratio with its gradient token by token"
            )
        if values.get("algorithm") == "ppo" and "estimator" not in values:
            return {**values, "estimator": "gae"}  # the only one PPO has
        return values

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (self.updates is None) == (self.epochs is None):
            raise ValueError(
                f"give either updates or epochs, got updates={self.updates} and epochs={self.epochs}; on the command "
                "line --epochs None or --updates None drops the recipe's"
            )
        if self.max_turn_tokens >= self.max_episode_tokens:
            raise ValueError(
                f"max_turn_tokens ({self.max_turn_tokens}) must be smaller than max_episode_tokens "
                f"({self.max_episode_tokens}), which also holds the prompt"
            )
        if self.minibatches > self.groups_per_update:
            raise ValueError(
                f"minibatches ({self.minibatches}) cannot exceed groups_per_update ({self.groups_per_update})"
            )
        if self.algorithm == "ppo" and self.estimator != "gae":
            raise ValueError(f"algorithm ppo takes the estimator gae, got {self.estimator!r}; grpo takes any other")
        if self.num_generations < 2 and self.advantage_scale == "group_std":
            raise ValueError(f"num_generations ({self.num_generations}) must be at least 2 to have a group_std")
        for name in ("gamma", "baseline", "discount_weight"):
            if name in self.estimator_options:
                raise ValueError(f"estimator_options holds {name}, which is an option of its own")
        if self.algorithm == "ppo" and self.baseline is not None:
            raise ValueError(f"baseline ({self.baseline}) means nothing to ppo, whose baseline is the learned value")
        if self.token_lam != 1 and self.value_levels != "bilevel":
            raise ValueError("token_lam acts with value_levels: bilevel alone")
        penalties = (
            self.overlong_penalty or self.truncation_penalty or (self.kl_coef and self.kl_form == "k1_in_reward")
        )
        if self.estimator == "vine" and penalties:
            raise ValueError(
                "estimator vine values states by the environment's rewards; overlong_penalty, truncation_penalty and "
                "kl_form k1_in_reward would not be among them"
            )
        if self.dynamic_sampling and (self.algorithm == "ppo" or self.estimator == "vine"):
            raise ValueError(
                "dynamic_sampling looks for groups whose rewards differ; with learned or sampled values all do"
            )
        if self.dynamic_sampling and self.kl_form == "k1_in_reward" and self.kl_coef:
            raise ValueError("dynamic_sampling looks for groups whose rewards differ; with k1_in_reward all do")
        if self.kl_control == "auto" and not self.kl_coef:
            raise ValueError("kl_control auto needs a kl_coef above 0 to begin with")
        if self.truncation_penalty and self.truncated != "penalty":
            raise ValueError("truncation_penalty acts with truncated: penalty alone")
        if self.objective == "cispo" and self.cispo_cap < 1:
            raise ValueError(
                f"cispo_cap ({self.cispo_cap}) must be at least 1: the ratio is 1 where the policy has not moved, "
                "and a smaller cap would scale every gradient down"
            )
        if self.objective == "dual_clip" and self.dual_clip <= 1:
            raise ValueError(f"dual_clip ({self.dual_clip}) must exceed 1, or it would cut unclipped turns")
        if self.overlong_penalty and self.overlong_buffer > self.max_turn_tokens:
            raise ValueError(
                f"overlong_buffer ({self.overlong_buffer}) cannot exceed max_turn_tokens ({self.max_turn_tokens})"
            )
        named = self.env_kwargs.get("protocol", self.protocol)
        if self.protocol not in ("auto", getattr(named, "name", named)):
            raise ValueError(f"protocol is {self.protocol!r} and {named!r} in env_kwargs; give it once")
        if self.resume and self.overwrite:
            raise ValueError("resume and overwrite exclude each other")
        return self

    @property
    def env_arguments(self) -> dict[str, Any]:
        """The environment's arguments: ``env_kwargs``, and the protocol if one is named."""
        return ({} if self.protocol == "auto" else {"protocol": self.protocol}) | self.env_kwargs

    def dump(self) -> str:
        """Return the effective values as YAML, in the order in which they are declared."""
        return yaml.safe_dump(self.plain(), sort_keys=False)

    def plain(self) -> dict[str, Any]:
        """Return the effective values as JSON values; objects among ``env_kwargs`` are written as their repr."""
        return self.model_dump(mode="json", fallback=_name_of)


def recipe_names() -> list[str]:
    """Return the recipes that ship with the package."""
    return sorted(path.stem for path in _RECIPES.glob("*.yaml"))


def recipe_path(name: str) -> Path:
    """Return the file of a recipe, or of a YAML file given by its path.

    Raises:
        ConfigError: When there is no such recipe or file.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(f"There is no configuration file {name!r}.")
        return path
    if name not in recipe_names():
        raise UnknownNameError("recipe", name, recipe_names(), "Or give the path of a .yaml file.")
    return _RECIPES / f"{name}.yaml"


def load_config(source: str | Path | Mapping[str, Any], args: Sequence[str] = ()) -> GRPOConfig:
    """Read a configuration.

    Args:
        source: A recipe's name, a YAML file, or the values themselves.
        args: Command-line overrides such as ``["--gamma", "0.95"]``.

    Raises:
        ConfigError: For a key or a value that is not allowed; names it.
        SystemExit: After ``--help``, and for an option that does not exist, with the closest ones printed.
    """
    if isinstance(source, Mapping):
        values, origin = dict(source), "the configuration"
    else:
        path = recipe_path(str(source))
        origin = str(path)
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path} must hold a mapping of options, got {type(values).__name__}.")
    for key in values:
        if key not in GRPOConfig.model_fields:
            raise UnknownNameError("option", key, GRPOConfig.model_fields, f"It is set in {origin}.")
    try:
        config = GRPOConfig(**values)
    except ValidationError as error:
        raise ConfigError(_plain(error, origin)) from error
    if not args:
        return config
    loose = _without_bounds()
    given = tyro.cli(loose, args=list(args), default=loose(**dict(config)), prog="trajgym train RECIPE")
    chosen = dict(given)
    if chosen["algorithm"] == "ppo" and not any(arg.split("=")[0] == "--estimator" for arg in args):
        del chosen["estimator"]  # the recipe's is one for grpo
    try:
        return GRPOConfig(**chosen)
    except ValidationError as error:
        raise ConfigError(_plain(error, "the command line")) from error


def _name_of(value: object) -> str:
    """Write an object the same way in every process: no addresses."""
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _without_bounds() -> Any:
    """Return the options without their bounds, so that wrong values are reported the same way wherever they stand."""
    fields: dict[str, Any] = {}
    for name, field in GRPOConfig.model_fields.items():
        parse = tuple(m for m in field.metadata if type(m).__module__.startswith("tyro"))
        kind = Annotated[(field.annotation, *parse)] if parse else field.annotation
        fields[name] = (kind, Field(field.default, description=field.description))
    return create_model("GRPOConfig", **fields)


def _plain(error: ValidationError, origin: str) -> str:
    """Say in one line per option what is wrong."""
    lines = []
    for item in error.errors():
        where = ".".join(map(str, item["loc"])) or "options"
        got = "" if item["type"] == "value_error" else f", got {item['input']!r}"
        lines.append(f"{where}: {item['msg'].removeprefix('Value error, ')}{got}")
    return f"Bad value in {origin}: " + "; ".join(lines)
