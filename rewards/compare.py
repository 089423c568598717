"""A judge that compares two texts, asked in both orders, since many prefer whatever stands first.

>>> def always_first(prompts):
...     return [f"{prompt.rsplit(chr(10), 1)[1].split()[0]} BETTER: first" for prompt in prompts]
>>> PairJudge(always_first, linger=0.0).compare([(Task("t", "48 + 24?", "72"), "#### 72", "#### 73")])
['inconsistent']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from trajgym.rewards.judge import check_criterion
from trajgym.rewards.judge_prompt import DEFAULT_CRITERION, choice_prompt, marker_of, read_choice
from trajgym.rewards.verdicts import Verdicts
from trajgym.types import Task

__all__ = ["OUTCOMES", "Outcome", "PairJudge"]

Outcome: TypeAlias = Literal["first", "second", "equal", "inconsistent", "unreadable"]
"""Which of two texts is better; ``inconsistent`` when that depends on their order, so that nothing is known."""

OUTCOMES: tuple[Outcome, ...] = ("first", "second", "equal", "inconsistent", "unreadable")

_MIRRORED = {"first": "second", "second": "first", "equal": "equal"}


class PairJudge:
    """A language model's choice between two texts.

    Args:
        ask: Turns prompts into replies, e.g. by a served model at temperature 0.
        criterion: What makes a text good.
        reference: Whether the judge is shown the task's answer.
        most: Characters of each text that are shown to the judge.
        **options: See :class:`trajgym.rewards.outside.Outside`.

    Raises:
        ConfigError: For a value that is not allowed.
    """

    def __init__(
        self,
        ask: Callable[[list[str]], Sequence[str]],
        criterion: str = DEFAULT_CRITERION,
        *,
        reference: bool = False,
        most: int = 20_000,
        **options: Any,
    ) -> None:
        check_criterion(criterion, most)
        self.criterion, self.reference, self.most = criterion, reference, most
        self._verdicts: Verdicts[tuple[Task, str, str], str] = Verdicts(ask, self._prompt, read_choice, **options)

    def compare(self, cases: Sequence[tuple[Task, str, str]]) -> list[Outcome]:
        """Return the outcome of each (task, one text, another); equal texts are equal without being asked about.

        Raises:
            EnvironmentFault: When the judge is out of order.
        """
        asked = [case for case in cases if case[1] != case[2]]
        both = self._verdicts([*asked, *((task, b, a) for task, a, b in asked)])
        verdicts = iter(zip(both[: len(asked)], both[len(asked) :], strict=True))
        return ["equal" if a == b else _outcome(*next(verdicts)) for _, a, b in cases]

    def _prompt(self, case: tuple[Task, str, str], salt: str) -> tuple[str, str]:
        task, first, second = case
        marker = marker_of("\x1f".join((task.question, task.answer, first, second)), salt)
        prompt = choice_prompt(
            task.question,
            first,
            second,
            marker,
            criterion=self.criterion,
            reference=task.answer if self.reference else "",
            most=self.most,
        )
        return prompt, marker


def _outcome(one: str | None, other: str | None) -> Outcome:
    """Make one outcome of what was said in both orders."""
    if one is None or other is None:
        return "unreadable"
    if one != _MIRRORED[other]:
        return "inconsistent"
    return "first" if one == "first" else "second" if one == "second" else "equal"
