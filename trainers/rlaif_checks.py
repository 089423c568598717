"""What can be wrong with the options of RLAIF, tried before the first answer is sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trajgym.envs.make import make
from trajgym.errors import ConfigError
from trajgym.policies import tiny_path
from trajgym.policies.render import Renderer
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.credit import Credit
from trajgym.trainers.data_prompts import load_tokenizer
from trajgym.trainers.models import pick_device
from trajgym.trainers.reward_model import check_length
from trajgym.trainers.reward_plan import reward_plan
from trajgym.trainers.rlaif_config import RLAIFConfig
from trajgym.trainers.schedule import TaskSchedule
from trajgym.trainers.trl_version import require_trl
from trajgym.trainers.writers import check_writers
from trajgym.types import Step, Task

__all__ = ["check_start"]


def check_start(config: RLAIFConfig, options: GRPOConfig, *, asks: bool) -> None:
    """Try what the later steps will need, without computing anything.

    Args:
        config: All options.
        options: Those of the policy.
        asks: Whether the model that ``config.judge`` names will be asked.

    Raises:
        ConfigError: For a model, an environment's argument, a reward term or another option that cannot be used.
        DataError: When an environment has no tasks.
        TemplateError: When the judge's template cannot be followed.
    """
    require_trl()
    reward = config.reward_options()
    for monitors, device in ((options.monitors, options.device), (reward.monitors, reward.device)):
        check_writers(monitors)
        pick_device(device)
    Credit(options)
    _try_tasks("policy", options, options.env_kwargs)
    _try_tasks("eval_kwargs", options, {**options.env_kwargs, **config.eval_kwargs})
    _try_rewards(config, options)
    check_length(reward, _configuration("reward_model", reward.model))
    if asks:
        _configuration("judge", config.judge)
        Renderer(load_tokenizer(config.judge))


def _try_tasks(option: str, options: GRPOConfig, arguments: Mapping[str, Any]) -> None:
    """Begin an episode of an environment with these arguments."""
    env = make(options.env, **options.model_copy(update={"env_kwargs": dict(arguments)}).env_arguments)
    try:
        env.reset(seed=0)
    finally:
        env.close()


def _try_rewards(config: RLAIFConfig, options: GRPOConfig) -> None:
    """Make the environment that the policy is trained in, with nothing in place of the learned reward."""
    env = make(options.env, **{**options.env_arguments, "reward": {"learned": (_nothing, 1.0), **config.terms}})
    try:
        TaskSchedule(env, options)
        reward_plan(env, options)
    finally:
        env.close()


def _nothing(step: Step, task: Task, history: Sequence[Step]) -> float:
    return 0.0


def _configuration(option: str, model: str) -> Any:
    """Return a model's configuration, and see to it that there is a tokenizer."""
    from transformers import AutoConfig

    source = str(tiny_path() if model == "tiny" else Path(model).expanduser())
    try:
        load_tokenizer(model)
        return AutoConfig.from_pretrained(source)
    except Exception as error:
        raise ConfigError(f"{option}: {error}") from error
