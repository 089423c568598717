"""Terms that ask a model: a language model that grades, or a reward model that scores.

Both are asked once per episode, when the policy has answered, about its own words in all turns; what tools answered is
not shown. Calls are batched, remembered and limited in time, and an outage makes an episode invalid, not worthless:
see :mod:`trajgym.rewards.outside`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

from trajgym.errors import ConfigError, EnvironmentFault
from trajgym.rewards.completions import Completion, read_completions
from trajgym.rewards.functions import RewardTerm, is_finite
from trajgym.rewards.judge_prompt import BEST_GRADE, DEFAULT_CRITERION, judge_prompt, marker_of, read_verdict
from trajgym.rewards.outside import Outside
from trajgym.rewards.verdicts import Verdicts
from trajgym.types import Step, StopReason, Task

__all__ = ["Judge", "RewardModel", "check_criterion", "own_words"]


class _Asked(RewardTerm):
    """A term that rates whole episodes, many at a time."""

    @abc.abstractmethod
    def ratings(self, episodes: Sequence[tuple[Task, str]]) -> list[float]:
        """Return what each (task, own words) is worth."""

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> float:
        """Return the rating of the episode with the step that answers, 0 with every other."""
        if step.stop_reason is not StopReason.ANSWERED:
            return 0.0
        return self.ratings([(task, own_words((*history, step)))])[0]

    def rate(self, completions: Sequence[Completion], **columns: Any) -> list[float]:
        """Return the rating of each completion; all are asked for together."""
        read = read_completions(completions, columns)
        answered = [i for i, (_, steps) in enumerate(read) if steps and steps[-1].stop_reason is StopReason.ANSWERED]
        out = [0.0] * len(read)
        for i, value in zip(
            answered, self.ratings([(read[i][0], own_words(read[i][1])) for i in answered]), strict=True
        ):
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
        check_criterion(criterion, most)
        self.criterion, self.reference, self.most = criterion, reference, most
        self._verdicts: Verdicts[tuple[Task, str], int] = Verdicts(ask, self._prompt, read_verdict, **options)

    def grades(self, episodes: Sequence[tuple[Task, str]]) -> list[int | None]:
        """Return the grade of each (task, own words), 0 … 10; ``None`` where the judge gave none that can be read.

        Raises:
            EnvironmentFault: When the judge is out of order.
        """
        return self._verdicts(episodes)

    def ratings(self, episodes: Sequence[tuple[Task, str]]) -> list[float]:
        """Return the grade of each (task, own words) as a share of the best one.

        Raises:
            EnvironmentFault: When the judge is out of order.
        """
        return [(grade or 0) / BEST_GRADE for grade in self.grades(episodes)]

    def _prompt(self, episode: tuple[Task, str], salt: str) -> tuple[str, str]:
        task, text = episode
        marker = marker_of(f"{task.question}\x1f{task.answer}\x1f{text}", salt)
        reference = task.answer if self.reference else ""
        prompt = judge_prompt(
            task.question, text, marker, criterion=self.criterion, reference=reference, most=self.most
        )
        return prompt, marker


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

    def __repr__(self) -> str:  # it stands in the options of runs, which must not differ from process to process
        return f"{type(self).__name__}({self._scores.ask!r})"


def check_criterion(criterion: object, most: object) -> None:
    """Check what a judge is told.

    Raises:
        ConfigError: For a criterion that says nothing, or a limit in characters that is none.
    """
    if not isinstance(criterion, str) or not criterion.strip():
        raise ConfigError(f"criterion must say what makes a text good, got {criterion!r}.")
    if isinstance(most, bool) or not isinstance(most, int) or most < 2:
        raise ConfigError(f"most must be a whole number of at least 2, got {most!r}.")


def own_words(steps: Sequence[Step]) -> str:
    """Return what a policy wrote in all turns, which is what judges and reward models are shown."""
    return "\n\n".join(step.action.text for step in steps)
