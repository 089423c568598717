"""What is measured of every update, as pure functions of trajectories and advantages."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from trajgym.rewards.answer import read
from trajgym.rollout import fault_counts
from trajgym.trainers.advantages import Advantages
from trajgym.types import StopReason, Trajectory, discounted_return

__all__ = ["no_signal", "rollout_metrics"]


def rollout_metrics(trajectories: Sequence[Trajectory], gamma: float) -> dict[str, float]:
    """Return the means that describe a batch of trajectories.

    Shares lie in [0, 1]. ``reward`` is the undiscounted sum per trajectory and ``return`` the discounted one;
    ``reward/NAME`` is the part of one rubric term. ``success`` and ``unreadable_share``, that of final answers in which
    no answer is found, are missing where the rubric has no ``accuracy``.
    Invalid trajectories count in ``fault_share`` alone, and in ``faults/CLASS``, their number by the class of what was
    raised; where there are no others, the means are missing.

    Args:
        trajectories: A batch.
        gamma: Discount per turn.
    """
    valid = [t for t in trajectories if t.valid]
    faults = {"fault_share": _mean([float(not t.valid) for t in trajectories])}
    faults |= {f"faults/{kind}": float(count) for kind, count in fault_counts(trajectories).items()}
    if not valid:
        return faults
    steps = [s for t in valid for s in t.steps]
    results = [r for s in steps for r in s.results]
    reasons = [t.stop_reason for t in valid]
    answers = [t.steps[-1].action.text for t in valid if t.stop_reason is StopReason.ANSWERED]
    unknown = sum(s.error is not None and s.error.kind == "unknown_tool" for s in steps)
    out = {
        "reward": _mean([t.total_reward for t in valid]),
        "return": _mean([discounted_return(t.rewards, gamma) for t in valid]),
        "success": _mean([float(any(s.reward_terms.get("accuracy", 0.0) > 0 for s in t.steps)) for t in valid]),
        "turns": _mean([len(t.steps) for t in valid]),
        "calls": _mean([sum(len(s.action.calls) for s in t.steps) for t in valid]),
        "call_share": _mean([float(bool(s.action.calls)) for s in steps]),
        "call_error_share": _mean([float(s.error is not None) for s in steps]),
        "unknown_tool_share": _mean([float(r.error == "unknown_tool") for r in results] + [1.0] * unknown),
        "tool_error_share": _mean([float(r.error is not None) for r in results]),
        "answered_share": _mean([float(r is StopReason.ANSWERED) for r in reasons]),
        "unreadable_share": _mean([float(read(text).value is None) for text in answers]),
        "truncated_share": _mean([float(not r.terminates) for r in reasons]),
        "cut_turn_share": _mean([float(r is StopReason.TURN_TOKENS) for r in reasons]),
        "tokens_per_trajectory": _mean([sum(sum(row.mask) for row in t.rows) for t in valid]),
        **faults,
    }
    names = sorted({name for s in steps for name in s.reward_terms})
    if names and "accuracy" not in names:
        del out["success"], out["unreadable_share"]
    for name in names:
        out[f"reward/{name}"] = _mean([sum(s.reward_terms.get(name, 0.0) for s in t.steps) for t in valid])
    return out


def no_signal(group: Advantages) -> bool:
    """Whether a group's advantages are all zero, so that it teaches nothing."""
    return max((abs(a) for row in group for a in row), default=0.0) <= 1e-12


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
