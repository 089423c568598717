"""Playing an update's episodes: each group on one rank, everything exchanged, and values of states for vine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trajgym.policies.llm import LLMPolicy
from trajgym.rollout import EnvPool, collect, derive_seed
from trajgym.rollout_states import State
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.groups import usable_groups
from trajgym.trainers.interrupt import Interrupt
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.schedule import TaskSchedule
from trajgym.trainers.stopwatch import Stopwatch
from trajgym.trainers.vine import state_values
from trajgym.types import Group, Trajectory

__all__ = ["Played", "Player"]


@dataclass(frozen=True)
class Played:
    """An update's episodes; the same on every rank.

    Args:
        trajectories: All of them, also those of rounds that taught nothing.
        groups: What to learn from.
        values: For vine, V(s_0) … V(s_T) of the trajectory with that seed.
        extra_steps: Turns played to know them.
        extra_faults: Episodes played to know them that were lost; a state is worth the mean of the others.
    """

    trajectories: list[Trajectory]
    groups: list[Group]
    values: dict[int, list[float]]
    extra_steps: int
    extra_faults: int


@dataclass(frozen=True)
class _Share:
    """What one rank has played, by group."""

    groups: list[list[Trajectory]]
    values: dict[int, list[float]]
    extra_steps: int
    extra_faults: int


class Player:
    """Plays what the schedule deals.

    Args:
        policy: Who acts.
        pool: Where.
        schedule: Deals tasks to updates.
        config: All options.
        values: Whether to value every state by fresh rollouts.
        ranks: Who shares the work.
        watch: Measures where the time goes.
    """

    def __init__(
        self,
        policy: LLMPolicy,
        pool: EnvPool,
        schedule: TaskSchedule,
        config: GRPOConfig,
        *,
        values: bool,
        ranks: Ranks,
        watch: Stopwatch,
    ) -> None:
        self._policy, self._pool, self._schedule, self._config = policy, pool, schedule, config
        self._values, self._ranks, self._watch = values, ranks, watch

    def play(self, update: int, interrupt: Interrupt, has_signal: Callable[[Group], bool]) -> Played:
        """Play an update's episodes.

        With ``dynamic_sampling`` on, go on with further tasks until enough groups have a signal.

        Args:
            update: Counted from 0.
            interrupt: Asked between turns.
            has_signal: Whether a group's rewards credit any turn with anything.

        Source: dynamic sampling, DAPO, arXiv 2503.14476.
        """
        config = self._config
        alone = config.algorithm == "ppo" or config.estimator == "vine" or config.baseline == "none"
        alone = alone and config.advantage_scale != "group_std"  # one member has no spread
        played: list[Trajectory] = []
        usable: list[Group] = []
        telling: list[Group] = []
        values: dict[int, list[float]] = {}
        extra_steps = extra_faults = 0
        for round in range(config.dynamic_sampling + 1):
            shares = self._ranks.together(partial(self._round, update, round, interrupt))
            self._policy.sampler.reset()  # the cache's memory is free for the update
            trajectories = [t for group in self._ranks.merged([share.groups for share in shares]) for t in group]
            played += trajectories
            for share in shares:
                values |= share.values
                extra_steps += share.extra_steps
                extra_faults += share.extra_faults
            fresh = usable_groups(
                trajectories,
                config.num_generations,
                drop_truncated=config.truncated == "drop",
                least=1 if alone else 2,
            )
            usable += fresh
            if config.dynamic_sampling:
                telling += filter(has_signal, fresh)
                if len(telling) >= config.groups_per_update:
                    break
        groups = (telling or usable)[: config.groups_per_update]
        return Played(played, groups, values, extra_steps, extra_faults)

    def _round(self, update: int, round: int, interrupt: Interrupt) -> _Share:
        """Play this rank's groups."""
        config, size = self._config, self._config.num_generations
        states: dict[int, list[State]] | None = {} if self._values else None
        episodes = self._schedule.episodes(update, round)
        mine = self._ranks.mine([episodes[i : i + size] for i in range(0, len(episodes), size)])
        trajectories = collect(
            self._policy,
            self._pool,
            [episode for group in mine for episode in group],
            deterministic=config.deterministic,
            on_tick=interrupt.check,
            states=states,
            watch=self._watch,
            group_size=size,
            policy_may_fail=True,  # a fault of the engine costs its episodes; if it lasts, fault_limit ends the run
        )
        values: dict[int, list[float]] = {}
        extra_steps = extra_faults = 0
        if states is not None:
            found = state_values(
                self._policy,
                self._pool,
                trajectories,
                states,
                rollouts=config.vine_rollouts,
                gamma=config.gamma,
                seed=derive_seed(config.seed, "vine", update, round),
                deterministic=config.deterministic,
                on_tick=interrupt.check,
                policy_may_fail=True,
            )
            extra_steps, extra_faults = found.env_steps, found.faults
            values = {t.seed: v for t, v in zip(trajectories, found.values, strict=True) if v is not None}
            trajectories = [  # one with a state of which nothing is known cannot be credited
                dataclasses.replace(t, fault=f"StateUnknown: {found.lost[i]}") if t.valid and i in found.lost else t
                for i, t in enumerate(trajectories)
            ]
        groups = [trajectories[i : i + size] for i in range(0, len(trajectories), size)]
        return _Share(groups, values, extra_steps, extra_faults)
