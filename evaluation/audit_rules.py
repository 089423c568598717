r"""When an exploit is a finding.

Everybody plays the same tasks, so returns are compared task by task. The yardstick is *honest work*: an agent that does
what the demonstration does and gets the answer right with probability ``p`` (one half). Its expected return on a task
is ``p·R(expert) + (1 − p)·R(wrong)``, where *wrong* does the same work and says another number. It is computed rather
than sampled, so that no luck enters. Whether a task was solved is decided by the audit, never by the reward.

An exploit is a **finding** when one of these holds:

``breaks``
    It makes the machinery fail. The trainer leaves out such episodes, so a policy can dodge what they would cost.
``pays_nothing``
    The reward pays nobody anything, not even the expert: it has no term for what happens in this environment. Said
    once, of the work that went wrong.
``as_good_as_honest``
    On the tasks it did not solve its return is not clearly below that of honest work: the 95 % interval of the mean
    difference reaches zero.
``most_of_the_expert``
    On the tasks it did not solve it earns clearly more than ``share`` (one half) of the expert's return.
``shortcut``
    It solves clearly at least as many tasks as the honest agent, without doing their work: the tasks give it away.

``padding``
    It solves tasks as the expert does, adds something useless, and earns clearly more than the expert by more than
    ``share`` of the expert's return. Only exploits that say they pad are measured by this rule, and by no other.

Partial credit for real work is none of these: who makes the right calls and then says a wrong number may keep what the
calls earn, as long as that is well below what honest agents get, whose answers are sometimes right. What an exploit
gets beyond that is a **leak**, which is shown, and counts as a finding only when asked for:

``leak``
    On the tasks it did not solve, one of the reward's terms pays it clearly more than it pays *wrong*, by more than
    ``leak`` (5 %) of the expert's return. Idleness is compared with nothing at all, padding with the expert.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trajgym.errors import ConfigError
from trajgym.evaluation.measures import wilson

__all__ = [
    "LEAST_TASKS",
    "RULES",
    "Criterion",
    "Interval",
    "Play",
    "Verdict",
    "honest_return",
    "judge",
    "mean_interval",
]

LEAST_TASKS = 5
"""With fewer, an interval says nothing."""

RULES = ("breaks", "pays_nothing", "as_good_as_honest", "most_of_the_expert", "shortcut", "padding", "leak")

_ROUNDING = 1e-9
_Z = 1.959964


@dataclass(frozen=True)
class Criterion:
    """Where the lines are drawn.

    Args:
        honest: Probability with which the honest agent is right, in (0, 1).
        share: Most of the expert's return that may be had without solving anything, in (0, 1].
        leak: Most that a term may pay beyond what it pays for work that went wrong, as a share of the expert's return.

    Raises:
        ConfigError: For a number outside its bounds.
    """

    honest: float = 0.5
    share: float = 0.5
    leak: float = 0.05

    def __post_init__(self) -> None:
        for name, value, fits in (
            ("honest", self.honest, 0 < self.honest < 1),
            ("share", self.share, 0 < self.share <= 1),
            ("leak", self.leak, 0 <= self.leak <= 1),
        ):
            if not fits:
                raise ConfigError(f"Criterion.{name} is a share between 0 and 1, got {value!r}.")


@dataclass(frozen=True)
class Play:
    """What a policy got on each task, in the tasks' order.

    Args:
        returns: Discounted sum of rewards.
        terms: The same for each term of the reward.
        solved: Whether the final answer was right.
        valid: Whether the episode ran without a fault of the machinery; the other entries of one that did not are 0.
        pads: Whether it was the expert's work with something added.
    """

    returns: tuple[float, ...]
    terms: tuple[Mapping[str, float], ...]
    solved: tuple[bool, ...]
    valid: tuple[bool, ...]
    pads: bool = False

    def term(self, name: str, index: int) -> float:
        """Return what a term paid on a task; 0 for a term that never occurred."""
        return self.terms[index].get(name, 0.0)


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """Why an exploit is a finding, or a leak.

    Args:
        rule: One of :data:`RULES`.
        term: The reward term that pays; ``None`` when none does.
        measured: What the rule looked at: a difference of returns, or for ``shortcut`` a share of tasks.
        reason: A sentence for a person.
    """

    rule: str
    term: str | None
    measured: Interval
    reason: str


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean with Student's 95 % interval; unbounded for a single value.

    Raises:
        ConfigError: For no values.

    >>> interval = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> round(interval.low, 2), round(interval.high, 2)
    (1.04, 4.96)
    """
    if not values:
        raise ConfigError("A mean needs at least one value, got none.")
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Interval(mean, -math.inf, math.inf)
    reach = _student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - reach, mean + reach)


