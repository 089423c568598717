"""Terms that ask a model: a language model that grades, or a reward model that scores.

Both are asked once per episode, when the policy has answered, about its own words in all turns; what tools answered is
not shown. Calls are batched, remembered and limited in time, and an outage makes an episode invalid, not worthless:
see :mod:`trajgym.rewards.outside`.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Sequence
from typing import Any

from trajgym.errors import ConfigError, EnvironmentFault
from trajgym.rewards.completions import Completion, Read, read_completions
from trajgym.rewards.functions import RewardTerm, is_finite
from trajgym.rewards.judge_prompt import BEST_GRADE, DEFAULT_CRITERION, judge_prompt, marker_of, read_verdict
from trajgym.rewards.outside import Outside
from trajgym.types import Step, StopReason, Task

__all__ = ["Judge", "RewardModel"]

_UNREADABLE_ALARM = 20  # verdicts in a row


class _Asked(RewardTerm):
    """A term that rates whole episodes, many at a time."""

    @abc.abstractmethod
    def ratings(self, episodes: Sequence[tuple[Task, str]]) -> list[float]:
        """Return what each (task, own words) is worth."""

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> float:
        """Return the rating of the episode with the step that answers, 0 with every other."""
        if step.stop_reason is not StopReason.ANSWERED:
            return 0.0
        return self.ratings([(task, _own_words((task, (*history, step))))])[0]

    def rate(self, completions: Sequence[Completion], **columns: Any) -> list[float]:
        """Return the rating of each completion; all are asked for together."""
        read = read_completions(completions, columns)
        answered = [i for i, (_, steps) in enumerate(read) if steps and steps[-1].stop_reason is StopReason.ANSWERED]
        out = [0.0] * len(read)
        for i, value in zip(answered, self.ratings([(read[i][0], _own_words(read[i])) for i in answered]), strict=True):
            out[i] = value
        return out


class Judge(_Asked):
    """A language model's grade, in [0, 1].

    A reply that is not in the form asked for is asked for once more and then counts as the lowest grade, so that
    nothing a text does to its judge can pay; after twenty such in a row the judge is held to be out of order.

    Args:
        ask: Turns prompts into replies, e.g. by a served model at temperature 0.
        criterion: What makes a text good.
        reference: Whether the judge is shown the task's answer.
        most: Characters of a text that are shown to the judge.
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
        if not isinstance(criterion, str) or not criterion.strip():
            raise ConfigError(f"criterion must say what makes a text good, got {criterion!r}.")
        if isinstance(most, bool) or not isinstance(most, int) or most < 2:
            raise ConfigError(f"most must be a whole number of at least 2, got {most!r}.")
        self.criterion, self.reference, self.most = criterion, reference, most
        self._replies: Outside[str, str] = Outside(ask, **{"name": "judge", **options})
        self._unreadable = _Streak()

    def ratings(self, episodes: Sequence[tuple[Task, str]]) -> list[float]:
        """Return the grade of each (task, own words).

        Raises:
            EnvironmentFault: When the judge is out of order.
        """
        grades = self._grades(episodes, "")
        again = [i for i, grade in enumerate(grades) if grade is None]
        for i, grade in zip(again, self._grades([episodes[i] for i in again], "again"), strict=True):
            grades[i] = grade
        for grade in grades:
            if self._unreadable.count(grade is None) >= _UNREADABLE_ALARM:
                raise EnvironmentFault(
                    f"The judge is out of order: {_UNREADABLE_ALARM} verdicts in a row were not in the form it was "
                    "asked for. Look at one of its replies, or take a better model."
                )
        return [(grade or 0) / BEST_GRADE for grade in grades]

    def _grades(self, episodes: Sequence[tuple[Task, str]], salt: str) -> list[int | None]:
        markers = [marker_of(f"{task.question}\x1f{task.answer}\x1f{text}", salt) for task, text in episodes]
        prompts = [
            judge_prompt(
                task.question,
                text,
                marker,
                criterion=self.criterion,
                reference=task.answer if self.reference else "",
                most=self.most,
            )
            for (task, text), marker in zip(episodes, markers, strict=True)
        ]
        replies = self._replies(prompts)
        return [read_verdict(reply, marker) for reply, marker in zip(replies, markers, strict=True)]


class RewardModel(_Asked):
    """A reward model's score, as it comes; the weight brings it to the scale of the other terms.

    Args:
        ask: Turns pairs (question, own words) into scores.
        **options: See :class:`trajgym.rewards.outside.Outside`.

    Raises:
        ConfigError: For a value that is not allowed.
    """

    def __init__(self, ask: Callable[[list[tuple[str, str]]], Sequence[float]], **options: Any) -> None:
        self._scores: Outside[tuple[str, str], float] = Outside(ask, **{"name": "reward model", **options})

    def ratings(self, episodes: Sequence[tuple[Task, str]]) -> list[float]:
        """Return the score of each (task, own words).

        Raises:
            EnvironmentFault: When the model is out of order, or a score is not a finite number.
        """
        scores = self._scores([(task.question, text) for task, text in episodes])
        for score in scores:
            if not is_finite(score):
                raise EnvironmentFault(f"The reward model is out of order: it scored a text with {score!r}.")
        return [float(score) for score in scores]


class _Streak:
    """Counts how often in a row something happened, across threads."""

    def __init__(self) -> None:
        self._lock, self._length = threading.Lock(), 0

    def count(self, happened: bool) -> int:
        with self._lock:
            self._length = self._length + 1 if happened else 0
            return self._length

    def __reduce__(self) -> tuple[type[_Streak], tuple[()]]:
        return type(self), ()


def _own_words(read: Read) -> str:
    return "\n\n".join(step.action.text for step in read[1])
