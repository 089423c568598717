"""Groups played as one batch, in this process or in a worker's: what comes of them is one share of an update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from trajgym.policies.base import Policy
from trajgym.rollout import EnvPool, Episode, collect, derive_seed
from trajgym.rollout_states import State
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.vine import state_values
from trajgym.types import Trajectory

__all__ = ["Share", "play_groups"]


@dataclass(frozen=True)
class Share:
    """What somebody has played of an update.

    Args:
        groups: By group, in the order in which they were dealt.
        values: For vine, V(s_0) … V(s_T) of the trajectory with that seed.
        extra_steps: Turns played to know them.
        extra_faults: Episodes played to know them that were lost.
        lost_workers: Rollout workers that died meanwhile and were replaced.
    """

    groups: list[list[Trajectory]]
    values: dict[int, list[float]] = dataclasses.field(default_factory=dict)
    extra_steps: int = 0
    extra_faults: int = 0
    lost_workers: int = 0


def play_groups(
    policy: Policy,
    pool: EnvPool,
    groups: Sequence[Sequence[Episode]],
    config: GRPOConfig,
    *,
    update: int,
    round: int,
    values: bool,
    on_tick: Callable[[int], None] | None = None,
    watch: Callable[[str], AbstractContextManager[None]],
) -> Share:
    """Play groups side by side.

    Args:
        policy: Who acts.
        pool: Where.
        groups: The episodes of each group, as many as ``num_generations`` says.
        config: All options.
        update: Counted from 0.
        round: Of the update, counted from 0.
        values: Whether to value every state by fresh rollouts.
        on_tick: Called again and again; may raise to stop.
        watch: Measures where the time goes; see :func:`trajgym.rollout.collect`.
    """
    states: dict[int, list[State]] | None = {} if values else None
    trajectories = collect(
        policy,
        pool,
        [episode for group in groups for episode in group],
        deterministic=config.deterministic,
        on_tick=on_tick,
        states=states,
        watch=watch,
        group_size=config.num_generations,
        policy_may_fail=True,  # a fault of the engine costs its episodes; if it lasts, fault_limit ends the run
    )
    known: dict[int, list[float]] = {}
    extra_steps = extra_faults = 0
    if states is not None:
        found = state_values(
            policy,
            pool,
            trajectories,
            states,
            rollouts=config.vine_rollouts,
            gamma=config.gamma,
            seed=derive_seed(config.seed, "vine", update, round),
            deterministic=config.deterministic,
            on_tick=on_tick,
            policy_may_fail=True,
        )
        extra_steps, extra_faults = found.env_steps, found.faults
        known = {t.seed: v for t, v in zip(trajectories, found.values, strict=True) if v is not None}
        trajectories = [  # one with a state of which nothing is known cannot be credited
            dataclasses.replace(t, fault=f"StateUnknown: {found.lost[i]}") if t.valid and i in found.lost else t
            for i, t in enumerate(trajectories)
        ]
    size = config.num_generations
    return Share(
        [trajectories[i : i + size] for i in range(0, len(trajectories), size)], known, extra_steps, extra_faults
    )