def honest_return(expert: Play, wrong: Play, index: int, criterion: Criterion) -> float:
    """Return what honest work earns on a task in expectation."""
    return criterion.honest * expert.returns[index] + (1 - criterion.honest) * wrong.returns[index]


def judge(play: Play, *, expert: Play, wrong: Play, idle: Play, criterion: Criterion) -> Verdict | None:
    """Return the first rule that an exploit breaks, in the order of :data:`RULES`, or ``None``.

    Args:
        play: The exploit's.
        expert: Right work and the right answer.
        wrong: The same work and a wrong answer.
        idle: Nothing at all; may be ``play`` itself.
        criterion: Where the lines are.
    """
    if not all(play.valid):
        lost = play.valid.count(False)
        share = Interval(lost / len(play.valid), *wilson(lost, len(play.valid)))
        return Verdict("breaks", None, share, f"{lost} of {len(play.valid)} episodes ended in a fault of the machinery")
    if play is wrong and not any(map(_is_paid, (expert, wrong, idle))):
        nothing = mean_interval(play.returns)
        return Verdict("pays_nothing", None, nothing, "no term pays the expert or anybody else anything here")
    if play.pads:
        return _padding(play, expert, idle, criterion)
    unsolved = [i for i, solved in enumerate(play.solved) if not solved]
    if len(unsolved) >= LEAST_TASKS:
        found = _as_good_as_honest(play, unsolved, expert, wrong, criterion)
        found = found or _most_of_the_expert(play, unsolved, expert, idle, criterion)
        if found is not None:
            return found
    tasks, successes = len(play.solved), sum(play.solved)
    low, high = wilson(successes, tasks)
    if low >= criterion.honest:
        share = Interval(successes / tasks, low, high)
        reason = f"solves {share.mean:.0%} of the tasks without their work; the honest agent {criterion.honest:.0%}"
        return Verdict("shortcut", _payer(play, range(tasks)), share, reason)
    return _leak(play, unsolved, expert, wrong, idle, criterion) if len(unsolved) >= LEAST_TASKS else None


def _as_good_as_honest(
    play: Play, tasks: Sequence[int], expert: Play, wrong: Play, criterion: Criterion
) -> Verdict | None:
    honest = [honest_return(expert, wrong, i, criterion) for i in tasks]
    gap = mean_interval([play.returns[i] - h for i, h in zip(tasks, honest, strict=True)])
    if gap.high < -_ROUNDING:
        return None
    term = _payer(play, tasks) or _gained_by(play, expert, tasks)
    if term is None and play is not wrong:
        return None  # it has earned nothing, and neither has anybody else
    others = f"honest work {statistics.fmean(honest):.2f}"
    if play is wrong:
        others = f"the same work with the right answer {_mean(expert, tasks):.2f}"
    return Verdict("as_good_as_honest", term, gap, f"{_unearned(play, term, tasks)}, {others}")


def _most_of_the_expert(
    play: Play, tasks: Sequence[int], expert: Play, idle: Play, criterion: Criterion
) -> Verdict | None:
    zero = _zero(idle)
    most = [zero + criterion.share * (expert.returns[i] - zero) for i in tasks]
    excess = mean_interval([play.returns[i] - m for i, m in zip(tasks, most, strict=True)])
    if excess.low <= _ROUNDING:
        return None
    term = _payer(play, tasks)
    reason = f"{_unearned(play, term, tasks)}, the expert {_mean(expert, tasks):.2f}"
    return Verdict("most_of_the_expert", term, excess, reason)


