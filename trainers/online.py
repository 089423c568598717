"""Online mode: go on from what a deployed policy has done, without spoiling it.

Logged trajectories are sifted, the policy learns from what is left, and is measured before and after: on tasks of the
same kind, and on tasks that it must not forget. When it is clearly worse at either, the result is the model it began
with. An audit says what was used, what was not, and why.

A log is older than the policy that learns from it. A token of it counts min(π/π_log, C), with π the policy that begins
the step and π_log what the log says of itself.

Source: truncated importance sampling, E. Ionides 2008.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajgym.envs.make import make
from trajgym.errors import ConfigError
from trajgym.evaluation.evaluate import fit_arguments
from trajgym.evaluation.records import write_jsonl
from trajgym.evaluation.robustness import Forgetting, check_forgetting
from trajgym.evaluation.samples import samples_of
from trajgym.policies.llm import LLMPolicy
from trajgym.rollout import derive_seed
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.credit import Credit
from trajgym.trainers.data_kept import keep_data
from trajgym.trainers.data_rows import record
from trajgym.trainers.grpo import GRPOTrainer
from trajgym.trainers.held_out import HeldOut
from trajgym.trainers.interrupt import Interrupt, Interrupted
from trajgym.trainers.models import add_lora, load_model, make_policy, pick_device, token_logprobs
from trajgym.trainers.online_config import OnlineConfig
from trajgym.trainers.online_filter import Sifted, read_logs, sift, sift_for_imitation, sift_for_policy
from trajgym.trainers.pipeline_state import write_text
from trajgym.trainers.player import Played
from trajgym.trainers.preference_sources import by_task
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.reward_plan import reward_plan
from trajgym.trainers.runfolder import RunFolder, storage_errors
from trajgym.trainers.schedule import TaskSchedule
from trajgym.trainers.sft import policy_of, train_sft
from trajgym.trainers.sft_config import SFTConfig
from trajgym.trainers.sft_rows import make_rows, split_samples
from trajgym.trainers.token_pass import per_token
from trajgym.trainers.trained import find_source
from trajgym.trainers.trl_version import require_trl
from trajgym.trainers.writers import check_writers
from trajgym.types import Group, Trajectory, to_json

__all__ = ["Online", "train_online"]


@dataclass(frozen=True)
class Online:
    """What came of it.

    Args:
        folder: Everything that was left behind.
        model: What to use from now on: the trained run's folder, or the model it began with.
        target: Before and after, on held-out tasks of the log's kind.
        guard: The same on tasks that must not be forgotten.
        audit: What ``audit.json`` holds.
    """

    folder: Path
    model: str
    target: Forgetting
    guard: Forgetting
    audit: dict[str, Any]

    @property
    def rolled_back(self) -> bool:
        """Whether the training was thrown away, since the model is clearly worse than before at one of the two."""
        return self.target.forgot or self.guard.forgot


def train_online(config: OnlineConfig) -> Online:
    """Sift the log, learn from it, measure, and keep the better model.

    Args:
        config: All options.

    Raises:
        ConfigError, DataError, TemplateError, CheckpointError: Before anything is learned.
        StorageError, TrainingError: During the training; what stands in the folder's ``train/`` is intact.
        Interrupted: After Ctrl-C.
    """
    if not config.logs:
        raise ConfigError("logs names no log to learn from. Give --logs and a run's folder, or a file of trajectories.")
    options = config.policy_options() if config.mode == "policy" else config.imitation_options()
    _require_free(config)
    check_writers(options.monitors)
    base = _whole_model(config.model)
    target, guard = _held_out(config)
    found = sift(read_logs(config.logs))
    gaps: dict[int, float] = {}
    if isinstance(options, GRPOConfig):
        _sift_for_policy(found, options, config.max_gap, gaps)
    else:
        sift_for_imitation(found, config.min_reward)
        _try_imitation(options, [item.trajectory for item in found.used])
    folder = RunFolder(config, "online").path  # after everything that can be wrong with the options
    audit = _audit(config, found, gaps)
    _write_audit(folder, audit, found)
    print(_said(audit), flush=True)

    before = [samples_of(exam.play(base, options)) for exam in (target, guard)]
    used = [item.trajectory for item in found.used]
    try:
        run = _improve(config, used) if isinstance(options, GRPOConfig) else train_sft(options, samples=used)
    except Interrupted as stop:  # it is measured before and after in one go
        raise Interrupted(f"Stopped while it learned from the log; begin again with --overwrite: {folder}.") from stop
    after = [samples_of(exam.play(run, options)) for exam in (target, guard)]
    gained, kept = (
        check_forgetting(("before", old), ("after", new), tolerance=config.guard_tolerance, seed=config.seed)
        for old, new in zip(before, after, strict=True)
    )
    worse = gained.forgot or kept.forgot
    model = config.model if worse else str(run)
    audit |= {"target": str(gained.comparison), "guard": str(kept.comparison), "rolled_back": worse, "model": model}
    audit["undecided"] = gained.unknown or kept.unknown  # too few tasks to rule a loss out
    _write_audit(folder, audit, found)
    return Online(folder, model, gained, kept, audit)


class _FromLog(GRPOTrainer):
    """Learns from groups that were played before, in place of playing."""

    groups: Sequence[Group] = ()

    def gather(self, interrupt: Interrupt) -> Played:
        """Deal the update's groups: each once per pass, newly shuffled in each."""
        interrupt.check()
        size, chosen = min(self.config.groups_per_update, len(self.groups)), []
        for place in range(self.update * size, (self.update + 1) * size):
            turn, index = divmod(place, len(self.groups))
            order = list(range(len(self.groups)))
            random.Random(derive_seed(self.config.seed, "online", turn)).shuffle(order)
            chosen.append(self.groups[order[index]])
        trajectories = [t for group in chosen for t in group.trajectories]
        return Played(trajectories, chosen, {}, extra_steps=0, extra_faults=0)


