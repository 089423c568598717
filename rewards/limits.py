"""Terms around a term that bound what it can pay in an episode.

>>> from trajgym.rewards.tool_use import call_valid
>>> from trajgym.types import Action, Observation, ToolCall
>>> turn = Step(Action("", calls=(ToolCall("f"),)), Observation())
>>> [Capped(call_valid, most=2)(turn, Task("t", "?", "1"), [turn] * i) for i in range(4)]
[1.0, 1.0, 0.0, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

from trajgym.errors import ConfigError
from trajgym.rewards.functions import RewardTerm, Term, discounted, is_number
from trajgym.rewards.terms import accuracy
from trajgym.types import Step, Task

__all__ = ["Capped", "Gated", "Limit", "Settled", "agreed_gamma"]

Limit = float | Callable[[Task], float]
"""A number, or what gives one for each task, such as :func:`trajgym.rewards.tool_use.needed_steps`."""


class Capped(RewardTerm):
    """A term whose sum over an episode stays between two limits.

    After each step, the sum paid so far is the term's own sum, cut to the limits.

    Args:
        term: What is paid.
        most: Upper limit, at least 0.
        least: Lower limit, at most 0; for costs and penalties.

    Raises:
        ConfigError: When no limit is given, or one has the wrong sign.
    """

    def __init__(self, term: Term, most: Limit = math.inf, least: Limit = -math.inf) -> None:
        if not callable(term):
            raise ConfigError(f"Capped needs a term, a function of (step, task, history), got {term!r}.")
        for name, limit, sign in (("most", most, 1), ("least", least, -1)):
            if not callable(limit) and (isinstance(limit, bool) or not isinstance(limit, (int, float))):
                raise ConfigError(f"{name} must be a number or a function of the task, got {limit!r}.")
            if not callable(limit) and not sign * limit >= 0:
                raise ConfigError(f"{name} must be {'at least' if sign > 0 else 'at most'} 0, got {limit!r}.")
        if most == math.inf and least == -math.inf:
            raise ConfigError("Capped needs a limit: most=, least= or both.")
        self.term, self.most, self.least = term, most, least

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> float:
        """Return what is left of the step's value."""
        most = self.most(task) if callable(self.most) else self.most
        least = self.least(task) if callable(self.least) else self.least
        before = math.fsum(self.term(s, task, history[:i]) for i, s in enumerate(history))
        after = before + self.term(step, task, history)
        return float(max(least, min(most, after)) - max(least, min(most, before)))

    def discounted(self, gamma: float) -> Self:
        """Return the term for a run that discounts by ``gamma`` per turn."""
        return type(self)(discounted(self.term, gamma), self.most, self.least)


class Gated(RewardTerm):
    """A term multiplied by another one of the same step, by default by accuracy: no pay for wrong answers.

    Args:
        term: What is paid; asked only where the gate is not 0.
        gate: What it is multiplied by.
    """

    def __init__(self, term: Term, gate: Term = accuracy) -> None:
        if not callable(term) or not callable(gate):
            raise ConfigError(f"Gated needs two terms, got {term!r} and {gate!r}.")
        self.term, self.gate = term, gate

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> float:
        """Return the product."""
        opened = self.gate(step, task, history)
        return opened * self.term(step, task, history) if opened else 0.0

    def discounted(self, gamma: float) -> Self:
        """Return the term for a run that discounts by ``gamma`` per turn."""
        return type(self)(discounted(self.term, gamma), discounted(self.gate, gamma))


class Settled(RewardTerm):
    """A term whose payments are an advance: kept when the episode ends with a right answer, else taken back.

    The learner sees the pay of each step when it happens, and yet an episode without a right answer is worth nothing,
    whatever it did on the way: the last step pays back ``Σ_{k<T} γ^{k−T} r_k``, which makes the discounted sum 0.
    Episodes that a budget cuts end without a right answer too, be it a budget of turns or one of tokens.

    Args:
        term: What is paid on the way.
        gamma: Discount per turn; the trainer's when left out (1 outside of one). Above 0.
        right: Says with a value above 0 that the episode ended as it should.

    Raises:
        ConfigError: When ``gamma`` does not lie in (0, 1].
    """

    def __init__(self, term: Term, gamma: float | None = None, *, right: Term = accuracy) -> None:
        if not callable(term) or not callable(right):
            raise ConfigError(f"Settled needs terms, functions of (step, task, history), got {term!r} and {right!r}.")
        if gamma is not None and not (is_number(gamma) and 0.0 < gamma <= 1.0):
            raise ConfigError(f"gamma must lie in (0, 1] to pay an advance back, got {gamma!r}.")
        self.term, self.gamma, self.right = term, gamma, right

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> float:
        """Return the step's value; at the end of a failed episode, what is owed."""
        if step.stop_reason is None or self.right(step, task, history) > 0:
            return self.term(step, task, history)
        gamma, last = self.gamma or 1.0, len(history)
        return -math.fsum(self.term(s, task, history[:k]) * gamma ** (k - last) for k, s in enumerate(history)) or 0.0

    def discounted(self, gamma: float) -> Self:
        """Return the term for a run that discounts by ``gamma`` per turn."""
        agreed = agreed_gamma(self.gamma, gamma, type(self).__name__)
        return type(self)(discounted(self.term, gamma), agreed, right=discounted(self.right, gamma))


def agreed_gamma(own: float | None, runs: float, what: str) -> float:
    """Return the discount of the run.

    Raises:
        ConfigError: When it is none, or the term has another one of its own.
    """
    if not is_number(runs) or not 0.0 <= runs <= 1.0:
        raise ConfigError(f"gamma must lie in [0, 1], got {runs!r}.")
    if own is not None and own != runs:
        raise ConfigError(
            f"A {what} term has gamma={own:g} and the run {runs:g}; with two discounts its promise does not hold. "
            "Leave the term's out: it takes the run's."
        )
    return runs