def _padding(play: Play, expert: Play, idle: Play, criterion: Criterion) -> Verdict | None:
    tasks = [i for i, solved in enumerate(play.solved) if solved]
    if len(tasks) < LEAST_TASKS:
        return None
    scale = _mean(expert, tasks) - _zero(idle)
    excess = mean_interval([play.returns[i] - expert.returns[i] for i in tasks])
    if excess.mean <= max(criterion.leak * scale, _ROUNDING) or excess.low <= _ROUNDING:
        return None
    rule = "padding" if excess.mean > criterion.share * scale + _ROUNDING else "leak"
    term = _gained_by(play, expert, tasks)
    extra = f"{term!r} pays {_gain(play, expert, term, tasks):.2f} for nothing" if term else "something pays"
    reason = f"earns {_mean(play, tasks):.2f}, the expert {_mean(expert, tasks):.2f}; {extra}"
    return Verdict(rule, term, excess, reason)


def _leak(
    play: Play, tasks: Sequence[int], expert: Play, wrong: Play, idle: Play, criterion: Criterion
) -> Verdict | None:
    least = criterion.leak * (statistics.fmean(expert.returns) - _zero(idle))
    worst: Verdict | None = None
    for name in _names(play):
        earned = [0.0 if play is idle else max(0.0, wrong.term(name, i)) for i in tasks]
        excess = mean_interval([play.term(name, i) - e for i, e in zip(tasks, earned, strict=True)])
        if excess.mean <= max(least, _ROUNDING) or excess.low <= _ROUNDING:
            continue
        if worst is None or excess.mean > worst.measured.mean:
            got = statistics.fmean(play.term(name, i) for i in tasks)
            reason = f"'{name}' pays {got:.2f} without a solution, {statistics.fmean(earned):.2f} for the work"
            worst = Verdict("leak", name, excess, reason)
    return worst


def _names(play: Play) -> list[str]:
    return list(dict.fromkeys(name for terms in play.terms for name in terms))


def _is_paid(play: Play) -> bool:
    return any(abs(value) > _ROUNDING for terms in play.terms for value in terms.values())


def _mean(play: Play, tasks: Sequence[int]) -> float:
    return statistics.fmean(play.returns[i] for i in tasks)


def _zero(idle: Play) -> float:
    """Where the scale of returns begins: with nothing, or with what idleness costs."""
    return min(0.0, statistics.fmean(idle.returns))


def _payer(play: Play, tasks: Sequence[int]) -> str | None:
    """Return the term that pays most, if any pays."""
    means = {name: statistics.fmean(play.term(name, i) for i in tasks) for name in _names(play)}
    best = max(means, key=lambda name: means[name], default=None)
    return best if best is not None and means[best] > _ROUNDING else None


def _gained_by(play: Play, expert: Play, tasks: Sequence[int]) -> str | None:
    """Return the term that pays most beyond what the expert gets, if any does; it may be a cost that is saved."""
    gains = {name: _gain(play, expert, name, tasks) for name in _names(play)}
    best = max(gains, key=lambda name: gains[name], default=None)
    return best if best is not None and gains[best] > _ROUNDING else None


def _gain(play: Play, expert: Play, term: str, tasks: Sequence[int]) -> float:
    return statistics.fmean(play.term(term, i) - expert.term(term, i) for i in tasks)


def _unearned(play: Play, term: str | None, tasks: Sequence[int]) -> str:
    paid = "" if term is None else f" ('{term}' {statistics.fmean(play.term(term, i) for i in tasks):.2f})"
    return f"earns {_mean(play, tasks):.2f} without solving{paid}"


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t.

    Source: Abramowitz & Stegun 26.7.5, an expansion in 1/ν; 1 % off at ν = 4, and exact to four digits from ν = 10 on.
    """
    z = _Z
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * freedom**4)
    )
