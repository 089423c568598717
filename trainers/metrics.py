"""What is measured of every update, as pure functions of trajectories and advantages."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from trajgym.errors import DataError
from trajgym.rewards.answer import read
from trajgym.rewards.answer_kinds import answer_kind, grade
from trajgym.rewards.criteria import term_returns, variance_shares
from trajgym.rewards.terms import accuracy
from trajgym.rollout import fault_counts
from trajgym.types import StopReason, Trajectory, discounted_return

__all__ = ["no_signal", "rollout_metrics"]


def rollout_metrics(
    trajectories: Sequence[Trajectory], gamma: float, *, accuracy_paid: bool = True
) -> dict[str, float]:
    """Return the means that describe a batch of trajectories.

    Shares lie in [0, 1]. ``reward`` is the undiscounted sum per trajectory and ``return`` the discounted one;
    ``reward/NAME`` is the part of one rubric term; ``env_steps`` counts the turns played. ``success`` is the share of
    right answers: by the rubric's ``accuracy``, or graded here where the rubric does not pay for it; it is missing
    where tasks have no answer to grade. ``unreadable_share`` is that of final answers in which no answer is found,
    ``format_share`` that of those which mark it. ``reward_variance/NAME`` is a term's share of the return's variance.
    Invalid trajectories count in ``fault_share`` alone, and in ``faults/CLASS``, their number by the class of what was
    raised; where there are no others, the means are missing.

    Args:
        trajectories: A batch.
        gamma: Discount per turn.
        accuracy_paid: Whether the weight of ``accuracy``, if the rubric has it, is above 0 at present.
    """
    valid = [t for t in trajectories if t.valid]
    faults = {"fault_share": _mean([float(not t.valid) for t in trajectories])}
    faults |= {f"faults/{kind}": float(count) for kind, count in fault_counts(trajectories).items()}
    if not valid:
        return faults
    steps = [s for t in valid for s in t.steps]
    results = [r for s in steps for r in s.results]
    reasons = [t.stop_reason for t in valid]
    answers = [read(t.steps[-1].action.text) for t in valid if t.stop_reason is StopReason.ANSWERED]
    unknown = sum(s.error is not None and s.error.kind == "unknown_tool" for s in steps)
    names = sorted({name for s in steps for name in s.reward_terms})
    success = _success(valid, "accuracy" in names and accuracy_paid)
    out = {
        "env_steps": float(sum(len(t.steps) for t in trajectories)),
        "reward": _mean([t.total_reward for t in valid]),
        "return": _mean([discounted_return(t.rewards, gamma) for t in valid]),
        "turns": _mean([len(t.steps) for t in valid]),
        "calls": _mean([sum(len(s.action.calls) for s in t.steps) for t in valid]),
        "call_share": _mean([float(bool(s.action.calls)) for s in steps]),
        "call_error_share": _mean([float(s.error is not None) for s in steps]),
        "unknown_tool_share": _mean([float(r.error == "unknown_tool") for r in results] + [1.0] * unknown),
        "tool_error_share": _mean([float(r.error is not None) for r in results]),
        "answered_share": _mean([float(r is StopReason.ANSWERED) for r in reasons]),
        "unreadable_share": _mean([float(reading.value is None) for reading in answers]),
        "format_share": _mean([float(reading.marked) for reading in answers]),
        "truncated_share": _mean([float(not r.terminates) for r in reasons]),
        "cut_turn_share": _mean([float(r is StopReason.TURN_TOKENS) for r in reasons]),
        "tokens_per_trajectory": _mean([sum(sum(row.mask) for row in t.rows) for t in valid]),
        **faults,
    }
    if success is None:
        del out["unreadable_share"], out["format_share"]  # answers that nobody can grade need not be readable
    else:
        out["success"] = success
    shares = variance_shares([term_returns(t, gamma) for t in valid])
    out |= {f"reward_variance/{name}": share for name, share in shares.items()}
    for name in names:
        out[f"reward/{name}"] = _mean([sum(s.reward_terms.get(name, 0.0) for s in t.steps) for t in valid])
    return out


def _success(trajectories: Sequence[Trajectory], paid: bool) -> float | None:
    if paid:
        return _mean([float(any(s.reward_terms.get("accuracy", 0.0) > 0 for s in t.steps)) for t in trajectories])
    try:
        for task in {t.task.id: t.task for t in trajectories}.values():
            grade("", task.answer, answer_kind(task))  # whether there is anything to compare with
    except DataError:
        return None
    return _mean([accuracy(t.steps[-1], t.task, t.steps[:-1]) for t in trajectories])


_NOTHING = 1e-10  # what rounding leaves of equal rewards, also once it is divided by the least of spreads (1e-4)


def no_signal(group: Sequence[Sequence[float | Sequence[float]]]) -> bool:
    """Whether a group's advantages, one per turn or per token of each turn, are all zero: then it teaches nothing."""
    turns = (a for row in group for a in row)
    numbers = (a for turn in turns for a in (turn if isinstance(turn, Sequence) else (turn,)))
    return max(map(abs, numbers), default=0.0) <= _NOTHING


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
