"""The options of a training run: typed, checked, read from YAML and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trajgym.policies.vllm_options import read_sampler_options
from trajgym.trainers.options import Json, Options, read_options, recipe_file, recipes_of

__all__ = ["GRPOConfig", "load_config", "recipe_names", "recipe_path"]


_OF_WORKERS = ("ray_address", "worker_groups", "worker_cpus", "worker_gpus")
_OF_PPO = ("value_learning_rate", "value_clip", "value_epochs", "value_warmup", "value_levels")


class GRPOConfig(Options):
    """Options of ``trajgym train``. Every key has an effect; unknown keys are refused."""

    algorithm: Literal["grpo", "ppo"] = Field(
        "grpo", description="'ppo' learns a value of each turn beside the policy; 'grpo' compares trajectories."
    )

    # What is trained, and on what
    model: str = Field("tiny", description="'tiny' (embedded), a folder, or a Hugging Face hub id.")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="The model's numbers; what is trained has a float32 copy that learns."
    )
    quantization: Literal["none", "8bit", "4bit"] = Field(
        "none", description="Frozen weights in fewer bits, beneath adapters (use_lora); needs bitsandbytes."
    )
    device: str = Field("auto", description="'auto', 'cpu', 'cuda', 'cuda:1', …")
    thinking: bool = Field(False, description="Let the chat template open a reasoning block, where it has one.")
    env: str = Field("ArithmeticTool-v0", description="Environment id.")
    env_kwargs: Annotated[dict[str, Any], Json] = Field({}, description="Arguments of gym.make, as JSON.")
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
    env_threads: int = Field(
        16,
        ge=0,
        description="Environments that may step at the same time; 0: in turn, without threads, for quick ones.",
    )
    sampler: Literal["hf", "vllm", "vllm_server"] = Field(
        "hf",
        description="Engine of the rollout: 'hf' samples from the very model that learns; 'vllm', in this process, and "
        "'vllm_server' keep weights of their own, which follow it. These two need sampler_correction.",
    )
    sampler_options: Annotated[dict[str, Any], Json] = Field(
        {}, description='Options of vllm or vllm_server, as JSON: {"url": "http://127.0.0.1:8000"}; see docs/vllm.md.'
    )
    rollout_ahead: Literal[0, 1] = Field(
        0,
        description="Updates whose episodes are played while the one before is learned, with weights of one update "
        "ago; 0 plays, then learns. 1 needs sampler_correction.",
    )
    deterministic: bool = Field(
        True, description="Same seed, same bits: wait for all environments of a tick. False overlaps slow tools."
    )

    # Workers that play the episodes
    rollout_workers: int = Field(
        0, ge=0, description="Processes that play episodes, by Ray, with a policy and environments each; 0: this one."
    )
    ray_address: str | None = Field(
        None, description="Ray cluster: 'auto' or 'host:port'; when unset, Ray is started on this machine."
    )
    worker_groups: int = Field(
        1, ge=1, description="Groups that a worker plays at once, as one batch; the batch decides the last bits."
    )
    worker_cpus: int = Field(1, ge=1, description="CPUs, and threads of the policy, of each worker.")
    worker_gpus: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="GPUs of each worker, or a part of one; 0: its policy is on CPUs."
    )

    # Credit
    reward_schedule: Annotated[dict[str, list[tuple[float, float]]], Json] = Field(
        {}, description="Weights of reward terms over the run, as JSON: {term: [[progress 0 … 1, weight], …]}."
    )
    estimator: str = Field("return_to_go", description="How rewards become advantages.")
    baseline: str | None = Field(None, description="Baseline of the estimator; its own default when unset.")
    gamma: float = Field(1.0, ge=0, le=1, description="Discount per turn.")
    discount_weight: Literal["exact", "dropped"] = Field("exact", description="Keep γ^t before each turn's advantage.")
    estimator_options: Annotated[dict[str, Any], Json] = Field(
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
        0.28, ge=0, le=100, description="Upper clip, ε_hi; acts from the second step of a batch on."
    )
    cispo_cap: float = Field(5.0, allow_inf_nan=False, description="Largest ratio of cispo.")
    dual_clip: float = Field(3.0, allow_inf_nan=False, description="Largest loss factor of bad turns for dual_clip.")
    sampler_correction: bool = Field(
        False,
        description="Weigh tokens by trainer over sampler probability, where the two are not bit for bit one model.",
    )
    sampler_cap: float = Field(2.0, ge=1, allow_inf_nan=False, description="Largest such weight, C.")
    kl_coef: float = Field(0.05, ge=0, le=100, description="β, weight of the KL to the reference.")
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
    share_prefix: Literal["auto", "off"] = Field(
        "auto", description="Compute what trajectories begin with in common once per pass, where the model can."
    )
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
        3,
        ge=1,
        description="Updates in a row without a usable group after which the run stops, fewer are skipped; and rollout "
        "workers in a row that may die in one place or with the same episodes.",
    )
    group_deadline: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds for one answer of an environment, and for the last members of a group once half of it has "
        "ended; who is late is left out. Where that strikes, the clock decides, and equal seeds no longer run equally.",
    )

    rank_deadline: float = Field(
        1800.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that one of several processes waits for the others, or for a rollout worker.",
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
    log_every: int = Field(1, ge=1, description="Updates per printed line; files and monitors get every update.")

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
        if self.quantization != "none" and not self.use_lora:
            raise ValueError(
                f"quantization {self.quantization} needs use_lora: true, since a weight of so few bits cannot take the "
                "small steps of an optimiser; to train all weights leave it at none"
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
        read_sampler_options(self.sampler, self.sampler_options)
        if self.sampler != "hf" and not self.sampler_correction:
            raise ValueError(
                f"sampler {self.sampler} computes with kernels of its own, so its probabilities are not the "
                "trainer's bit for bit, and tokens must be weighed by the difference: set sampler_correction: true"
            )
        if self.sampler != "hf" and self.quantization != "none":
            raise ValueError(
                f"sampler {self.sampler} cannot follow a model in {self.quantization}: its adapters cannot be added to "
                "such weights; leave quantization at none, or sample with hf"
            )
        if self.rollout_ahead and not self.sampler_correction:
            raise ValueError(
                "rollout_ahead: 1 plays with weights that are one update older than those that learn, so it needs "
                "sampler_correction: true"
            )
        if bool(self.truncation_penalty) != (self.truncated == "penalty"):
            raise ValueError(
                f"truncated: penalty and a truncation_penalty above 0 act together alone, got {self.truncated} and "
                f"{self.truncation_penalty}"
            )
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
        if self.rollout_workers and self.sampler != "hf":
            raise ValueError(
                f"rollout_workers play with the engine hf, whose results are the same whoever plays what; sampler "
                f"{self.sampler} brings processes of its own"
            )
        for names, acts, where in (
            (_OF_WORKERS, self.rollout_workers, "rollout_workers above 0"),
            (("clip_range", "clip_range_high"), self.objective != "cispo", "objective: clip or dual_clip"),
            (("cispo_cap",), self.objective == "cispo", "objective: cispo"),
            (("dual_clip",), self.objective == "dual_clip", "objective: dual_clip"),
            (("sampler_cap",), self.sampler_correction, "sampler_correction: true"),
            (_OF_PPO, self.algorithm == "ppo", "algorithm: ppo"),
        ):
            for name in names:
                if not acts and getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"{name} ({getattr(self, name)}) acts with {where} alone; leave it at "
                        f"{type(self).model_fields[name].default}"
                    )
        if self.resume and self.overwrite:
            raise ValueError("resume and overwrite exclude each other")
        return self

    @property
    def env_arguments(self) -> dict[str, Any]:
        """The environment's arguments: ``env_kwargs``, and the protocol if one is named."""
        return ({} if self.protocol == "auto" else {"protocol": self.protocol}) | self.env_kwargs

    @classmethod
    def chosen(cls, values: dict[str, Any], args: Sequence[str]) -> dict[str, Any]:
        """Drop the recipe's estimator, which is one for grpo, where the command line asks for ppo alone."""
        if values["algorithm"] == "ppo" and not any(arg.split("=")[0] == "--estimator" for arg in args):
            del values["estimator"]
        return values


def recipe_names() -> list[str]:
    """Return the recipes that ship with the package."""
    return recipes_of(GRPOConfig)


def recipe_path(name: str) -> Path:
    """Return the file of a recipe, or of a YAML file given by its path.

    Raises:
        ConfigError: When there is no such recipe or file.
    """
    return recipe_file(GRPOConfig, name)


def load_config(source: str | Path | Mapping[str, Any], args: Sequence[str] = ()) -> GRPOConfig:
    """Read a configuration; see :func:`trajgym.trainers.options.read_options`.

    Args:
        source: A recipe's name, a YAML file, or the values themselves.
        args: Command-line overrides such as ``["--gamma", "0.95"]``.

    Raises:
        ConfigError: For a key or a value that is not allowed; names it.
        SystemExit: After ``--help``, and for an option that does not exist, with the closest ones printed.
    """
    return read_options(GRPOConfig, source, args, command="train")
