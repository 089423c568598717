"""An example of a reward function that somebody might write for a trainer, and of what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from trajgym.errors import DataError, RewardError
from trajgym.rewards.answer import read, truth
from trajgym.rewards.completions import Completion, read_completions

__all__ = ["partial_credit"]

_TIERS = ((Fraction(1, 100), 1.0), (Fraction(1), 0.8), (Fraction(5), 0.5))


def partial_credit(completions: Sequence[Completion], **columns: Any) -> list[float]:
    """Pay near misses, and 0.1 more where the text shows its working.

    An error below 0.01 pays 1, below 1 pays 0.8, below 5 pays 0.5, any other 0; ``step`` or ``=`` in a text that is
    paid at all adds 0.1, up to 1 in all.

    Near misses are wrong answers. A policy that guesses round numbers earns from this what it should not, and one that
    is off by one has little reason to get better: use it to see what such rewards do, not to train.

    Args:
        completions: Texts, or lists of messages.
        columns: One of ``ground_truth``, ``answer`` and ``solution``.

    Raises:
        ConfigError: When completions or columns do not have the form they must have.
        RewardError: When a ground truth is not a number.

    >>> partial_credit(["72", "72.5 = it", "#### 70", "#### 100"], ground_truth=["72"] * 4)
    [1.0, 0.9, 0.5, 0.0]
    """
    out = []
    for task, steps in read_completions(completions, columns):
        text = steps[-1].action.text if steps else ""
        value = read(text).value
        try:
            error = None if value is None else abs(value - truth(task.answer))
        except DataError as problem:
            raise RewardError(f"partial_credit compares numbers: {problem}") from problem
        base = next((paid for limit, paid in _TIERS if error is not None and error < limit), 0.0)
        shown = "step" in text.lower() or "=" in text
        out.append(min(1.0, round(base + 0.1 * shown, 6)) if base else 0.0)
    return out
