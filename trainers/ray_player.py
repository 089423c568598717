"""Playing an update's episodes on rollout workers, in place of this process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium

from trajgym.errors import ConfigError
from trajgym.policies.llm import LLMPolicy
from trajgym.rollout import EnvPool
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.interrupt import Interrupt
from trajgym.trainers.player import Player
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.ray_crew import RayCrew, require_ray
from trajgym.trainers.rollout_share import Share
from trajgym.trainers.schedule import TaskSchedule
from trajgym.trainers.stopwatch import Stopwatch
from trajgym.trainers.worker import Piece, PlayedPiece, facts, pack_plan
from trajgym.trainers.worker_weights import pack_weights, trained_names
from trajgym.trainers.workers import Workers, cut

__all__ = ["WorkersPlayer", "make_player"]


def make_player(
    policy: LLMPolicy,
    pool: EnvPool,
    schedule: TaskSchedule,
    config: GRPOConfig,
    *,
    values: bool,
    ranks: Ranks,
    watch: Stopwatch,
    model: Any,
    sampled: Any,
    env: gymnasium.Env[str, str],
    arguments: Mapping[str, Any],
    divided: bool,
) -> Player:
    """Return who plays the episodes of a run: this process, or ``rollout_workers``.

    Args:
        policy: As for :class:`trajgym.trainers.player.Player`, and so the next six.
        pool: Where.
        schedule: Deals tasks to updates.
        config: All options.
        values: Whether to value every state by fresh rollouts.
        ranks: Who shares the work.
        watch: Measures where the time goes.
        model: What is trained.
        sampled: Whose weights the workers get: the model itself, or a copy that plays ahead.
        env: One environment of the run.
        arguments: It was made with.
        divided: Whether the model's parameters are divided among ranks.

    Raises:
        ConfigError: When Ray is not installed, or the options cannot be had in other processes.
    """
    if not config.rollout_workers:
        return Player(policy, pool, schedule, config, values=values, ranks=ranks, watch=watch)
    if divided:
        raise ConfigError(
            "rollout_workers takes whole weights from one process, and under FSDP none has them for longer than a "
            "rollout. Launch without FSDP, or set rollout_workers to 0, which plays on every rank."
        )
    require_ray()
    plan = pack_plan(config, arguments, facts(env), values=values)
    return WorkersPlayer(
        policy,
        pool,
        schedule,
        config,
        values=values,
        ranks=ranks,
        watch=watch,
        sampled=sampled,
        names=trained_names(model),
        plan=plan,
    )


class WorkersPlayer(Player):
    """Lets workers play what the schedule deals, in pieces of ``worker_groups`` groups.

    Of several ranks the main one has the workers; the others get from it what was played.

    Args:
        policy: As for :class:`trajgym.trainers.player.Player`, and so the next six.
        pool: Of this process, which plays nothing.
        schedule: Deals tasks to updates.
        config: All options.
        values: Whether to value every state by fresh rollouts.
        ranks: Who shares the work.
        watch: Measures where the time goes.
        sampled: Whose weights the workers get.
        names: Which of them.
        plan: From :func:`trajgym.trainers.worker.pack_plan`.
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
        sampled: Any,
        names: frozenset[str],
        plan: bytes,
    ) -> None:
        super().__init__(policy, pool, schedule, config, values=values, ranks=ranks, watch=watch)
        self._sampled, self._names, self._plan = sampled, names, plan
        self._workers: Workers | None = None
        self._computed = 0

    @property
    def computed_tokens(self) -> int:
        """Tokens that went through the models of workers so far, padding included."""
        return self._computed

    def close(self) -> None:
        """End the workers."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()

    def _round(self, update: int, round: int, interrupt: Interrupt) -> Share:
        """Let the workers play all groups of the round; nothing on other ranks than the main one."""
        if not self._ranks.main:
            return Share([])
        config, size = self._config, self._config.num_generations
        episodes = self._schedule.episodes(update, round)
        groups = [episodes[i : i + size] for i in range(0, len(episodes), size)]
        progress = update / self._schedule.total
        pieces = [Piece(update, round, part, progress) for part in cut(groups, config.worker_groups)]
        with self._watch("sync"):
            workers = self._workers or self._open(interrupt)
            if round == 0:
                workers.begin(pack_weights(self._sampled, self._names), progress)
            before = workers.replaced
            played = workers.play(pieces, interrupt.check)
        self._watch.divide("sync", _mean_seconds(played, workers.count))
        self._computed += sum(piece.computed_tokens for piece in played)
        shares = [piece.share for piece in played]
        return Share(
            [group for share in shares for group in share.groups],
            {seed: v for share in shares for seed, v in share.values.items()},
            sum(share.extra_steps for share in shares),
            sum(share.extra_faults for share in shares),
            workers.replaced - before,
        )

    def _open(self, interrupt: Interrupt) -> Workers:
        config = self._config
        crew = RayCrew(
            self._plan,
            count=config.rollout_workers,
            cpus=config.worker_cpus,
            gpus=config.worker_gpus,
            address=config.ray_address,
        )
        # Kept before it is opened, so that close() ends what there is of it.
        self._workers = Workers(crew, config.rollout_workers, config.fault_limit, config.rank_deadline)
        self._workers.open(interrupt.check)
        return self._workers


def _mean_seconds(played: list[PlayedPiece], workers: int) -> dict[str, float]:
    """Return the seconds that a worker has spent on each part, on average; the rest it has waited."""
    parts = sorted({part for piece in played for part in piece.seconds})
    return {part: math.fsum(piece.seconds.get(part, 0.0) for piece in played) / workers for part in parts}