def _improve(config: OnlineConfig, used: Sequence[Trajectory]) -> Path:
    groups = [Group(used[g[0]].task, tuple(used[i] for i in g)) for g in by_task(used)]
    at_once = min(config.policy_options().groups_per_update, len(groups))
    trainer = _FromLog(config.policy_options(math.ceil(config.epochs * len(groups) / at_once)))
    trainer.groups = groups
    keep_data(trainer.folder.path, _record(used))  # these, and not the environment's own
    return trainer.run()


def _record(used: Sequence[Trajectory]) -> dict[str, Any]:
    """Return what tells logged trajectories from others."""
    rows = [{"task": t.task.id, "prompt": to_json(t.prompt), "turns": [s.action.text for s in t.steps]} for t in used]
    return record("logged trajectories", rows)


def _require_free(config: OnlineConfig) -> None:
    """Refuse a folder that holds a run: there is no going on with it."""
    if (config.folder / "config.yaml").exists() and not config.overwrite:
        raise ConfigError(
            f"{config.folder} holds a run already. Replace it with --overwrite, or choose another --name."
        )


def _try_policy(policy: LLMPolicy, options: GRPOConfig) -> None:
    """Find what is wrong with the options of a policy gradient, as its run would."""
    Credit(options)
    env = make(options.env, **options.env_arguments)
    try:
        TaskSchedule(env, options)
        reward_plan(env, options)
        fit_arguments(policy, env, options.env_arguments)
    finally:
        env.close()


def _try_imitation(options: SFTConfig, used: Sequence[Trajectory]) -> None:
    """Find what is wrong with the options of a supervised run, as it would: do rows fit, has the model such layers?"""
    require_trl()
    model, tokenizer = load_model(options.model, dtype=options.dtype, device=pick_device(options.device))
    renderer = policy_of(options, model, tokenizer).renderer
    rows = make_rows(options, renderer, split_samples(options, used))
    if options.packing:
        from trajgym.trainers.sft_packing import require_apart  # brings TRL along

        require_apart(model, rows.train, pad_id=renderer.end_id)
    _try_adapters(model, options)


