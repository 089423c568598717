"""Playing a fixed set of tasks with a policy, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from trajgym.envs.base import ToolEnv
from trajgym.envs.make import make
from trajgym.errors import ConfigError
from trajgym.evaluation.measures import wilson
from trajgym.policies.base import Policy
from trajgym.protocols import Protocol
from trajgym.rollout import EnvPool, Episode, collect, derive_seed
from trajgym.types import Task, Trajectory

__all__ = ["Evaluation", "Share", "env_maker", "evaluate", "fit_arguments", "succeeded"]


@dataclass(frozen=True)
class Share:
    """So many of so many."""

    successes: int
    trials: int

    @property
    def value(self) -> float:
        """The share, 0 for no trials."""
        return self.successes / self.trials if self.trials else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval."""
        return wilson(self.successes, self.trials)


@dataclass(frozen=True)
class Evaluation:
    """The trajectories of an evaluation, one per task, in the tasks' order."""

    trajectories: tuple[Trajectory, ...]

    @property
    def success(self) -> Share:
        """Right final answers among all tasks; a fault of ours counts as a failure here, never as a missing row."""
        return _share(self.trajectories)

    @property
    def by_difficulty(self) -> dict[int, Share]:
        """The same for each difficulty, -1 where it is unknown."""
        levels: dict[int, list[Trajectory]] = {}
        for trajectory in self.trajectories:
            level = trajectory.task.difficulty
            levels.setdefault(-1 if level is None else level, []).append(trajectory)
        return {level: _share(levels[level]) for level in sorted(levels)}

    @property
    def faults(self) -> int:
        """Episodes that failed by our machinery's doing; ``trajgym.rollout.fault_summary`` says why."""
        return sum(not t.valid for t in self.trajectories)

    @property
    def mean_reward(self) -> float:
        """Mean undiscounted sum of rewards."""
        return sum(t.total_reward for t in self.trajectories) / max(1, len(self.trajectories))

    @property
    def mean_turns(self) -> float:
        """Mean number of turns."""
        return sum(len(t.steps) for t in self.trajectories) / max(1, len(self.trajectories))


def succeeded(trajectory: Trajectory) -> bool:
    """Whether the final answer was right, by the rubric's term ``accuracy``."""
    return any(step.reward_terms.get("accuracy", 0.0) > 0 for step in trajectory.steps)


def evaluate(
    policy: Policy,
    make_env: Callable[[], gymnasium.Env[str, str]],
    tasks: Sequence[Task],
    *,
    seed: int = 0,
    threads: int = 16,
) -> Evaluation:
    """Play each task once.

    Args:
        policy: Who acts.
        make_env: Makes an environment whose rubric has the term ``accuracy``.
        tasks: What to play.
        seed: Seeds the policy's draws and the environment's.
        threads: Environments that may step at the same time.

    Raises:
        ConfigError: When the rubric does not pay for ``accuracy``; every share would be 0. When the environment reads
            calls in another protocol than the policy's own; :func:`env_maker` makes one that fits.
        TemplateError: When the policy cannot write the environment's calls.
    """
    episodes = [Episode(derive_seed(seed, "env", i), derive_seed(seed, "eval", i), t) for i, t in enumerate(tasks)]
    with EnvPool(make_env, threads=threads) as pool:
        env = pool.take()
        pool.give(env)
        _check_rubric(env.unwrapped)
        _agreed(policy, env.unwrapped, named=True)
        return Evaluation(tuple(collect(policy, pool, episodes, deterministic=True)))


def env_maker(policy: Policy, env_id: str, **kwargs: Any) -> Callable[[], gymnasium.Env[str, str]]:
    """Return what makes an environment that reads calls as ``policy`` writes them.

    Args:
        policy: Who is to act.
        env_id: See :func:`trajgym.envs.make.make`.
        **kwargs: The environment's arguments; see :func:`fit_arguments`.

    Raises:
        ConfigError: For a wrong argument, and for a protocol that is not the policy's.
        TemplateError: When the policy cannot write the environment's calls.
    """
    probe = make(env_id, **kwargs)
    arguments = fit_arguments(policy, probe, kwargs)
    probe.close()
    return lambda: make(env_id, **arguments)


def fit_arguments(policy: Policy, env: gymnasium.Env[str, str], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which an environment reads calls as ``policy`` writes them.

    Args:
        policy: Who is to act.
        env: Made with ``arguments``.
        arguments: A ``protocol`` among them was chosen by somebody; without one, the policy may prefer another than the
            environment's default.

    Raises:
        ConfigError: When a protocol was chosen that is not the policy's own.
        TemplateError: When the policy cannot write the environment's calls.
    """
    agreed = _agreed(policy, env.unwrapped, named="protocol" in arguments)
    return {**arguments, **({} if agreed is None else {"protocol": agreed.name})}


def _agreed(policy: Policy, env: Any, *, named: bool) -> Protocol | None:
    """Return the protocol that ``env`` ought to have, ``None`` if it is right as it is."""
    if not isinstance(env, ToolEnv) or not env.tools:
        return None
    agreed = policy.agree_on_protocol(env.protocol, env.tools, named=named)
    return None if agreed is env.protocol else agreed


def _check_rubric(env: Any) -> None:
    weights = getattr(getattr(env, "rubric", None), "weights", {})
    if not weights.get("accuracy", 0.0) > 0:
        raise ConfigError(
            f"An evaluation counts right answers by the reward term 'accuracy', but {type(env).__name__} pays for "
            f"{sorted(weights) or 'no named terms'}. Evaluate with reward='sparse' or 'hybrid'."
        )


def _share(trajectories: Sequence[Trajectory]) -> Share:
    return Share(sum(map(succeeded, trajectories)), len(trajectories))
