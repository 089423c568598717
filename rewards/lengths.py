"""How long something is that the policy wrote, in a unit that is always said."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trajgym.errors import ConfigError, RewardError, UnknownNameError
from trajgym.types import Step

__all__ = ["UNITS", "CountTokens", "check_unit", "length"]

UNITS = ("characters", "tokens")

CountTokens = Callable[[str], int]
"""For example ``lambda text: len(tokenizer(text).input_ids)``."""


def check_unit(unit: str, count: CountTokens | None) -> None:
    """Refuse a unit that does not exist, and a token counter where none is used.

    Raises:
        UnknownNameError, ConfigError: Accordingly.
    """
    if unit not in UNITS:
        raise UnknownNameError("unit of length", unit, UNITS)
    if count is not None and (unit != "tokens" or not callable(count)):
        raise ConfigError(f"count= turns a text into its number of tokens and needs unit='tokens'; got {count!r}.")


def length(steps: Sequence[Step], unit: str, count: CountTokens | None) -> int:
    """Return how much the policy wrote in ``steps``.

    Args:
        steps: Steps of one episode.
        unit: ``"characters"`` or ``"tokens"``.
        count: Counts the tokens of a text. Without it the sampled tokens are counted, and an environment, which is
            told the text alone, does not know them.

    Raises:
        RewardError: When the tokens cannot be counted.
    """
    if unit == "characters":
        return sum(len(step.action.text) for step in steps)
    if count is not None:
        return sum(count(step.action.text) for step in steps)
    if any(step.action.text and not step.action.token_ids for step in steps):
        raise RewardError(
            "The length in tokens is not known here, since an environment is told the text of a turn alone. Pass "
            "count=, e.g. count=lambda text: len(tokenizer(text).input_ids), or use unit='characters'."
        )
    return sum(len(step.action.token_ids) for step in steps)
