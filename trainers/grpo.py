"""Trajectory-level GRPO: the training loop.

One update: draw tasks, play G trajectories of each, turn the reward of every step into advantages, take a clipped
policy-gradient step with a KL penalty. ``GRPOTrainer.run`` reads top to bottom; its parts are pure functions in the
files beside this one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trajgym.envs.base import ToolEnv
from trajgym.envs.make import make
from trajgym.errors import StorageError, TrainingError
from trajgym.evaluation.evaluate import fit_arguments
from trajgym.evaluation.records import to_parquet, trajectory_row, write_jsonl
from trajgym.rollout import collect, derive_seed, fault_summary
from trajgym.rollout_states import State
from trajgym.trainers.advantages import Advantages
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.credit import Credit
from trajgym.trainers.groups import give_up, prompts_too_long, usable_groups, why_empty
from trajgym.trainers.interrupt import Interrupt, Interrupted, StopRequested
from trajgym.trainers.learner import Learner
from trajgym.trainers.metrics import rollout_metrics
from trajgym.trainers.models import (
    Reference,
    add_lora,
    checkpoint_activations,
    load_model,
    load_weights,
    make_policy,
    pick_device,
)
from trajgym.trainers.monitor import Monitor
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.reward_plan import RewardPool, reward_plan
from trajgym.trainers.runfolder import RunFolder, storage_errors
from trajgym.trainers.schedule import TaskSchedule
from trajgym.trainers.vine import state_values
from trajgym.types import Group, Trajectory

__all__ = ["GRPOTrainer", "train"]


def train(config: GRPOConfig, *, name: str = "run") -> Path:
    """Run the whole training and return the run's folder.

    Args:
        config: All options.
        name: Begins the name of the run folder when ``config.name`` is unset; usually the recipe's.

    Raises:
        ConfigError, DataError, TemplateError, CheckpointError: Before anything is computed.
        StorageError, TrainingError: During the run; checkpoints written so far are intact.
        Interrupted: After Ctrl-C; the last finished update was saved.
    """
    if config.algorithm == "ppo":
        from trajgym.trainers.ppo import PPOTrainer

        return PPOTrainer(config, name=name).run()
    return GRPOTrainer(config, name=name).run()


@dataclass(frozen=True)
class _Share:
    """What one rank has played: trajectories by group, and for vine the values of their states by their seeds."""

    groups: list[list[Trajectory]]
    values: dict[int, list[float]]
    extra_steps: int


class GRPOTrainer:
    """A run: model, environments, optimiser, and the loop over updates.

    Args:
        config: All options.
        name: See :func:`train`.
    """

    def __init__(self, config: GRPOConfig, *, name: str = "run") -> None:
        self.config = config
        self.crediting = Credit(config)
        env = make(config.env, **config.env_arguments)
        self.schedule = TaskSchedule(env, config)
        plan = reward_plan(env, config)

        self.device = pick_device(config.device)
        self.ranks = Ranks(cpu=self.device.type == "cpu", deadline=config.rank_deadline)
        if self.ranks.count > 1 and config.device == "auto":
            self.device = self.ranks.accelerator.device
        model, self.tokenizer = load_model(config.model, dtype=config.dtype, device=self.device)
        if config.use_lora:
            model = add_lora(
                model, rank=config.lora_rank, alpha=config.lora_alpha, targets=config.lora_targets, seed=config.seed
            )
        self.reference = Reference(model, lora=config.use_lora) if config.kl_coef > 0 else None
        self.policy = make_policy(model, self.tokenizer, config)
        arguments = fit_arguments(self.policy, env, config.env_arguments)
        if arguments != config.env_arguments:
            env.close()
            env = make(config.env, **arguments)
        self.pool = RewardPool(lambda: make(config.env, **arguments), plan, threads=config.env_threads)
        self.pool.give(env)
        self.calls = ""  # how they are written, for people
        if isinstance(env.unwrapped, ToolEnv) and env.unwrapped.tools:
            chosen = env.unwrapped.protocol.name
            answers = self.policy.renderer.tool_role
            self.calls = f"Tool calls: {chosen} (protocol: {config.protocol}), answered in {answers} messages"
            self.config = config = config.model_copy(update={"protocol": chosen})

        self.folder = self._open_folder(name)  # after everything that can be wrong with the options
        self.update = 0  # finished updates
        self.fruitless: list[str] = []  # why there was nothing to learn from in the latest of them, one text for each
        self.values: dict[int, list[float]] = {}  # V of every state of the trajectory with that seed, for vine
        self.extra_steps = 0  # turns played to know them, in this update
        state: dict[str, Any] = {}
        self.prepare(model)
        if config.resume:
            weights, state = self.folder.load()
            load_weights(model, weights, lora=config.use_lora)
        if config.gradient_checkpointing:
            checkpoint_activations(model)
        self.learner = Learner(
            model,
            config,
            reference=self.reference,
            ranks=self.ranks,
            device=self.device,
            folder=self.folder.path,
        )
        if state:
            self.load_state_dict(state)

    def prepare(self, model: Any) -> None:
        """Make what else is trained; ``model`` is still the policy that the run starts from."""

    def run(self) -> Path:
        """Train to the end and return the run's folder."""
        config, total = self.config, self.schedule.total
        monitor = self._open_monitor()
        saved = self.update
        with self.pool, Interrupt() as interrupt:
            try:
                while self.update < total:
                    start = time.perf_counter()
                    weights = self.pool.advance(self.update / total)
                    trajectories, groups = self.gather(interrupt)
                    rollout_seconds = time.perf_counter() - start

                    fruitless = [] if groups else [*self.fruitless, why_empty(trajectories, config)]
                    if prompts_too_long(trajectories):
                        raise TrainingError(fruitless[-1])
                    if len(fruitless) >= min(config.fault_limit, total):
                        raise TrainingError(give_up(fruitless))
                    # Without a group the update is skipped, not tried again: its tasks may be what breaks a tool.
                    learned = self.improve(groups, interrupt) if groups else {"groups": 0.0}

                    self.update, self.fruitless, self.learner.clean = self.update + 1, fruitless, True
                    metrics: dict[str, Any] = {"update": self.update, "epoch": self.schedule.epoch(self.update)}
                    paid = weights.get("weight/accuracy", 1.0) > 0
                    metrics |= rollout_metrics(trajectories, config.gamma, accuracy_paid=paid) | learned | weights
                    if self.extra_steps:
                        metrics["env_steps"] = metrics.get("env_steps", 0.0) + self.extra_steps
                    sampled = metrics.get("tokens_per_trajectory", 0.0) * len(trajectories)
                    metrics["time/rollout"] = rollout_seconds
                    metrics["time/update"] = time.perf_counter() - start
                    metrics["time/tokens_per_second"] = sampled / metrics["time/update"]
                    self.ranks.together(partial(self._report, monitor, metrics, trajectories, fruitless))
                    if self.update % config.save_every == 0 or self.update == total:
                        self.ranks.together(self.save)
                        saved = self.update
            except StopRequested:
                if self.ranks.main and (saved != self.update or not self.folder.complete()):
                    self.save()
                raise Interrupted(
                    f"Stopped after {self.update} of {total} updates; saved in {self.folder.path}. "
                    "Go on with the same command and --resume."
                ) from None
            except Exception:
                if saved != self.update:
                    self._rescue()
                raise
            finally:
                if monitor is not None:
                    monitor.close()
        if self.ranks.main:
            logs = sorted((self.folder.path / "trajectories").glob("update-*.jsonl"))
            with storage_errors(self.folder.path):
                to_parquet(logs, self.folder.path / "trajectories" / "all.parquet")
        return self.folder.path

    def gather(self, interrupt: Interrupt) -> tuple[list[Trajectory], list[Group]]:
        """Play the update's episodes, those of each group on one rank, and exchange them.

        With ``dynamic_sampling`` on, go on with further tasks until enough groups have a signal.

        Returns:
            All trajectories, and the groups to learn from; the same on every rank.

        Source: dynamic sampling, DAPO, arXiv 2503.14476.
        """
        config = self.config
        played: list[Trajectory] = []
        usable: list[Group] = []
        telling: list[Group] = []
        self.values, self.extra_steps = {}, 0
        for round in range(config.dynamic_sampling + 1):
            shares = self.ranks.together(partial(self._play, round, interrupt))
            trajectories = [t for group in self.ranks.merged([share.groups for share in shares]) for t in group]
            self.values |= {seed: values for share in shares for seed, values in share.values.items()}
            self.extra_steps += sum(share.extra_steps for share in shares)
            played += trajectories
            fresh = usable_groups(
                trajectories,
                config.num_generations,
                drop_truncated=config.truncated == "drop",
                least=1 if config.algorithm == "ppo" or config.estimator == "vine" or config.baseline == "none" else 2,
            )
            usable += fresh
            if config.dynamic_sampling:
                telling += [group for group in fresh if self.crediting.has_signal(group)]
                if len(telling) >= config.groups_per_update:
                    break
        return played, telling[: config.groups_per_update] or usable[: config.groups_per_update]

    def improve(self, groups: Sequence[Group], interrupt: Interrupt) -> dict[str, float]:
        """Credit a batch and take the update's optimiser steps; return what is worth knowing of them."""
        return self.learn(groups, self.credit(groups), interrupt)

    def credit(self, groups: Sequence[Group]) -> list[Advantages]:
        """Return the advantages of every group, one per turn of each trajectory."""
        values = [[self.values[t.seed] for t in group.trajectories] for group in groups] if self.values else None
        return self.crediting(groups, values=values, kl=self.kl_of_turns(groups))

    def kl_of_turns(self, groups: Sequence[Group]) -> list[list[list[float]]] | None:
        """Return the KL of every turn where it is part of the reward."""
        in_reward = self.reference is not None and self.config.kl_form == "k1_in_reward"
        return self.learner.kl_of_turns(groups) if in_reward else None

    def learn(
        self, groups: Sequence[Group], advantages: Sequence[Advantages], interrupt: Interrupt
    ) -> dict[str, float]:
        """Take the update's optimiser steps and return what is worth knowing of them."""
        total = self.schedule.total
        progress = (self.update / total, (self.update + 1) / total)
        return self.learner.learn(groups, advantages, interrupt, progress=progress)

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the policy's weights that a resumed run must know."""
        return {
            "update": self.update,
            "fruitless": self.fruitless,
            "optimizer": self.learner.optimizer.state_dict(),
            "credit": self.crediting.state_dict(),
            "skipped": self.learner.guard.in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.learner.optimizer.load_state_dict(state["optimizer"])
        self.update, self.fruitless = int(state["update"]), list(state.get("fruitless", ()))
        self.crediting.load_state_dict(state.get("credit", {}))
        self.learner.guard.in_a_row = int(state.get("skipped", 0))

    def save(self) -> None:
        """Write a checkpoint of the current state, where this is the rank that writes."""
        if self.ranks.main:
            self.folder.save(self.update, self.learner.model, self.tokenizer, self.state_dict())

    def _play(self, round: int, interrupt: Interrupt) -> _Share:
        """Play this rank's groups."""
        config, size = self.config, self.config.num_generations
        states: dict[int, list[State]] | None = {} if config.estimator == "vine" else None
        episodes = self.schedule.episodes(self.update, round)
        mine = self.ranks.mine([episodes[i : i + size] for i in range(0, len(episodes), size)])
        trajectories = collect(
            self.policy,
            self.pool,
            [episode for group in mine for episode in group],
            deterministic=config.deterministic,
            on_tick=interrupt.check,
            states=states,
        )
        values: dict[int, list[float]] = {}
        extra = 0
        if states is not None:
            found = state_values(
                self.policy,
                self.pool,
                trajectories,
                states,
                rollouts=config.vine_rollouts,
                gamma=config.gamma,
                seed=derive_seed(config.seed, "vine", self.update, round),
                deterministic=config.deterministic,
                on_tick=interrupt.check,
            )
            extra = found.env_steps
            values = {t.seed: v for t, v in zip(trajectories, found.values, strict=True) if v is not None}
            trajectories = [  # one with a state of which nothing is known cannot be credited
                dataclasses.replace(t, fault=f"StateUnknown: {found.lost[i]}") if t.valid and i in found.lost else t
                for i, t in enumerate(trajectories)
            ]
        return _Share([trajectories[i : i + size] for i in range(0, len(trajectories), size)], values, extra)

    def _open_folder(self, name: str) -> RunFolder:
        """Let the main rank make the run folder before the others look at it."""
        made: list[RunFolder] = []
        self.ranks.together(lambda: made.append(RunFolder(self.config, name)) if self.ranks.main else None)
        return made[0] if made else RunFolder(self.config, name, writes=False)

    def _open_monitor(self) -> Monitor | None:
        if not self.ranks.main:
            return None
        if self.calls:
            print(self.calls, flush=True)
        config = self.config
        return Monitor(
            self.folder,
            total=self.schedule.total,
            first=self.update,
            tensorboard=config.tensorboard,
            fault_alarm=config.fault_alarm,
        )

    def _report(
        self,
        monitor: Monitor | None,
        metrics: dict[str, Any],
        trajectories: Sequence[Trajectory],
        fruitless: Sequence[str],
    ) -> None:
        if monitor is not None:
            monitor.update(metrics, faults=fault_summary(trajectories), skipped=fruitless)
            self._log_trajectories(trajectories)

    def _rescue(self) -> None:
        """Save the last finished update before an error ends the run, where its weights are whole."""
        parameters = self.learner.model.parameters()
        if self.learner.clean and all(bool(torch.isfinite(p).all()) for p in parameters):
            with contextlib.suppress(StorageError):  # the error under way is the one to show
                self.save()

    def _log_trajectories(self, trajectories: Sequence[Trajectory]) -> None:
        chosen = list(trajectories[: self.config.log_trajectories])
        if chosen and all(t.valid for t in chosen):  # a fault that was warned of can be looked up
            chosen[-1] = next((t for t in trajectories if not t.valid), chosen[-1])
        if chosen:
            path = self.folder.path / "trajectories" / f"update-{self.update:06d}.jsonl"
            with storage_errors(self.folder.path):
                write_jsonl(path, [trajectory_row(t, {"update": self.update}) for t in chosen])
