r"""Potential-based shaping: pay for progress without changing what is best.

A shaping term pays ``γ·Φ(s′) − Φ(s)`` for the step from ``s`` to ``s′``, with a potential Φ that depends on the state
alone. The discounted sum telescopes: over a whole episode it is ``γ^T·Φ(s_T) − Φ(s_0)``, and ``−Φ(s_0)`` where it
terminates, since Φ is 0 there. So no detour, repetition or chain of calls can add anything to it.

Source: Ng, Harada and Russell 1999, Policy invariance under reward transformations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Self, TypeAlias

from trajgym.errors import ConfigError
from trajgym.rewards.functions import RewardTerm, is_number
from trajgym.rewards.limits import agreed_gamma
from trajgym.rewards.milestones import milestones
from trajgym.rewards.tool_use import written_numbers
from trajgym.types import Step, Task

__all__ = ["Potential", "Shaped", "progress"]

Potential: TypeAlias = Callable[[Task, Sequence[Step]], float]
"""``potential(task, steps) -> Φ`` of the state after ``steps``; no steps is the state an episode begins in."""

_MOST_NUMBERS = 50  # in one turn; more is a list of guesses


class Shaped(RewardTerm):
    """The shaping term of a potential: ``γ·Φ(s′) − Φ(s)``.

    Args:
        potential: Φ, a pure function of the task and the steps so far.
        gamma: Discount per turn; the trainer's when left out (1 outside of one). It must be the one that the returns
            are computed with, or the sum does not telescope.
        zero_when_truncated: Φ is 0 at states where the task ends. Where a budget ends the episode, the task goes on
            and Φ keeps its value; set this when truncated episodes count as ended, so that nothing is left of it.

    Raises:
        ConfigError: When ``gamma`` does not lie in [0, 1].

    >>> from trajgym.types import Action, Observation
    >>> shaped = Shaped(lambda task, steps: 0.5 * len(steps), gamma=0.9)
    >>> going, ended = Step(Action(""), Observation()), Step(Action(""), Observation(), terminated=True)
    >>> shaped(going, Task("t", "", ""), []), shaped(ended, Task("t", "", ""), [going])
    (0.45, -0.5)
    """

    def __init__(self, potential: Potential, gamma: float | None = None, *, zero_when_truncated: bool = False) -> None:
        if not callable(potential):
            raise ConfigError(f"A potential is a function of (task, steps), got {potential!r}.")
        if gamma is not None and not (is_number(gamma) and 0.0 <= gamma <= 1.0):
            raise ConfigError(f"gamma must lie in [0, 1], got {gamma!r}.")
        self.potential, self.gamma, self.zero_when_truncated = potential, gamma, zero_when_truncated

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> float:
        """Return what the step adds to the potential."""
        over = step.terminated or (step.truncated and self.zero_when_truncated)
        after = 0.0 if over else self.potential(task, (*history, step))
        gamma = 1.0 if self.gamma is None else self.gamma
        return gamma * after - self.potential(task, history)

    def discounted(self, gamma: float) -> Self:
        """Return the term for a run that discounts by ``gamma`` per turn."""
        agreed = agreed_gamma(self.gamma, gamma, type(self).__name__)
        return type(self)(self.potential, agreed, zero_when_truncated=self.zero_when_truncated)


def progress(task: Task, steps: Sequence[Step]) -> float:
    """Return the share of the task's milestones that the policy has written itself, in [0, 1].

    Its own words and the arguments of its calls count, and nothing that a tool answered: a result is progress once the
    policy works with it. A turn with more than fifty different numbers is a list of guesses and counts for nothing.
    Tasks without known intermediate values have no progress, 0; see :mod:`trajgym.rewards.milestones`.
    """
    wanted = milestones(task)
    reached: set[Fraction] = set()
    for step in steps:
        numbers = written_numbers(step)
        if len(numbers) <= _MOST_NUMBERS:
            reached |= wanted & numbers
    return len(reached) / len(wanted) if wanted else 0.0
