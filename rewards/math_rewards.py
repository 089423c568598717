r"""Rewards for word problems with one number as the answer: right, short, and with its steps shown.

One formula, and classes that name its cases. Each is a :class:`~trajgym.rewards.Rubric`, so it goes into ``gym.make``
and into any TRL trainer alike, and its parts can be looked at with ``breakdown``.

>>> combined = MathRewardFunction()
>>> text = "Step 1: 48 / 2 = 24\nStep 2: 48 + 24 = 72\nStep 3: So it is 72.\nFinal Answer: 72".rjust(300)
>>> {name: round(part, 3) for name, part in combined.breakdown([text], answer=["72"])[0].items()}
{'accuracy': 1.0, 'length_penalty': -0.1, 'step': 0.3}
>>> combined([text], answer=["72"])
[1.2]
"""

from __future__ import annotations

import re

from trajgym.rewards.functions import Term
from trajgym.rewards.lengths import CountTokens
from trajgym.rewards.rubric import Rubric, Weight
from trajgym.rewards.terms import LengthPenalty, StepBonus, accuracy, strict_accuracy

__all__ = ["AccuracyReward", "LengthPenaltyReward", "MathRewardFunction", "StepReward"]


class MathRewardFunction(Rubric):
    """The combined reward: ``w_acc·acc + acc·(−w_len·α·max(0, l − l_target) + w_step·β·s)``.

    ``acc`` is 1 for a right answer and 0 for a wrong one, ``l`` the length of what the policy wrote and ``s`` the
    number of steps it shows. Where the answer is wrong everything is 0. A part whose weight is 0 is left out. The sum
    may exceed 1.

    Args:
        accuracy: w_acc.
        length_penalty: w_len.
        step: w_step.
        target_length: l_target, in units.
        penalty_weight: α, per unit above the target.
        unit: ``"characters"`` or ``"tokens"``.
        count: Counts the tokens of a text; see :func:`trajgym.rewards.lengths.length`.
        most_penalty: Bound of ``α·max(0, l − l_target)``: with the default of 1, a right answer is never worth less
            than a wrong one as long as w_len ≤ w_acc.
        step_bonus: β, per step.
        step_mode: ``"markers"`` (``Step 1:``), ``"lines"`` or ``"regex"``.
        step_pattern: Regular expression for ``"regex"``.
        most_steps: Bound of s; more steps than five are seldom needed and easily padded.
        strict: Whether a right answer must stand behind an explicit marker.

    Raises:
        ConfigError: For a value that is not allowed.
    """

    def __init__(
        self,
        accuracy: Weight = 1.0,
        length_penalty: Weight = 1.0,
        step: Weight = 1.0,
        *,
        target_length: int = 200,
        penalty_weight: float = 0.001,
        unit: str = "characters",
        count: CountTokens | None = None,
        most_penalty: float = 1.0,
        step_bonus: float = 0.1,
        step_mode: str = "markers",
        step_pattern: str | re.Pattern[str] | None = None,
        most_steps: int = 5,
        strict: bool = False,
    ) -> None:
        penalty = LengthPenalty(target_length, penalty_weight, unit=unit, count=count, most=most_penalty)
        bonus = StepBonus(step_bonus, mode=step_mode, pattern=step_pattern, most=most_steps)
        terms: dict[str, tuple[Term, Weight]] = {
            "accuracy": (_accuracy(strict), accuracy),
            "length_penalty": (penalty, length_penalty),
            "step": (bonus, step),
        }
        super().__init__({name: entry for name, entry in terms.items() if entry[1] != 0.0})


class AccuracyReward(MathRewardFunction):
    """``acc``: 1 for a right answer, 0 for a wrong one.

    Args:
        strict: Whether a right answer must stand behind an explicit marker.

    >>> AccuracyReward()(["#### 72.0", "#### 73"], ground_truth=["72", "72"])
    [1.0, 0.0]
    """

    def __init__(self, *, strict: bool = False) -> None:
        super().__init__(1.0, 0.0, 0.0, strict=strict)


class LengthPenaltyReward(MathRewardFunction):
    """``acc·(1 − α·max(0, l − l_target))``: right and short.

    Args:
        target_length: l_target, in units.
        penalty_weight: α, per unit above the target.
        unit: ``"characters"`` or ``"tokens"``.
        count: Counts the tokens of a text.
        most_penalty: Bound of the penalty.

    Raises:
        ConfigError: For a value that is not allowed.

    >>> LengthPenaltyReward()(["#### 72".rjust(500), "#### 73"], ground_truth=["72", "72"])
    [0.7, 0.0]
    """

    def __init__(
        self,
        target_length: int = 200,
        penalty_weight: float = 0.001,
        *,
        unit: str = "characters",
        count: CountTokens | None = None,
        most_penalty: float = 1.0,
    ) -> None:
        super().__init__(
            step=0.0,
            target_length=target_length,
            penalty_weight=penalty_weight,
            unit=unit,
            count=count,
            most_penalty=most_penalty,
        )


class StepReward(MathRewardFunction):
    r"""``acc·(1 + β·s)``: right and explained.

    Args:
        step_bonus: β, per step.
        step_mode: ``"markers"`` (``Step 1:``), ``"lines"`` or ``"regex"``.
        step_pattern: Regular expression for ``"regex"``.
        most_steps: Bound of s.

    Raises:
        ConfigError: For a value that is not allowed.

    >>> StepReward()(["Step 1: half of 48 is 24\nStep 2: 48 + 24 = 72\n#### 72"], ground_truth=["72"])
    [1.2]
    """

    def __init__(
        self,
        step_bonus: float = 0.1,
        *,
        step_mode: str = "markers",
        step_pattern: str | re.Pattern[str] | None = None,
        most_steps: int = 5,
    ) -> None:
        super().__init__(
            length_penalty=0.0,
            step_bonus=step_bonus,
            step_mode=step_mode,
            step_pattern=step_pattern,
            most_steps=most_steps,
        )


def _accuracy(strict: bool) -> Term:
    return strict_accuracy if strict else accuracy
