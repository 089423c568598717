"""Trajectory-level GRPO: the training loop.

One update: draw tasks, play G trajectories of each, turn the reward of every step into advantages, take a clipped
policy-gradient step with a KL penalty. ``GRPOTrainer.run`` reads top to bottom; its parts are pure functions in the
files beside this one.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from trajgym.envs.base import ToolEnv
from trajgym.envs.make import make
from trajgym.errors import ConfigError, StorageError, TrainingError
from trajgym.evaluation.evaluate import fit_arguments
from trajgym.evaluation.records import to_parquet, trajectory_row, write_jsonl
from trajgym.rollout import collect, fault_summary
from trajgym.trainers.advantages import ESTIMATORS, Advantages, Estimator, scale
from trajgym.trainers.batch import Batch, make_batch, normalizer_value
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.interrupt import Interrupt, Interrupted, StopRequested
from trajgym.trainers.loss import policy_loss
from trajgym.trainers.metrics import no_signal, rollout_metrics
from trajgym.trainers.models import (
    Reference,
    add_lora,
    checkpoint_activations,
    load_model,
    load_weights,
    make_policy,
    pick_device,
    token_logprobs,
)
from trajgym.trainers.monitor import Monitor
from trajgym.trainers.reward_plan import RewardPool, reward_plan
from trajgym.trainers.runfolder import RunFolder, storage_errors
from trajgym.trainers.schedule import TaskSchedule, lr_factor
from trajgym.types import Group, StopReason, Trajectory

__all__ = ["GRPOTrainer", "make_policy", "train", "usable_groups"]


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
    return GRPOTrainer(config, name=name).run()


class GRPOTrainer:
    """A run: model, environments, optimiser, and the loop over updates.

    Args:
        config: All options.
        name: See :func:`train`.
    """

    def __init__(self, config: GRPOConfig, *, name: str = "run") -> None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("The trainer runs in one process; start it without torchrun or accelerate launch.")
        self.config = config
        self.estimate = _bind_estimator(config)
        env = make(config.env, **config.env_arguments)
        self.schedule = TaskSchedule(env, config)
        plan = reward_plan(env, config)

        self.device = pick_device(config.device)
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

        self.folder = RunFolder(config, name)  # after everything that can be wrong with the options
        self.update = 0  # finished updates
        self.fruitless: list[str] = []  # why there was nothing to learn from in the latest of them, one text for each
        self.clean = True  # the weights are those after that many updates, and of no step beyond
        state: dict[str, Any] = {}
        if config.resume:
            weights, state = self.folder.load()
            load_weights(model, weights, lora=config.use_lora)
        if config.gradient_checkpointing:
            checkpoint_activations(model)

        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)
        if state:
            optimizer.load_state_dict(state["optimizer"])
            self.update, self.fruitless = int(state["update"]), list(state.get("fruitless", ()))
        self.accelerator = Accelerator(cpu=self.device.type == "cpu", device_placement=False, mixed_precision="no")
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)

    def run(self) -> Path:
        """Train to the end and return the run's folder."""
        config, total = self.config, self.schedule.total
        monitor = Monitor(
            self.folder, total=total, first=self.update, tensorboard=config.tensorboard, fault_alarm=config.fault_alarm
        )
        saved = self.update
        if self.calls:
            print(self.calls, flush=True)
        with self.pool, Interrupt() as interrupt:
            try:
                while self.update < total:
                    start = time.perf_counter()
                    weights = self.pool.advance(self.update / total)
                    episodes = self.schedule.episodes(self.update)
                    trajectories = collect(
                        self.policy, self.pool, episodes, deterministic=config.deterministic, on_tick=interrupt.check
                    )
                    rollout_seconds = time.perf_counter() - start

                    groups = usable_groups(
                        trajectories, config.num_generations, drop_truncated=config.truncated == "drop"
                    )
                    fruitless = [] if groups else [*self.fruitless, _why_empty(trajectories, config)]
                    if _too_long(trajectories):
                        raise TrainingError(fruitless[-1])
                    if len(fruitless) >= min(config.fault_limit, total):
                        raise TrainingError(_give_up(fruitless))
                    # Without a group the update is skipped, not tried again: its tasks may be what breaks a tool.
                    learned = self.learn(groups, self.credit(groups), interrupt) if groups else {"groups": 0.0}

                    self.update, self.fruitless, self.clean = self.update + 1, fruitless, True
                    metrics: dict[str, Any] = {"update": self.update, "epoch": self.schedule.epoch(self.update)}
                    metrics |= rollout_metrics(trajectories, config.gamma) | learned | weights
                    sampled = metrics.get("tokens_per_trajectory", 0.0) * len(trajectories)
                    metrics["time/rollout"] = rollout_seconds
                    metrics["time/update"] = time.perf_counter() - start
                    metrics["time/tokens_per_second"] = sampled / metrics["time/update"]
                    monitor.update(metrics, faults=fault_summary(trajectories), skipped=fruitless)
                    self._log_trajectories(trajectories)
                    if self.update % config.save_every == 0 or self.update == total:
                        self.save()
                        saved = self.update
            except StopRequested:
                if saved != self.update or not self.folder.complete():
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
                monitor.close()
        logs = sorted((self.folder.path / "trajectories").glob("update-*.jsonl"))
        with storage_errors(self.folder.path):
            to_parquet(logs, self.folder.path / "trajectories" / "all.parquet")
        return self.folder.path

    def credit(self, groups: Sequence[Group]) -> list[Advantages]:
        """Return the advantages of every group, one per turn of each trajectory."""
        rewards = [[t.rewards for t in group.trajectories] for group in groups]
        advantages = [self.estimate(r) for r in rewards]
        return scale(advantages, self.config.advantage_scale, groups_rewards=rewards)

    def learn(
        self, groups: Sequence[Group], advantages: Sequence[Advantages], interrupt: Interrupt
    ) -> dict[str, float]:
        """Take the update's optimiser steps and return what is worth knowing of them."""
        config = self.config
        batches = [self.lay_out(groups[part], advantages[part]) for part in _parts(len(groups), config.minibatches)]
        old = None
        if len(batches) > 1:  # later steps start from other weights than the ones that sampled
            with torch.no_grad():
                old = [[self.logprobs(micro)[0] for micro in batch.micro] for batch in batches]
        sums = {"loss": 0.0, "kl": 0.0, "entropy": 0.0, "clip": 0.0, "gap": 0.0, "grad": 0.0}
        for b, batch in enumerate(batches):
            for m, micro in enumerate(batch.micro):
                if b == 0:
                    interrupt.check()  # gradients so far are dropped; the weights are untouched
                micro = micro.to(self.device)
                logp, entropy = self.logprobs(micro)
                parts = policy_loss(
                    logp,
                    logp.detach() if old is None else old[b][m],
                    micro.advantages,
                    normalizer=batch.normalizer,
                    clip_low=config.clip_range,
                    clip_high=config.clip_range_high,
                    ref_logp=self.reference.logprobs(micro, config.temperature) if self.reference else None,
                    kl_coef=config.kl_coef,
                    kl_form=config.kl_form,
                )
                self.accelerator.backward(parts.loss)
                sums["loss"] += parts.loss.item()
                sums["kl"] += parts.kl.item()
                sums["clip"] += parts.ratio_clipped.item()
                sums["entropy"] += entropy.sum().item()
                sums["gap"] += (logp.detach() - micro.sampler_logp).abs().sum().item()
            if batch.micro:
                sums["grad"] += self._step((self.update + (b + 0.5) / len(batches)) / self.schedule.total)
        tokens = max(1, sum(batch.policy_tokens for batch in batches))
        trajectories = max(1, sum(len(group.trajectories) for group in groups))
        out = {
            "loss": sums["loss"],
            "grad_norm": sums["grad"] / max(1, len(batches)),
            "learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            "entropy": sums["entropy"] / tokens,
            "clip_share": sums["clip"] / tokens,
            "sampler_gap": sums["gap"] / tokens,
            "no_signal_share": sum(map(no_signal, advantages)) / max(1, len(groups)),
            "groups": float(len(groups)),
            "useful_token_share": tokens / max(1, sum(batch.padded_tokens for batch in batches)),
        }
        if self.reference is not None:
            out |= {"kl": sums["kl"] / tokens, "kl_trajectory": sums["kl"] / trajectories}
        return out

    def lay_out(self, groups: Sequence[Group], advantages: Sequence[Advantages]) -> Batch:
        """Return the tensors of one optimiser step.

        Groups without a signal count in Z, or the gradient would depend on how many there are; their tokens are left
        out where nothing but the reward acts on them.
        """
        everyone = [t for group in groups for t in group.trajectories]
        z, weights = normalizer_value(self.config.normalizer, everyone, constant=self.config.max_turn_tokens)
        flat = [row for group in advantages for row in group]
        signal = [not no_signal(group) or self.reference is not None for group in advantages for _ in group]
        kept = [i for i, wanted in enumerate(signal) if wanted]
        return make_batch(
            [everyone[i] for i in kept],
            [flat[i] for i in kept],
            normalizer=z,
            row_weights=[weights[i] for i in kept],
            pad_id=0,
            max_tokens=self.config.microbatch_tokens,
        )

    def logprobs(self, micro: Any) -> tuple[Tensor, Tensor]:
        """Return log π and entropy of a micro-batch's policy tokens under the current weights."""
        return token_logprobs(self.model, micro.to(self.device), self.config.temperature)

    def save(self) -> Path:
        """Write a checkpoint of the current state."""
        state = {"update": self.update, "fruitless": self.fruitless, "optimizer": self.optimizer.state_dict()}
        return self.folder.save(self.update, self.accelerator.unwrap_model(self.model), self.tokenizer, state)

    def _rescue(self) -> None:
        """Save the last finished update before an error ends the run, where its weights are whole."""
        if self.clean and all(bool(torch.isfinite(p).all()) for p in self.model.parameters()):
            with contextlib.suppress(StorageError):  # the error under way is the one to show
                self.save()

    def _step(self, progress: float) -> float:
        """Take one optimiser step at ``progress`` (0 … 1) of the run; return the gradient's norm before clipping."""
        factor = lr_factor(progress, self.config.warmup_ratio, self.config.lr_schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * factor
        norm = float(self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm))
        if not math.isfinite(norm):
            raise TrainingError(
                f"The gradient's norm is {norm} in update {self.update + 1}. Lower learning_rate, or look at the "
                f"trajectories in {self.folder.path}; the checkpoints are intact."
            )
        self.clean = False
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _log_trajectories(self, trajectories: Sequence[Trajectory]) -> None:
        chosen = list(trajectories[: self.config.log_trajectories])
        if chosen and all(t.valid for t in chosen):  # a fault that was warned of can be looked up
            chosen[-1] = next((t for t in trajectories if not t.valid), chosen[-1])
        if chosen:
            path = self.folder.path / "trajectories" / f"update-{self.update:06d}.jsonl"
            with storage_errors(self.folder.path):
                write_jsonl(path, [trajectory_row(t, {"update": self.update}) for t in chosen])


