"""From trajectories to the groups that can be learned from, and words for when there are none."""

from __future__ import annotations

from collections.abc import Sequence

from trajgym.rollout import fault_summary
from trajgym.trainers.config import GRPOConfig
from trajgym.types import Group, StopReason, Trajectory

__all__ = ["give_up", "prompts_too_long", "usable_groups", "why_empty"]


def usable_groups(
    trajectories: Sequence[Trajectory], size: int, *, drop_truncated: bool = False, least: int = 2
) -> list[Group]:
    """Gather trajectories into groups of those that say something about the policy.

    Args:
        trajectories: The members of each group side by side.
        size: Members per group (G).
        drop_truncated: Leave out trajectories that a budget has cut.
        least: Members that a group must have left; a baseline from the group needs somebody else.
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
        if len(members) >= least:
            out.append(Group(members[0].task, tuple(members)))
    return out


def prompts_too_long(trajectories: Sequence[Trajectory]) -> bool:
    """Whether no episode had room for a single token behind its prompt; waiting would not help."""
    return bool(trajectories) and all(
        t.valid and t.stop_reason is StopReason.EPISODE_TOKENS and not any(any(row.mask) for row in t.rows)
        for t in trajectories
    )


def why_empty(trajectories: Sequence[Trajectory], config: GRPOConfig) -> str:
    """Say why no group was usable, and what to change."""
    if prompts_too_long(trajectories):
        return (
            f"The prompts leave no room for an answer in max_episode_tokens={config.max_episode_tokens}. Raise it, or "
            'shorten the prompt, e.g. with instructions="signature" in env_kwargs.'
        )
    faults = fault_summary(trajectories)
    if faults:
        return f"No group had enough usable trajectories: {faults} See to the environment and its tools."
    if config.truncated == "drop":
        return (
            "No group had enough usable trajectories, since budgets cut them and truncated is 'drop'. Raise "
            "max_turn_tokens or max_episode_tokens, or set truncated to keep."
        )
    return "No group had enough trajectories in which the policy wrote anything."


def give_up(fruitless: Sequence[str]) -> str:
    """Say why a run ends after so many updates with nothing to learn from.

    Args:
        fruitless: The reason of each of them.
    """
    many = f"{len(fruitless)} updates in a row" if len(fruitless) > 1 else "An update"
    return (
        f"{many} had nothing to learn from, so fault_limit ends the run. The first: {fruitless[0]} Then go on with "
        "--resume, or start again where options must change."
    )
