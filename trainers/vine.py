"""Values of states by playing on from them: the Monte Carlo half of the estimator ``vine``.

``V_MC(s)`` is the mean discounted return of K episodes that start from a clone of s and are played by the same policy
with draws of their own. Nothing is learned, so nothing is biased: whatever K is, ``r_t + γ·V_MC(s_{t+1})`` has the
expectation of the return from turn t on, and ``V_MC(s_t)`` does not depend on what was done in s_t.

What an environment draws at random is part of its state: a clone goes on with the numbers that the original would have
drawn. That changes no expectation, since the policy sees none of them beforehand.

>>> from trajgym.envs.base import ToolEnv
>>> from trajgym.policies.scripted import ExpertPolicy
>>> from trajgym.types import ExpertTurn, ToolCall
>>> sum_up = ExpertTurn(calls=(ToolCall("calculator", {"expression": "48+24"}),))
>>> task = Task("sum", "48 + 24?", "72", solution=(sum_up, ExpertTurn("#### 72")), difficulty=1)
>>> with EnvPool(lambda: ToolEnv([task], tools=["calculator"])) as pool:
...     states: dict[int, list[State]] = {}
...     played = collect(ExpertPolicy(), pool, [Episode(0, 0), Episode(0, 1)], states=states)
...     found = state_values(ExpertPolicy(), pool, played, states, rollouts=3, gamma=0.5, seed=7)
>>> found.values
[[0.6, 1.0, 0.0], [0.6, 1.0, 0.0]]
>>> found.rollouts, found.env_steps
(9, 12)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trajgym.errors import ConfigError
from trajgym.policies.base import Policy
from trajgym.rollout import EnvPool, Episode, collect, derive_seed, fault_summary
from trajgym.rollout_states import State
from trajgym.types import Task, Trajectory, discounted_return

__all__ = ["StateValues", "state_values"]

_Key = tuple[int | str, ...]  # names a state


@dataclass(frozen=True)
class StateValues:
    """What playing on from the states of some trajectories has shown.

    Args:
        values: V(s_0) … V(s_T) of each trajectory, in their order: T + 1 numbers, the last one 0 since nothing is paid
            after the end. ``None`` for a trajectory that must leave baseline and loss.
        lost: Why there is ``None``, by the trajectory's place.
        rollouts: How many extra episodes were played.
        env_steps: How many turns the environments took in them. They belong to the cost of the update, like those of
            the trajectories themselves.
        faults: How many of the extra episodes our machinery failed in; they count in no mean.
    """

    values: list[list[float] | None]
    lost: Mapping[int, str] = field(default_factory=dict)
    rollouts: int = 0
    env_steps: int = 0
    faults: int = 0


def state_values(
    policy: Policy,
    pool: EnvPool,
    trajectories: Sequence[Trajectory],
    states: Mapping[int, Sequence[State]],
    *,
    rollouts: int,
    gamma: float,
    seed: int,
    deterministic: bool = False,
    on_tick: Callable[[int], None] | None = None,
    policy_may_fail: bool = False,
) -> StateValues:
    """Estimate the value of every state of ``trajectories`` by fresh rollouts.

    Trajectories of the same task (``task.id``) begin in the same state, which is therefore estimated once for all of
    them, by episodes of its own and not by the trajectories themselves.

    Args:
        policy: Who plays on; the policy that played the trajectories, unchanged.
        pool: As for :func:`trajgym.rollout.collect`.
        trajectories: What was played. Invalid ones get no values.
        states: What ``collect(…, states=states)`` recorded while they were played.
        rollouts: K, fresh episodes per state, at least 1.
        gamma: Discount per turn, in [0, 1].
        seed: Seeds all draws of the fresh episodes; must not be the one that seeded the trajectories' own.
        deterministic: As for :func:`trajgym.rollout.collect`.
        on_tick: As for :func:`trajgym.rollout.collect`, of the fresh episodes.
        policy_may_fail: As for :func:`trajgym.rollout.collect`: an error of the engine costs fresh episodes only.

    Raises:
        ConfigError: When a number is out of range or states are missing; when a state cannot be cloned.

    Source: VinePPO, Kazemnejad et al. 2024, arXiv 2410.01679.
    """
    if isinstance(rollouts, bool) or not isinstance(rollouts, int) or rollouts < 1:
        raise ConfigError(f"rollouts must be a whole number of at least 1, got {rollouts!r}.")
    if not (isinstance(gamma, (int, float)) and 0.0 <= gamma <= 1.0):
        raise ConfigError(f"gamma must lie in [0, 1], got {gamma!r}.")
    seen: Counter[int] = Counter()
    keys: dict[int, list[_Key]] = {}
    for i, trajectory in enumerate(trajectories):
        if trajectory.valid:
            keys[i] = _keys(i, seen[trajectory.seed], trajectory, states.get(i, ()))
        seen[trajectory.seed] += 1
    starts: dict[_Key, State] = {}
    for i, turns in keys.items():
        for turn, key in enumerate(turns):
            starts.setdefault(key, states[i][turn])
    plans = [
        Episode(0, derive_seed(seed, "vine", *key, k), start=state)
        for key, state in starts.items()
        for k in range(rollouts)
    ]
    fresh = collect(policy, pool, plans, deterministic=deterministic, on_tick=on_tick, policy_may_fail=policy_may_fail)
    played = {key: fresh[n * rollouts : (n + 1) * rollouts] for n, key in enumerate(starts)}
    means = {key: _mean_return(episodes, gamma) for key, episodes in played.items()}

    values: list[list[float] | None] = []
    lost: dict[int, str] = {}
    for i in range(len(trajectories)):
        found = [means[key] for key in keys.get(i, ())]
        known = [value for value in found if value is not None]
        if i not in keys:
            lost[i] = "the trajectory itself is invalid"
        elif len(known) < len(found):
            t = found.index(None)
            lost[i] = f"nothing is known of the state before turn {t}: {fault_summary(played[keys[i][t]])}"
        values.append(None if i in lost else [*known, 0.0])
    return StateValues(
        values,
        lost,
        rollouts=len(fresh),
        env_steps=sum(len(t.steps) for t in fresh),
        faults=sum(not t.valid for t in fresh),
    )


def _keys(index: int, twin: int, trajectory: Trajectory, states: Sequence[State]) -> list[_Key]:
    """Name the states of a trajectory; those with one name are one state.

    Names hold seeds and not places, so that a trajectory's states get the same draws whatever is played beside it.
    """
    turns = len(trajectory.steps)
    if len(states) != turns:
        raise ConfigError(
            f"Trajectory {index} has {turns} turns, and {len(states)} states were recorded for it. Pass the dict that "
            "collect(..., states=...) filled while the trajectories were played, and all of these in their order."
        )
    task: Task = trajectory.task
    return [("first", task.id), *((trajectory.seed, twin, t) for t in range(1, turns))]


def _mean_return(episodes: Sequence[Trajectory], gamma: float) -> float | None:
    returns = [discounted_return(t.rewards, gamma) for t in episodes if t.valid]
    return math.fsum(returns) / len(returns) if returns else None
