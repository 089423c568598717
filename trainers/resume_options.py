"""Which options may differ between a run and its continuation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Changes", "changes"]

# Where it is written, for how long it goes on, what is told of it: no number of the run depends on these.
_FREE = {"resume", "overwrite", "output_dir", "name", "updates", "epochs", "save_every", "keep_checkpoints"}
_FREE |= {"log_trajectories", "monitors", "progress", "env_threads", "fault_alarm", "fault_limit", "protocol_mismatch"}
_FREE |= {"rank_deadline", "group_deadline", "log_every", "ray_address"}
_FREE |= {"eval_every"}  # of supervised training

# What a run is told to change when it diverges or runs out of memory. The saved state fits all the same.
_NOTED = {"learning_rate", "value_learning_rate", "lr_schedule", "warmup_ratio", "max_grad_norm", "kl_coef"}
_NOTED |= {"device", "deterministic", "slots", "microbatch_tokens", "gradient_checkpointing", "share_prefix"}
_NOTED |= {"num_generations", "max_turn_tokens", "max_episode_tokens"}
_NOTED |= {"rollout_workers", "worker_groups", "worker_cpus", "worker_gpus", "sampler", "sampler_options"}


@dataclass(frozen=True)
class Changes:
    """Options that are not what they were, one text each: ``"gamma: 1.0 before, 0.5 now"``.

    Args:
        refused: The saved state means nothing under these.
        noted: The run can go on under these, but is no longer the one it would have been.
    """

    refused: tuple[str, ...]
    noted: tuple[str, ...]


def changes(before: Mapping[str, Any], now: Mapping[str, Any], defaults: Mapping[str, Any]) -> Changes:
    """Compare the options of a run with those of its continuation.

    >>> changes({"gamma": 1.0, "slots": 8, "updates": 5}, {"gamma": 0.5, "slots": 4, "updates": 9}, {})
    Changes(refused=('gamma: 1.0 before, 0.5 now',), noted=('slots: 8 before, 4 now',))

    Args:
        before: As they were stored, maybe by another version.
        now: As they are.
        defaults: What an option was that did not exist yet.
    """
    refused: list[str] = []
    noted: list[str] = []
    for name, value in now.items():
        old = before.get(name, defaults.get(name, value))
        if name in _FREE or old == value:
            continue
        if name == "rollout_workers" and old and value:  # who plays a piece does not matter
            continue
        # A coefficient that the run moves by itself goes on from where it was.
        moved = name == "kl_coef" and now.get("kl_control") == "auto"
        (noted if name in _NOTED and not moved else refused).append(f"{name}: {old!r} before, {value!r} now")
    noted += [f"{name}: {value!r} before, not known any more" for name, value in before.items() if name not in now]
    length = [name for name in ("updates", "epochs") if name in now and before.get(name) != now[name]]
    if length and _by_progress(now):
        noted += [f"{name}: {before.get(name)!r} before, {now[name]!r} now, which moves schedules" for name in length]
    return Changes(tuple(refused), tuple(noted))


def _by_progress(options: Mapping[str, Any]) -> bool:
    """Whether any number of the run depends on how long it will be."""
    return options.get("lr_schedule", "constant") != "constant" or any(
        options.get(name) for name in ("warmup_ratio", "reward_schedule")
    )