def usable_groups(trajectories: Sequence[Trajectory], size: int, *, drop_truncated: bool = False) -> list[Group]:
    """Gather trajectories into groups of those that say something about the policy.

    Args:
        trajectories: The members of each group side by side.
        size: Members per group (G).
        drop_truncated: Leave out trajectories that a budget has cut.

    Returns:
        The groups with at least two members left; a baseline needs somebody else.
    """
    out = []
    for start in range(0, len(trajectories), size):
        members = [
            t
            for t in trajectories[start : start + size]
            if t.valid
            and any(any(row.mask) for row in t.rows)
            and not (drop_truncated and not t.stop_reason.terminates)
        ]
        if len(members) >= 2:
            out.append(Group(members[0].task, tuple(members)))
    return out


def _bind_estimator(config: GRPOConfig) -> Callable[[Any], Advantages]:
    """Return the estimator with its options; refuses the ones it does not have."""
    estimator: Estimator = ESTIMATORS[config.estimator]
    known = inspect.signature(estimator).parameters
    options: dict[str, Any] = {"gamma": config.gamma}
    if config.baseline is not None:
        options["baseline"] = config.baseline
    if config.discount_weight != "exact":
        options["discount_weight"] = config.discount_weight
    options_of = sorted(name for name, parameter in known.items() if parameter.kind is parameter.KEYWORD_ONLY)
    for option in options:
        if option not in known:
            raise ConfigError(f"Estimator {config.estimator!r} has no option {option!r}; it has {options_of}.")
    estimator([[0.0], [0.0]], **options)  # a wrong value is found before the model is loaded
    return lambda rewards: estimator(rewards, **options)


