"""Which options of RLAIF may differ when a run goes on: those on which nothing in its folder depends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.resume_options import Changes, changes
from trajgym.trainers.runfolder import finished_checkpoints

__all__ = ["changes_within", "is_judged"]

_SAMPLING = ("tasks", "candidates", "seed")
_JUDGING = ("judge", "judge_tokens", "judge_context", "judging", "criterion", "reference", "least_gap", "most_per_task")
_MEASURING = ("eval_tasks", "eval_kwargs")

# What of the policy's options the answers depend on, and the model that a reward model begins with.
_PLAYED = {"model", "dtype", "thinking", "env", "env_kwargs", "protocol", "temperature"}
_PLAYED |= {"max_turn_tokens", "max_episode_tokens", "seed"}


def changes_within(
    folder: Path, before: Mapping[str, Any], now: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Changes:
    """Compare the options of a run with those of its continuation; one counts once something was made with it.

    The training of the reward model and of the policy are runs of their own, which look at their own options when they
    go on. Of verdicts each says by which judge it is, so they bind nobody before there are pairs.

    Args:
        folder: The run's folder.
        before: As they were stored.
        now: As they are.
        defaults: What an option was that did not exist yet.
    """
    made = (
        ((folder / "candidates.jsonl").exists(), _SAMPLING),
        (is_judged(folder), _JUDGING),
        ((folder / "reward-model" / "report.json").exists(), ("reward_model",)),
        (bool(finished_checkpoints(folder / "policy" / "checkpoints")), ("terms",)),
        ((folder / "before.jsonl").exists(), _MEASURING),
        ((folder / "after.jsonl").exists(), ("policy",)),
    )
    bound = {name for exists, names in made if exists for name in names}
    if (folder / "candidates.jsonl").exists() and _played(before) != _played(now):
        bound.add("policy")
    return changes({**before, **{name: now[name] for name in now if name not in bound}}, now, defaults)


def is_judged(folder: Path) -> bool:
    """Whether the judge's preferences are there."""
    return (folder / "pairs.jsonl").exists() and (folder / "judged.json").exists()


def _played(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the answers depend on."""
    policy = options.get("policy") or {}
    defaults = GRPOConfig.model_construct(seed=options.get("seed", 0)).plain()
    return {name: policy.get(name, defaults[name]) for name in _PLAYED}
