"""Playing an update's episodes: each group on one rank, everything exchanged, and values of states for vine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

from trajgym.policies.llm import LLMPolicy
from trajgym.rollout import EnvPool
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.groups import usable_groups
from trajgym.trainers.interrupt import Interrupt
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.rollout_share import Share, play_groups
from trajgym.trainers.schedule import TaskSchedule
from trajgym.trainers.stopwatch import Stopwatch
from trajgym.types import Group, Trajectory

__all__ = ["Beside", "Played", "Player"]


@dataclass(frozen=True)
class Beside:
    """What playing took that ran beside the learning of the update before; see :mod:`trajgym.trainers.ahead`.

    Args:
        seconds: From its beginning to its end.
        parts: Those by part.
        computed_tokens: Tokens that went through the sampler's model.
        waited: Seconds of the update in which nothing was done but wait for it.
        staleness: Updates between the weights that played and those that learn from it.
    """

    seconds: float
    parts: Mapping[str, float]
    computed_tokens: int
    waited: float = 0.0
    staleness: int = 0


@dataclass(frozen=True)
class Played:
    """An update's episodes; the same on every rank.

    Args:
        trajectories: All of them, also those of rounds that taught nothing.
        groups: What to learn from.
        values: For vine, V(s_0) … V(s_T) of the trajectory with that seed.
        extra_steps: Turns played to know them.
        extra_faults: Episodes played to know them that were lost; a state is worth the mean of the others.
        beside: Where they were played while the update before was learned, what that took.
        lost_workers: Rollout workers that died meanwhile and were replaced.
    """

    trajectories: list[Trajectory]
    groups: list[Group]
    values: dict[int, list[float]]
    extra_steps: int
    extra_faults: int
    beside: Beside | None = None
    lost_workers: int = 0


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

    @property
    def computed_tokens(self) -> int:
        """Tokens that went through the policy so far to play, padding included; on this rank."""
        return self._policy.sampler.computed_tokens

    def close(self) -> None:
        """End what was started to play."""
        self._policy.sampler.close_engine()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def play(self, update: int, interrupt: Interrupt, has_signal: Callable[[Group], bool], *, least: int = 2) -> Played:
        """Play an update's episodes.

        With ``dynamic_sampling`` on, go on with further tasks until enough groups have a signal.

        Args:
            update: Counted from 0.
            interrupt: Asked between turns.
            has_signal: Whether a group's rewards credit any turn with anything.
            least: Members that a group must have left.

        Source: dynamic sampling, DAPO, arXiv 2503.14476.
        """
        config = self._config
        played: list[Trajectory] = []
        usable: list[Group] = []
        telling: list[Group] = []
        values: dict[int, list[float]] = {}
        extra_steps = extra_faults = lost_workers = 0
        for round in range(config.dynamic_sampling + 1):
            shares = self._ranks.together(partial(self._round, update, round, interrupt))
            self._policy.sampler.reset()  # the cache's memory is free for the update
            trajectories = [t for group in self._ranks.merged([share.groups for share in shares]) for t in group]
            played += trajectories
            for share in shares:
                values |= share.values
                extra_steps += share.extra_steps
                extra_faults += share.extra_faults
                lost_workers += share.lost_workers
            fresh = usable_groups(
                trajectories,
                config.num_generations,
                drop_truncated=config.truncated == "drop",
                least=least,
            )
            usable += fresh
            if config.dynamic_sampling:
                telling += filter(has_signal, fresh)
                if len(telling) >= config.groups_per_update:
                    break
        groups = (telling or usable)[: config.groups_per_update]
        return Played(played, groups, values, extra_steps, extra_faults, lost_workers=lost_workers)

    def _round(self, update: int, round: int, interrupt: Interrupt) -> Share:
        """Play this rank's groups."""
        size = self._config.num_generations
        episodes = self._schedule.episodes(update, round)
        return play_groups(
            self._policy,
            self._pool,
            self._ranks.mine([episodes[i : i + size] for i in range(0, len(episodes), size)]),
            self._config,
            update=update,
            round=round,
            values=self._values,
            on_tick=interrupt.check,
            watch=self._watch,
        )
