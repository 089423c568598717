"""A reward is a rubric: named terms, each with a weight.

A term looks at the step that has just happened, the task, and the steps before it, and is a pure function of
the three. It is therefore as good at training time as it is on a logged trajectory, and caps "per episode" need
no state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from trajgym.errors import ConfigError, EnvironmentFault, RewardError, UnknownNameError
from trajgym.rewards.completions import Completion
from trajgym.rewards.functions import RewardTerm, Term, discounted, is_finite, is_number, rate
from trajgym.rewards.schedule import Schedule, check_progress
from trajgym.types import Step, Task

__all__ = ["Rubric", "Weight"]

Weight: TypeAlias = float | Schedule
"""A number, or one that changes over the training."""


class Rubric(Mapping[str, tuple[Term, Weight]]):
    """Named reward terms and their weights; also a reward function for TRL's trainers.

    Args:
        terms: ``{name: (term, weight)}``. A weight may be a :class:`~trajgym.rewards.Schedule`: such a rubric is a
            plan, and :meth:`at` returns the rubric in force; until it is told otherwise, that is the one at 0.

    Raises:
        ConfigError: When a name, a term or a weight is not one.

    >>> brief = Rubric({"brief": (lambda step, task, history: float(len(step.action.text) < 80), 0.5)})
    >>> from trajgym.types import Action, Observation
    >>> brief.score(Step(Action("#### 72"), Observation()), Task("t", "48 + 24?", "72"), [])
    {'brief': 0.5}
    >>> brief(completions=["#### 72", "72, I think. " * 9], answer=["72", "72"])
    [0.5, 0.0]
    """

    def __init__(self, terms: Mapping[str, tuple[Term, Weight]]) -> None:
        self._entries: dict[str, tuple[Term, Weight]] = {}
        for name, entry in terms.items():
            if not (isinstance(entry, tuple) and len(entry) == 2 and callable(entry[0])):
                raise ConfigError(f"Rubric term {name!r} must be a pair (callable, weight), got {entry!r}.")
            term, weight = entry
            if isinstance(term, Rubric):
                raise ConfigError(
                    f"Rubric term {name!r} is a rubric itself. Merge the two: Rubric({{**one, **other}})."
                )
            if not isinstance(weight, Schedule) and not is_number(weight):
                raise ConfigError(f"Rubric term {name!r} needs a finite number as its weight, got {weight!r}.")
            self._entries[str(name)] = (term, weight if isinstance(weight, Schedule) else float(weight))
        self._enforce(0.0)

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> dict[str, float]:
        """Return the weighted value of every term; the step's reward is their sum.

        Raises:
            RewardError: When a term raises, or returns something that is not a finite number.
            EnvironmentFault: When a term reports that our machinery failed.
        """
        parts = {}
        for name, (term, weight) in self._in_force.items():
            try:
                value = term(step, task, history)
            except (EnvironmentFault, RewardError):
                raise  # an outage of ours, e.g. of a judge: the episode is invalid, the term is not to blame
            except Exception as error:
                raise _blame(name, error, f"task {task.id!r}") from error
            parts[name] = _weighted(name, value, weight, f"task {task.id!r}")
        return parts

    def breakdown(self, completions: Sequence[Completion], **columns: Any) -> list[dict[str, float]]:
        """Return the weighted value of every term for each completion.

        Where TRL passes its ``trainer_state``, scheduled weights follow the progress of its run; where it passes
        ``log_metric``, the mean of each part is logged as ``reward_parts/NAME``.

        Args:
            completions: Texts, or lists of messages.
            columns: See :func:`trajgym.rewards.completions.read_completions`.

        Raises:
            ConfigError: When completions or columns do not have the form they must have.
            RewardError, EnvironmentFault: As in :meth:`score`.
        """
        state = columns.get("trainer_state")
        done, total = getattr(state, "global_step", 0), getattr(state, "max_steps", 0)
        rubric = self.at(min(1.0, done / total)) if total and total > 0 else self
        rows: list[dict[str, float]] = [{} for _ in completions]
        for name, (term, weight) in rubric._in_force.items():
            try:
                rated = isinstance(term, RewardTerm)
                values = term.rate(completions, **columns) if rated else rate(term, completions, columns)  # type: ignore[attr-defined]
            except (ConfigError, EnvironmentFault, RewardError):
                raise
            except Exception as error:
                raise _blame(name, error, "in a list of completions") from error
            for index, (row, value) in enumerate(zip(rows, values, strict=True)):
                row[name] = _weighted(name, value, weight, f"completion {index}")
            if rows and callable(columns.get("log_metric")):
                columns["log_metric"](f"reward_parts/{name}", sum(row[name] for row in rows) / len(rows))
        return rows

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float]:
        """Return what each completion is worth, the sum of its :meth:`breakdown`."""
        return [math.fsum(row.values()) for row in self.breakdown(completions, **columns)]

    def at(self, progress: float) -> Rubric:
        """Return the rubric in force when ``progress`` (0 … 1) of the training is done.

        Raises:
            ConfigError: When it lies outside.
        """
        check_progress(progress)
        rubric = Rubric(self._entries)
        rubric._enforce(progress)
        return rubric

    def discounted(self, gamma: float) -> Rubric:
        """Return the rubric for a run that discounts by ``gamma`` per turn.

        Raises:
            ConfigError: When a term was made for another discount.
        """
        return Rubric({name: (discounted(term, gamma), weight) for name, (term, weight) in self._entries.items()})

    def reweighted(self, weights: Mapping[str, Weight]) -> Rubric:
        """Return the rubric with other weights for some of its terms.

        Raises:
            UnknownNameError: When it has no such term.
        """
        for name in weights:
            if name not in self._entries:
                raise UnknownNameError("term of this reward", name, self._entries)
        return Rubric({name: (term, weights.get(name, weight)) for name, (term, weight) in self._entries.items()})

    @property
    def scheduled(self) -> bool:
        """Whether a weight changes over the training."""
        return any(isinstance(weight, Schedule) for _, weight in self._entries.values())

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each term that is in force."""
        return {name: weight for name, (_, weight) in self._in_force.items()}

    def _enforce(self, progress: float) -> None:
        self._in_force: dict[str, tuple[Term, float]] = {
            name: (term, weight(progress) if isinstance(weight, Schedule) else weight)
            for name, (term, weight) in self._entries.items()
        }

    def __getitem__(self, name: str) -> tuple[Term, Weight]:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}×{w:g}' for n, w in self.weights.items())})"


def _blame(name: str, error: Exception, where: str) -> RewardError:
    return RewardError(
        f"Reward term {name!r} raised {type(error).__name__}: {error} ({where}). "
        "A term must return a number for every step; fix it, or leave it out of the rubric."
    )


def _weighted(name: str, value: Any, weight: float, where: str) -> float:
    if not is_finite(value) or not is_finite(weight * float(value)):
        raise RewardError(
            f"Reward term {name!r} returned {value!r} for {where}; it must return a finite number, "
            f"finite also when multiplied by its weight {weight:g}."
        )
    return weight * float(value)
