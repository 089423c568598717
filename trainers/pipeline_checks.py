"""What can be known of a training before the stages in front of it have taken their hours."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import gymnasium
import torch

from trajgym.envs.make import make
from trajgym.errors import ConfigError
from trajgym.evaluation.evaluate import fit_arguments
from trajgym.policies import tiny_path
from trajgym.policies.render import Renderer
from trajgym.policies.vllm_engine import installed
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.credit import Credit
from trajgym.trainers.data_prompts import load_tokenizer
from trajgym.trainers.models import add_lora, make_policy, pick_device, reachable
from trajgym.trainers.quantization import loading_arguments
from trajgym.trainers.ray_crew import require_ray
from trajgym.trainers.reward_plan import reward_plan
from trajgym.trainers.schedule import TaskSchedule
from trajgym.trainers.trained import find_source
from trajgym.trainers.writers import check_writers

__all__ = ["check_grpo"]


def check_grpo(config: GRPOConfig) -> None:
    """Do nothing when GRPO could begin with a model like ``config.model``; computes nothing and reads no weights.

    Args:
        config: Its options; the model is the one that the chain begins with, of the same build as what SFT makes of it.

    Raises:
        ConfigError, TemplateError: As :class:`trajgym.trainers.grpo.GRPOTrainer` would.
    """
    check_writers(config.monitors)
    Credit(config)
    with contextlib.closing(make(config.env, **config.env_arguments)) as env:
        TaskSchedule(env, config)
        reward_plan(env, config)
        _check_machine(config)
        _check_model(config, env)


def _check_machine(config: GRPOConfig) -> None:
    device = pick_device(config.device)
    loading_arguments(config.quantization, getattr(torch, config.dtype), device)
    if config.rollout_workers:
        require_ray()
    if config.sampler == "vllm" and not installed():
        raise ConfigError("sampler vllm needs vLLM, which is not installed here. Install it, or use sampler: hf.")


def _check_model(config: GRPOConfig, env: gymnasium.Env[str, str]) -> None:
    tokenizer = load_tokenizer(config.model)
    Renderer(tokenizer, thinking=config.thinking)
    model = _weightless(config.model)
    if model is None:
        return
    if config.use_lora:
        model = add_lora(
            model, rank=config.lora_rank, alpha=config.lora_alpha, targets=config.lora_targets, seed=config.seed
        )
    try:
        policy = make_policy(model, tokenizer, config)
    except ConfigError as error:
        raise ConfigError(
            f"grpo cannot play with {config.model}, where max_length is max_episode_tokens: {error}"
        ) from error
    fit_arguments(policy, env, config.env_arguments)


def _weightless(name: str) -> Any:
    """Return the model without its weights; ``None`` where it cannot be had so, and loading it will tell."""
    from transformers import AutoConfig, AutoModelForCausalLM

    base = find_source(name).base
    try:
        shape = AutoConfig.from_pretrained(reachable(str(tiny_path() if base == "tiny" else Path(base).expanduser())))
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(shape, attn_implementation="sdpa").eval()
    except Exception:  # whatever a library cannot do without weights
        return None
