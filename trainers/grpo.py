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

from trajgym.envs.base import ToolEnv
from trajgym.envs.make import make
from trajgym.errors import TrainingError
from trajgym.evaluation.evaluate import fit_arguments
from trajgym.trainers.accounting import Accounting
from trajgym.trainers.advantages import Advantages
from trajgym.trainers.ahead import Ahead, check_alone, twin
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.credit import Credit
from trajgym.trainers.data_kept import keep_problems
from trajgym.trainers.efficiency import Passes
from trajgym.trainers.groups import give_up, prompts_too_long, why_empty
from trajgym.trainers.interrupt import Interrupt, Interrupted, StopRequested
from trajgym.trainers.journal import Journal, update_numbers
from trajgym.trainers.kl_control import KLControl
from trajgym.trainers.learner import Learner
from trajgym.trainers.memory_report import available_memory
from trajgym.trainers.models import (
    Reference,
    add_lora,
    checkpoint_activations,
    load_model,
    load_weights,
    make_policy,
    pick_device,
)
from trajgym.trainers.player import Played
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.ray_player import make_player
from trajgym.trainers.reward_plan import RewardPool, reward_plan
from trajgym.trainers.runfolder import fitting
from trajgym.trainers.saving import check_weights, open_folder, rescue
from trajgym.trainers.scale import divided_memory
from trajgym.trainers.schedule import TaskSchedule
from trajgym.trainers.shape import shape_of
from trajgym.trainers.sharding import Shards
from trajgym.trainers.stopwatch import Stopwatch
from trajgym.trainers.writers import check_writers
from trajgym.types import Group

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
        if config.rollout_ahead:
            check_alone(self.ranks)
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
        self.sampled = twin(model) if config.rollout_ahead else model  # whose weights play
        self.policy = make_policy(self.sampled, self.tokenizer, config, training=True)
        arguments = fit_arguments(self.policy, env, config.env_arguments)
        if arguments != config.env_arguments:
            env.close()
            env = make(config.env, **arguments)
        self.pool = RewardPool(
            lambda: make(config.env, **arguments), plan, threads=config.env_threads, deadline=config.group_deadline
        )
        self.pool.give(env)
        watch = Stopwatch() if config.rollout_ahead else self.watch  # what runs at the same time is timed apart
        self.player = make_player(
            self.policy,
            self.pool,
            self.schedule,
            config,
            values=self.crediting.rolls_out,
            ranks=self.ranks,
            watch=watch,
            model=model,
            sampled=self.sampled,
            env=env,
            arguments=arguments,
            divided=self.shards.active,
        )
        self.calls = ""  # how they are written, for people
        if isinstance(env.unwrapped, ToolEnv) and env.unwrapped.tools:
            chosen = env.unwrapped.protocol.name
            answers = self.policy.renderer.tool_role
            self.calls = f"Tool calls: {chosen} (protocol: {config.protocol}), answered in {answers} messages"
            self.config = config = config.model_copy(update={"protocol": chosen})

        self.folder = open_folder(config, name, self.ranks)  # after everything that can be wrong with the options
        self.ranks.together(lambda: keep_problems(self.folder.path, env, config) if self.ranks.main else None)
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
        self.ahead = Ahead(model, self.sampled, self.player, self.play, watch) if config.rollout_ahead else None
        self.kl = KLControl(config.kl_coef) if config.kl_control == "auto" else None
        if state:
            with fitting(weights.parent):
                self.load_state_dict(state)

    def prepare(self, model: Any) -> None:
        """Make what else is trained; ``model`` is still the policy that the run starts from."""

    def run(self) -> Path:
        """Train to the end and return the run's folder."""
        config, total = self.config, self.schedule.total
        journal = self._open_journal()
        saved = self.update
        with self.pool, self.player, Interrupt() as interrupt, self.ahead or contextlib.nullcontext():
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
                    if self.ahead is not None:
                        self.ahead.begin(self.update + 1, last=self.update + 1 == total)
                    # Without a group the update is skipped, not tried again: its tasks may be what breaks a tool.
                    learned, credited = self.improve(played, interrupt) if groups else ({"groups": 0.0}, [])
                    passes = self.passes()
                    if self.kl is not None and "kl" in learned:
                        learned["kl_coef"] = self.kl.coef
                        self.set_kl_coef(self.kl.update(learned["kl"]))

                    self.update, self.fruitless, self.learner.clean = self.update + 1, fruitless, True
                    where = {"update": self.update, "epoch": self.schedule.epoch(self.update)}
                    metrics = where | update_numbers(
                        played, learned, weights, gamma=config.gamma, start=start, rollout_seconds=rollout_seconds
                    )
                    processed, seconds = self.tokens_processed(), metrics["time/update"]
                    metrics |= self.accounting.end(
                        played, credited, passes=passes, processed=processed, seconds=seconds
                    )
                    self.ranks.together(partial(journal.update, metrics, trajectories, fruitless))
                    if self.update % config.save_every == 0 or self.update == total:
                        self.ranks.together(self.save)
                        saved = self.update
                        journal.saved()
            except StopRequested:
                wanted = self.ranks.main and (saved != self.update or not self.folder.complete())
                if any(self.ranks.together(lambda: wanted)):
                    self.save()
                raise Interrupted(
                    f"Stopped after {self.update} of {total} updates; saved in {self.folder.path}. "
                    "Go on with the same command and --resume."
                ) from None
            except Exception as error:
                journal.explain(error)
                if saved != self.update:
                    rescue(self.learner, self.save, self.ranks, self.shards)
                raise
            finally:
                journal.close(finished=self.update == total == saved)
        if self.ranks.main:
            self.folder.gather_trajectories()
        return self.folder.path

    def gather(self, interrupt: Interrupt) -> Played:
        """Play the update's episodes, or wait for those that are played already."""
        if self.ahead is not None:
            return self.ahead.take(self.update, interrupt)
        return self.play(self.update, interrupt)

    def play(self, update: int, interrupt: Interrupt) -> Played:
        """Play the episodes of an update, counted from 0."""
        self.pool.advance(update / self.schedule.total)
        with self.shards.whole(self.learner.model):
            self.policy.sampler.update_weights(self.sampled)
            return self.player.play(update, interrupt, self.crediting.has_signal, least=self.crediting.least)

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
        playing = self.player if self.ahead is None else self.ahead
        return self.learner.processed + playing.computed_tokens

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the policy's weights that a resumed run must know."""
        return {
            "update": self.update,
            "fruitless": self.fruitless,
            "optimizer": self.learner.optimizer_state(),
            "credit": self.crediting.state_dict(),
            "skipped": self.learner.guard.in_a_row,
            "kl": self.kl.state_dict() if self.kl is not None else {},
        } | ({"ahead": self.ahead.state_dict(self.update)} if self.ahead is not None else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.learner.load_optimizer_state(state["optimizer"])
        self.update, self.fruitless = int(state["update"]), list(state.get("fruitless", ()))
        self.crediting.load_state_dict(state.get("credit", {}))
        self.learner.guard.in_a_row = int(state.get("skipped", 0))
        if self.ahead is not None:
            self.ahead.load_state_dict(state["ahead"])
        if self.kl is not None:
            self.kl.load_state_dict(state.get("kl", {}))
            self.set_kl_coef(self.kl.coef)

    def save(self) -> None:
        """Write a checkpoint of the current state; every rank calls this, the main one writes."""
        check_weights(self.learner.model, self.update, self.ranks, self.shards)
        model, state = self.shards.to_save(self.learner.model), self.state_dict()
        if self.ranks.main:
            self.folder.save(self.update, model, self.tokenizer, state)

    def _open_journal(self) -> Journal:
        """Say what is about to happen, where this is the rank that speaks."""
        memory, total = self.accounting.memory, self.schedule.total
        return Journal(
            self.folder,
            self.config,
            speaks=self.ranks.main,
            total=total,
            first=self.update,
            epochs=math.ceil(self.config.epochs or self.schedule.epoch(total)) or 1,
            parameters=sum(p.numel() for p in self.learner.model.parameters()),
            lines=(self.calls, memory.line, self.learner.sharing),
            warning=memory.warning,
        )