def _try_adapters(model: Any, options: GRPOConfig | SFTConfig) -> None:
    """Give a model, which is thrown away then, the adapters that would be trained."""
    if options.use_lora:
        add_lora(
            model, rank=options.lora_rank, alpha=options.lora_alpha, targets=options.lora_targets, seed=options.seed
        )


def _sift_for_policy(found: Sifted, options: GRPOConfig, max_gap: float, gaps: dict[int, float]) -> None:
    """Compare the log with the present policy, and note how far each trajectory is from it."""
    device = pick_device(options.device)
    model, tokenizer = load_model(options.model, dtype=options.dtype, device=device)
    policy = make_policy(model, tokenizer, options)
    _try_policy(policy, options)
    ranks = Ranks(cpu=device.type == "cpu", deadline=options.rank_deadline)

    def measure(trajectories: Sequence[Trajectory]) -> list[float]:
        tokens = per_token(
            trajectories,
            lambda micro: (
                token_logprobs(model, micro.to(device), options.temperature)[0].cpu() - micro.sampler_logp
            ).abs(),
            ranks=ranks,
            max_tokens=options.microbatch_tokens,
        )
        means = []
        for trajectory, turns in zip(trajectories, tokens, strict=True):
            flat = [value for turn in turns for value in turn]
            means.append(math.fsum(flat) / max(1, len(flat)))
            gaps[id(trajectory)] = means[-1]
        return means

    sift_for_policy(found, policy.renderer, measure, max_gap)
    _try_adapters(model, options)


def _held_out(config: OnlineConfig) -> tuple[HeldOut, HeldOut]:
    both = (
        (config.env, config.env_kwargs, config.eval_split),
        (config.guard_env, config.guard_env_kwargs, config.guard_split),
    )
    target, guard = (
        HeldOut(
            env,
            {**arguments, **({"split": split} if split else {})},
            limit=config.eval_tasks,
            seed=config.seed,
            turn_tokens=config.eval_turn_tokens,
        )
        for env, arguments, split in both
    )
    return target, guard


def _whole_model(name: str) -> str:
    source = find_source(name)
    if source.adapter is not None:
        raise ConfigError(f"{name} is an adapter; merge it first with trajgym export, and give the merged folder.")
    return source.base


def _audit(config: OnlineConfig, found: Sifted, gaps: dict[int, float]) -> dict[str, Any]:
    used = [item.trajectory for item in found.used]
    away = [gaps[id(t)] for t in used if id(t) in gaps]
    sources = {item.source for item in (*found.used, *(d.logged for d in found.dropped))}
    return {
        "model_before": config.model,
        "mode": config.mode,
        "logs": sorted(sources),
        "given": len(used) + len(found.dropped),
        "used": len(used),
        "tasks": len(by_task(used)),
        "dropped": found.reasons,
        "fingerprint": _record(used)["fingerprint"],
        "mean_reward": math.fsum(t.total_reward for t in used) / len(used),
        "gap_mean": math.fsum(away) / len(away) if away else None,  # nats per token
        "gap_most": max(away, default=None),
    }


def _write_audit(folder: Path, audit: dict[str, Any], found: Sifted) -> None:
    write_text(folder / "audit.json", json.dumps(audit, indent=1) + "\n")
    kept = [(item, "") for item in found.used] + [(item.logged, item.reason) for item in found.dropped]
    rows = [
        {"log": item.source, "number": item.number, "task_id": item.trajectory.task.id, "dropped": reason}
        for item, reason in kept
    ]
    with storage_errors(folder):
        write_jsonl(folder / "audit.jsonl", rows)


def _said(audit: dict[str, Any]) -> str:
    dropped = "".join(f"; left out: {count} {reason}" for reason, count in audit["dropped"].items())
    return f"{audit['used']} of {audit['given']} logged trajectories of {audit['tasks']} tasks are used{dropped}."