def _parts(count: int, parts: int) -> list[slice]:
    """Cut ``range(count)`` into at most ``parts`` runs of nearly equal length."""
    bounds = [round(i * count / parts) for i in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds) if b > a]


def _too_long(trajectories: Sequence[Trajectory]) -> bool:
    """Whether no episode had room for a single token behind its prompt; waiting would not help."""
    return bool(trajectories) and all(
        t.valid and t.stop_reason is StopReason.EPISODE_TOKENS and not any(any(row.mask) for row in t.rows)
        for t in trajectories
    )


def _why_empty(trajectories: Sequence[Trajectory], config: GRPOConfig) -> str:
    if _too_long(trajectories):
        return (
            f"The prompts leave no room for an answer in max_episode_tokens={config.max_episode_tokens}. Raise it, or "
            'shorten the prompt, e.g. with instructions="signature" in env_kwargs.'
        )
    faults = fault_summary(trajectories)
    if faults:
        return f"No group had two usable trajectories: {faults} See to the environment and its tools."
    return (
        "No group had two usable trajectories, since budgets cut them and truncated is 'drop'. Raise max_turn_tokens "
        "or max_episode_tokens, or set truncated to keep."
    )


def _give_up(fruitless: Sequence[str]) -> str:
    many = f"{len(fruitless)} updates in a row" if len(fruitless) > 1 else "An update"
    return (
        f"{many} had nothing to learn from, so fault_limit ends the run. The first: {fruitless[0]} Then go on with "
        "--resume, or start again where options must change."
    )
