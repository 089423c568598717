"""The bridge to TRL: our environments, rewards and step advantages under its GRPOTrainer.

:func:`environment_factory` and :class:`EpisodeReward` serve TRL's own trainer; :class:`StepGRPOTrainer` is a subclass
of it that gives each step an advantage of its own; :func:`ready_tokenizer` helps with chat templates that TRL does not
know.
"""

from __future__ import annotations

from trajgym.trainers.trl_version import require_trl

require_trl()

from trajgym.trainers.trl_environment import EnvironmentFactory, environment_factory  # noqa: E402
from trajgym.trainers.trl_reward import EpisodeReward  # noqa: E402
from trajgym.trainers.trl_template import ready_tokenizer  # noqa: E402
from trajgym.trainers.trl_trainer import StepGRPOTrainer  # noqa: E402

__all__ = ["EnvironmentFactory", "EpisodeReward", "StepGRPOTrainer", "environment_factory", "ready_tokenizer"]
