"""What a reward is like, as seen in what it has paid: does it tell success, does it teach, is it bounded.

Everything is computed from the named parts of trajectories' rewards, so it is as good for an audit as for a running
training: groups are trajectories of the same task, as the trainer compares them.

>>> parts = [{"accuracy": 1.0, "cost": -0.1}, {"accuracy": 0.0, "cost": -0.1}, {"accuracy": 0.0, "cost": -0.3}]
>>> {name: round(share, 2) for name, share in variance_shares(parts).items()}
{'accuracy': 0.89, 'cost': 0.11}
>>> signal_share([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
0.5
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trajgym.errors import ConfigError
from trajgym.rewards.functions import is_number
from trajgym.types import Trajectory, discounted_return

__all__ = [
    "DOMINANT",
    "MOST_SPREAD",
    "RewardCriteria",
    "reward_criteria",
    "signal_share",
    "success_order",
    "term_returns",
    "variance_shares",
]

DOMINANT = 0.9
"""Share of the reward's variance above which the other terms hardly count."""

MOST_SPREAD = 10.0
"""Range of returns, in units of what success is worth, above which single trajectories outweigh all others."""

_ROUNDING = 1e-9


@dataclass(frozen=True)
class RewardCriteria:
    """What four criteria of a good reward come to.

    Args:
        success_order: Defined success: of all pairs of a solved and an unsolved trajectory of one task, the share in
            which the solved one earns more. ``None`` when it is unknown, or there is no such pair.
        signal: Gradient signal: share of groups whose returns are not all the same; only these teach anything.
        low: Smallest return.
        high: Largest return.
        deviation: Standard deviation of all returns.
        spread: Bounded variance: ``high − low`` in units of what the mean solved trajectory earns beyond the mean
            unsolved one; ``None`` where that is nothing or unknown.
        additive: Composable: whether the parts of every step add up to its reward.
        shares: Each term's share of the variance of returns, see :func:`variance_shares`.
    """

    success_order: float | None
    signal: float
    low: float
    high: float
    deviation: float
    spread: float | None
    additive: bool
    shares: Mapping[str, float]

    @property
    def dominant(self) -> str | None:
        """The term that makes nearly all the variance, where there are others beside it."""
        return next((name for name, share in self.shares.items() if share > DOMINANT and len(self.shares) > 1), None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each criterion that is not met."""
        found = []
        if self.success_order is not None and self.success_order < 1.0:
            found.append(
                f"A solved task earns more than an unsolved one in {self.success_order:.0%} of the pairs only."
            )
        if self.signal == 0.0:
            found.append("No group has two different returns: there is nothing to learn from.")
        if self.spread is not None and self.spread > MOST_SPREAD:
            found.append(
                f"Returns range over {self.spread:.0f} times what success is worth; cap the term that reaches so far."
            )
        if not self.additive:
            found.append("The parts of a step do not add up to its reward, so no term can be weighed by itself.")
        if self.dominant is not None:
            found.append(
                f"{self.dominant!r} makes {self.shares[self.dominant]:.0%} of the variance; beside it the other terms "
                "hardly count."
            )
        return tuple(found)


def reward_criteria(
    groups: Sequence[Sequence[Trajectory]], *, gamma: float = 1.0, solved: Sequence[Sequence[bool]] | None = None
) -> RewardCriteria:
    """Measure what rewards have been like.

    Args:
        groups: Trajectories, those of one task together; invalid ones are left out.
        gamma: Discount per turn, in [0, 1].
        solved: Whether each trajectory solved its task, in the same shape. Never ask the reward itself about that.

    Raises:
        ConfigError: For no valid trajectory, another shape, or another discount.
    """
    if not is_number(gamma) or not 0.0 <= gamma <= 1.0:
        raise ConfigError(f"gamma must lie in [0, 1], got {gamma!r}.")
    if solved is not None and [len(group) for group in groups] != [len(flags) for flags in solved]:
        raise ConfigError("solved= must hold one flag for each trajectory, grouped as they are.")
    valid = [[t.valid for t in group] for group in groups]
    kept = [[t for t, ok in zip(group, oks, strict=True) if ok] for group, oks in zip(groups, valid, strict=True)]
    every = [t for group in kept for t in group]
    if not every:
        raise ConfigError("The criteria of a reward need at least one valid trajectory, got none.")
    returns = [[discounted_return(t.rewards, gamma) for t in group] for group in kept]
    flat = [value for group in returns for value in group]
    order = worth = None
    if solved is not None:
        flags = [[f for f, ok in zip(row, oks, strict=True) if ok] for row, oks in zip(solved, valid, strict=True)]
        order, worth = success_order(returns, flags), _worth(returns, flags)
    return RewardCriteria(
        success_order=order,
        signal=signal_share(returns),
        low=min(flat),
        high=max(flat),
        deviation=statistics.pstdev(flat),
        spread=None if worth is None or worth <= _ROUNDING else (max(flat) - min(flat)) / worth,
        additive=all(
            math.isclose(math.fsum(s.reward_terms.values()), s.reward, abs_tol=1e-6) for t in every for s in t.steps
        ),
        shares=variance_shares([term_returns(t, gamma) for t in every]),
    )


def term_returns(trajectory: Trajectory, gamma: float = 1.0) -> dict[str, float]:
    """Return ``Σ_t γ^t r_t`` of each term of the reward."""
    paid: dict[str, float] = {}
    for turn, step in enumerate(trajectory.steps):
        for name, value in step.reward_terms.items():
            paid[name] = paid.get(name, 0.0) + gamma**turn * value
    return paid


def variance_shares(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the share of the variance of the sum that each part makes: ``Cov(part, sum) / Var(sum)``.

    Shares add up to 1. One below 0 belongs to a part that evens out what the others do, such as a cost of what they
    pay for. Without any variance all shares are 0.

    Args:
        parts: What each term paid, one mapping for each trajectory; a term that is missing paid nothing.
    """
    names = dict.fromkeys(name for row in parts for name in row)
    totals = [math.fsum(row.values()) for row in parts]
    mean = math.fsum(totals) / len(totals) if totals else 0.0
    off = [total - mean for total in totals]
    variance = math.fsum(x * x for x in off)
    if variance <= _ROUNDING**2:
        return dict.fromkeys(names, 0.0)
    return {
        name: math.fsum(row.get(name, 0.0) * x for row, x in zip(parts, off, strict=True)) / variance for name in names
    }


def signal_share(returns: Sequence[Sequence[float]]) -> float:
    """Return the share of groups with two returns that differ; the others have no advantage but 0."""
    differ = [max(group) - min(group) > _ROUNDING for group in returns if group]
    return sum(differ) / len(differ) if differ else 0.0


def success_order(returns: Sequence[Sequence[float]], solved: Sequence[Sequence[bool]]) -> float | None:
    """Return the share of pairs within a group, one solved and one not, in which the solved one earns more.

    Args:
        returns: Of each trajectory, group by group.
        solved: Whether it solved its task.

    Returns:
        The share, ties counting as failures; ``None`` when no group has both.
    """
    pairs = [
        good - bad > _ROUNDING
        for group, flags in zip(returns, solved, strict=True)
        for good, right in zip(group, flags, strict=True)
        for bad, other in zip(group, flags, strict=True)
        if right and not other
    ]
    return sum(pairs) / len(pairs) if pairs else None


def _worth(returns: Sequence[Sequence[float]], solved: Sequence[Sequence[bool]]) -> float | None:
    """Return what a solved trajectory earns beyond an unsolved one in the mean, ``None`` where one kind is missing."""
    kinds: dict[bool, list[float]] = {True: [], False: []}
    for group, flags in zip(returns, solved, strict=True):
        for value, right in zip(group, flags, strict=True):
            kinds[bool(right)].append(value)
    return statistics.fmean(kinds[True]) - statistics.fmean(kinds[False]) if all(kinds.values()) else None
