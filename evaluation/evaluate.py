"""Playing a fixed set of tasks with a policy, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from trajgym.envs.base import ToolEnv
from trajgym.envs.make import make
from trajgym.errors import ConfigError
from trajgym.evaluation.measures import wilson
from trajgym.evaluation.store import Played, Store
from trajgym.evaluation.timing import Timed
from trajgym.policies.base import Policy
from trajgym.protocols import Protocol
from trajgym.rollout import EnvPool, Episode, collect, derive_seed
from trajgym.types import Task, Trajectory

__all__ = ["Evaluation", "Share", "env_maker", "evaluate", "fit_arguments", "succeeded"]

_ROUNDS_KEPT = 4  # what a kill may cost: so many times the policy's capacity in episodes


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

    @property
    def tasks(self) -> int:
        """How many tasks these are."""
        return self.trials


@dataclass(frozen=True)
class Evaluation:
    """The trajectories of an evaluation, in the tasks' order, the attempts at one task side by side.

    Args:
        trajectories: One for each attempt at each task.
        attempts: How many there are at each task.
        seconds: What the policy took for each, see :class:`trajgym.evaluation.timing.Timed`; never the same twice.
        tokens: Those that an endpoint has read and written for each, where it was one and said so.
    """

    trajectories: tuple[Trajectory, ...]
    attempts: int = 1
    seconds: tuple[float, ...] = field(default=(), compare=False)
    tokens: tuple[tuple[int, int] | None, ...] = field(default=(), compare=False)

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
    attempts: int = 1,
    store: Store | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Play each task, once or several times.

    Args:
        policy: Who acts.
        make_env: Makes an environment whose rubric has the term ``accuracy``.
        tasks: What to play.
        seed: Seeds the policy's draws and the environment's.
        threads: Environments that may step at the same time.
        attempts: How often each task is played, with other draws each time.
        store: Remembers episodes while they are played, and those played before are not played again.
        on_progress: Called now and then with the number of finished episodes.

    Raises:
        ConfigError: When the rubric does not pay for ``accuracy``; every share would be 0. When the environment reads
            calls in another protocol than the policy's own; :func:`env_maker` makes one that fits. When there is to be
            less than one attempt.
        TemplateError: When the policy cannot write the environment's calls.
        DataError, StorageError: When the store cannot be read or written.
    """
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise ConfigError(f"attempts must be a whole number of at least 1, got {attempts!r}.")
    # The first attempt has the seeds it has without others, so that more of them can be added later.
    parts = [(i, *((j,) if j else ())) for i in range(len(tasks)) for j in range(attempts)]
    episodes = [Episode(derive_seed(seed, "env", *p), derive_seed(seed, "eval", *p), tasks[p[0]]) for p in parts]
    with EnvPool(make_env, threads=threads) as pool:
        env = pool.take()
        pool.give(env)
        _check_rubric(env.unwrapped)
        _agreed(policy, env.unwrapped, named=True)
        played = _play(policy, pool, episodes, store, on_progress or (lambda done: None))
    return Evaluation(
        tuple(p.trajectory for p in played),
        attempts,
        tuple(p.seconds for p in played),
        tuple(p.tokens for p in played),
    )


def _play(
    policy: Policy, pool: EnvPool, episodes: Sequence[Episode], store: Store | None, on_progress: Callable[[int], None]
) -> list[Played]:
    """Play what the store does not hold, and hand it what was played, a few rounds at a time."""
    known = [None if store is None else store.get(episode) for episode in episodes]
    at_once = max(1, len(episodes)) if store is None else _ROUNDS_KEPT * policy.capacity
    played: list[Played] = []
    # The borders do not depend on what is known: a resumed evaluation forms the batches of an uninterrupted one.
    for start in range(0, len(episodes), at_once):
        part = range(start, min(start + at_once, len(episodes)))
        missing = [episodes[i] for i in part if known[i] is None]
        timed, before = Timed(policy), len(played) + len(part) - len(missing)

        def on_tick(done: int, before: int = before) -> None:
            on_progress(before + done)

        found = collect(timed, pool, missing, deterministic=True, on_tick=on_tick) if missing else []
        new = [Played(t, timed.seconds.get(i, 0.0), timed.tokens(i)) for i, t in enumerate(found)]
        if store is not None and new:
            store.add(missing, new)
        fresh = iter(new)
        played += [next(fresh) if known[i] is None else known[i] for i in part]  # type: ignore[misc]
    return played


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
