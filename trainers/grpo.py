"""Trajectory-level GRPO: the training loop.

One update: draw tasks, play G trajectories of each, turn the reward of every step into advantages, take a clipped
policy-gradient step with a KL penalty. ``GRPOTrainer.run`` reads top to bottom; its parts are pure functions in the
files beside this one.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trajgym.envs.base import ToolEnv
from trajgym.envs.make import make
from trajgym.errors import StorageError, TrainingError
from trajgym.evaluation.evaluate import fit_arguments
from trajgym.evaluation.records import trajectory_row, write_jsonl
from trajgym.rollout import fault_summary
from trajgym.trainers.accounting import Accounting
from trajgym.trainers.advantages import Advantages
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.credit import Credit
from trajgym.trainers.efficiency import Passes
from trajgym.trainers.groups import give_up, prompts_too_long, why_empty
from trajgym.trainers.interrupt import Interrupt, Interrupted, StopRequested
from trajgym.trainers.kl_control import KLControl
from trajgym.trainers.learner import Learner
from trajgym.trainers.memory_report import available_memory
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
from trajgym.trainers.player import Played, Player
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.reward_plan import RewardPool, reward_plan
from trajgym.trainers.runfolder import RunFolder, fitting, storage_errors
from trajgym.trainers.scale import divided_memory
from trajgym.trainers.schedule import TaskSchedule
from trajgym.trainers.shape import shape_of
from trajgym.trainers.sharding import Shards
from trajgym.trainers.telling import say
from trajgym.trainers.writers import check_writers, make_writers
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


class GRPOTrainer:
    """A run: model, environments, optimiser, and the loop over updates.

    Args:
        config: All options.
        name: See :func:`train`.
    """

    def __init__(self, config: GRPOConfig, *, name: str = "run") -> None:
        self.config = config
        check_writers(config.monitors)
        self.crediting = Credit(config)
        env = make(config.env, **config.env_arguments)
        self.schedule = TaskSchedule(env, config)
        plan = reward_plan(env, config)

        self.device = pick_device(config.device)
        self.ranks = Ranks(cpu=self.device.type == "cpu", deadline=config.rank_deadline)
        if self.ranks.count > 1 and config.device == "auto":
            self.device = self.ranks.device
        self.shards = Shards(self.ranks, config)
        model, self.tokenizer = load_model(
            config.model,
            dtype=config.dtype,
            device=self.shards.place(self.device),
            quantization=config.quantization,
        )
        if config.use_lora:
            model = add_lora(
                model, rank=config.lora_rank, alpha=config.lora_alpha, targets=config.lora_targets, seed=config.seed
            )
        self.accounting = Accounting(model, config, ranks=self.ranks, device=self.device)
        if self.shards.active:
            free = available_memory(str(self.device))
            self.accounting.memory = divided_memory(shape_of(model), config, self.ranks.count, free)
        self.watch = self.accounting.watch
        self.reference = Reference(model, lora=config.use_lora) if config.kl_coef > 0 else None
        self.policy = make_policy(model, self.tokenizer, config)
        arguments = fit_arguments(self.policy, env, config.env_arguments)
        if arguments != config.env_arguments:
            env.close()
            env = make(config.env, **arguments)
        self.pool = RewardPool(
            lambda: make(config.env, **arguments), plan, threads=config.env_threads, deadline=config.group_deadline
        )
        self.pool.give(env)
        # gae has the group, or PPO's critic, to take values from.
        values = "values" in self.crediting.needs and config.estimator != "gae"
        self.player = Player(
            self.policy, self.pool, self.schedule, config, values=values, ranks=self.ranks, watch=self.watch
        )
        self.calls = ""  # how they are written, for people
        if isinstance(env.unwrapped, ToolEnv) and env.unwrapped.tools:
            chosen = env.unwrapped.protocol.name
            answers = self.policy.renderer.tool_role
            self.calls = f"Tool calls: {chosen} (protocol: {config.protocol}), answered in {answers} messages"
            self.config = config = config.model_copy(update={"protocol": chosen})

        self.folder = self._open_folder(name)  # after everything that can be wrong with the options
        self.update = 0  # finished updates
        self.fruitless: list[str] = []  # why there was nothing to learn from in the latest of them, one text for each
        state: dict[str, Any] = {}
        self.prepare(model)
        if config.resume:
            weights, state = self.folder.load()
            load_weights(model, weights, lora=config.use_lora)
        if config.gradient_checkpointing:
            checkpoint_activations(model)
        for whole in (model, self.reference.model if self.reference is not None else model):
            self.shards.divide(whole, self.device)
        self.policy.sampler.reset()  # it may stand on another device now
        self.learner = Learner(
            model,
            config,
            reference=self.reference,
            ranks=self.ranks,
            shards=self.shards,
            watch=self.watch,
            device=self.device,
            folder=self.folder.path,
        )
        self.kl = KLControl(config.kl_coef) if config.kl_control == "auto" else None
        if state:
            with fitting(weights.parent):
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
                    self.accounting.begin(self.tokens_processed())
                    weights = self.pool.advance(self.update / total)
                    played = self.gather(interrupt)
                    trajectories, groups = played.trajectories, played.groups
                    rollout_seconds = time.perf_counter() - start

                    fruitless = [] if groups else [*self.fruitless, why_empty(trajectories, config)]
                    if prompts_too_long(trajectories):
                        raise TrainingError(fruitless[-1])
                    if len(fruitless) >= min(config.fault_limit, total):
                        raise TrainingError(give_up(fruitless))
                    # Without a group the update is skipped, not tried again: its tasks may be what breaks a tool.
                    learned, credited = self.improve(played, interrupt) if groups else ({"groups": 0.0}, [])
                    passes = self.passes()
                    if self.kl is not None and "kl" in learned:
                        learned["kl_coef"] = self.kl.coef
                        self.set_kl_coef(self.kl.update(learned["kl"]))

                    self.update, self.fruitless, self.learner.clean = self.update + 1, fruitless, True
                    metrics: dict[str, Any] = {"update": self.update, "epoch": self.schedule.epoch(self.update)}
                    paid = weights.get("weight/accuracy", 1.0) > 0
                    metrics |= rollout_metrics(trajectories, config.gamma, accuracy_paid=paid) | learned | weights
                    if played.extra_faults:
                        metrics["faults/ValueRollout"] = float(played.extra_faults)  # beside those in fault_share
                    if played.extra_steps:
                        metrics["env_steps"] = metrics.get("env_steps", 0.0) + played.extra_steps
                    sampled = metrics.get("tokens_per_trajectory", 0.0) * len(trajectories)
                    metrics["time/rollout"] = rollout_seconds
                    metrics["time/update"] = time.perf_counter() - start
                    metrics["time/tokens_per_second"] = sampled / metrics["time/update"]
                    metrics |= self.accounting.end(
                        trajectories,
                        groups,
                        credited,
                        passes=passes,
                        processed=self.tokens_processed(),
                        seconds=metrics["time/update"],
                    )
                    self.ranks.together(partial(self._report, monitor, metrics, trajectories, fruitless))
                    if self.update % config.save_every == 0 or self.update == total:
                        self.ranks.together(self.save)
                        saved = self.update
                        if monitor is not None:
                            monitor.saved(self.folder.complete()[-1])
            except StopRequested:
                wanted = self.ranks.main and (saved != self.update or not self.folder.complete())
                if any(self.ranks.together(lambda: wanted)):
                    self.save()
                raise Interrupted(
                    f"Stopped after {self.update} of {total} updates; saved in {self.folder.path}. "
                    "Go on with the same command and --resume."
                ) from None
            except Exception as error:
                if monitor is not None:
                    monitor.explain(error)
                if saved != self.update:
                    self._rescue()
                raise
            finally:
                if monitor is not None:
                    monitor.close(self.folder.complete()[-1] if self.update == total == saved else None)
        if self.ranks.main:
            self.folder.gather_trajectories()
        return self.folder.path

    def gather(self, interrupt: Interrupt) -> Played:
        """Play the update's episodes."""
        with self.shards.whole(self.learner.model):
            return self.player.play(self.update, interrupt, self.crediting.has_signal)

    def improve(
        self, played: Played, interrupt: Interrupt
    ) -> tuple[dict[str, float], Sequence[Sequence[Sequence[float | Sequence[float]]]]]:
        """Credit a batch and take the update's optimiser steps.

        Returns:
            What is worth knowing of them, and the advantages.
        """
        advantages = self.credit(played.groups, played.values)
        return self.learn(played.groups, advantages, interrupt), advantages

    def credit(self, groups: Sequence[Group], values: Mapping[int, list[float]] | None = None) -> list[Advantages]:
        """Return the advantages of every group, one per turn of each trajectory.

        Args:
            groups: The batch.
            values: V of the states of the trajectory with that seed, where the estimator needs them.
        """
        known = [[values[t.seed] for t in group.trajectories] for group in groups] if values else None
        return self.crediting(groups, values=known, kl=self.kl_of_turns(groups))

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
        with self.watch("train"):
            return self.learner.learn(groups, advantages, interrupt, progress=progress)

    def set_kl_coef(self, coef: float) -> None:
        """Weigh the KL by ``coef`` from now on, in the loss or in the reward."""
        self.learner.kl_coef = self.crediting.kl_coef = coef

    def passes(self) -> Passes:
        """Return how often an update goes through what it learns from."""
        config = self.config
        once = self.reference is not None
        several = config.inner_epochs * config.minibatches > 1 or (once and config.kl_form == "k1_in_reward")
        return Passes(old=int(several), reference=int(once), train=config.inner_epochs)

    def tokens_processed(self) -> int:
        """Return the tokens that have gone through models on this rank so far, padding included."""
        return self.learner.processed + self.policy.sampler.computed_tokens

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the policy's weights that a resumed run must know."""
        return {
            "update": self.update,
            "fruitless": self.fruitless,
            "optimizer": self.learner.optimizer_state(),
            "credit": self.crediting.state_dict(),
            "skipped": self.learner.guard.in_a_row,
            "kl": self.kl.state_dict() if self.kl is not None else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.learner.load_optimizer_state(state["optimizer"])
        self.update, self.fruitless = int(state["update"]), list(state.get("fruitless", ()))
        self.crediting.load_state_dict(state.get("credit", {}))
        self.learner.guard.in_a_row = int(state.get("skipped", 0))
        if self.kl is not None:
            self.kl.load_state_dict(state.get("kl", {}))
            self.set_kl_coef(self.kl.coef)

    def save(self) -> None:
        """Write a checkpoint of the current state; every rank calls this, the main one writes."""
        if self.shards.active:
            self.ranks.together(self._check_weights)
        else:
            self._check_weights()
        model, state = self.shards.to_save(self.learner.model), self.state_dict()
        if self.ranks.main:
            self.folder.save(self.update, model, self.tokenizer, state)

    def _check_weights(self) -> None:
        if not self._finite():
            raise TrainingError(
                f"After update {self.update} some weights are not finite numbers, so they are not saved. Lower "
                "learning_rate and go on from the last checkpoint with --resume."
            )

    def _finite(self) -> bool:
        """Return whether all weights are finite; of divided ones, this rank's."""
        return all(bool(torch.isfinite(p).all()) for p in self.learner.model.parameters())

    def _open_folder(self, name: str) -> RunFolder:
        """Let the main rank make the run folder before the others look at it."""
        made: list[RunFolder] = []
        self.ranks.together(lambda: made.append(RunFolder(self.config, name)) if self.ranks.main else None)
        return made[0] if made else RunFolder(self.config, name, writes=False)

    def _open_monitor(self) -> Monitor | None:
        """Say what is about to happen, where this is the rank that speaks."""
        if not self.ranks.main:
            return None
        config, total = self.config, self.schedule.total
        for line in filter(None, (self.calls, self.accounting.memory.line, self.learner.sharing)):
            say(line)
        parameters = sum(p.numel() for p in self.learner.model.parameters())
        monitor = Monitor(
            self.folder,
            total=total,
            first=self.update,
            writers=make_writers(config.monitors, self.folder, first=self.update),
            epochs=math.ceil(config.epochs or self.schedule.epoch(total)) or 1,
            options=config.plain() | {"model_parameters": parameters},
            print_every=config.log_every,
        )
        if self.accounting.memory.warning:
            say(f"  ! {self.accounting.memory.warning}")
        monitor.begin()
        return monitor

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
        if not self.learner.clean or (self.shards.active and not self.ranks.all_stop):
            return
        if all(self.ranks.together(self._finite)) if self.shards.active else self._finite():
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
