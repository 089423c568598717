"""A reward is a rubric: named terms, each with a weight.

A term looks at the step that has just happened, the task, and the steps before it, and is a pure function of
the three. It is therefore as good at training time as it is on a logged trajectory, and caps "per episode" need
no state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from trajgym.errors import ConfigError, EnvironmentFault, RewardError
from trajgym.registry import Registry
from trajgym.types import Step, Task

__all__ = ["REWARDS", "Rubric", "Term", "get_rubric", "register_rubric"]

Term: TypeAlias = Callable[[Step, Task, Sequence[Step]], float]
"""``term(step, task, history) -> float``; ``history`` holds the earlier steps, not ``step`` itself."""


class Rubric(Mapping[str, tuple[Term, float]]):
    """Named reward terms and their weights.

    Args:
        terms: ``{name: (term, weight)}``.

    Raises:
        ConfigError: When a name, a term or a weight is not one.

    >>> brief = Rubric({"brief": (lambda step, task, history: float(len(step.action.text) < 80), 0.5)})
    >>> from trajgym.types import Action, Observation
    >>> brief.score(Step(Action("#### 72"), Observation()), Task("t", "48 + 24?", "72"), [])
    {'brief': 0.5}
    """

    def __init__(self, terms: Mapping[str, tuple[Term, float]]) -> None:
        self._terms: dict[str, tuple[Term, float]] = {}
        for name, entry in terms.items():
            if not (isinstance(entry, tuple) and len(entry) == 2 and callable(entry[0])):
                raise ConfigError(f"Rubric term {name!r} must be a pair (callable, weight), got {entry!r}.")
            weight = entry[1]
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
                raise ConfigError(f"Rubric term {name!r} needs a finite number as its weight, got {weight!r}.")
            self._terms[str(name)] = (entry[0], float(weight))

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> dict[str, float]:
        """Return the weighted value of every term; the step's reward is their sum.

        Raises:
            RewardError: When a term raises, or returns something that is not a finite number.
            EnvironmentFault: When a term reports that our machinery failed.
        """
        parts = {}
        for name, (term, weight) in self._terms.items():
            try:
                value = term(step, task, history)
            except (EnvironmentFault, RewardError):
                raise  # an outage of ours, e.g. of a judge: the episode is invalid, the term is not to blame
            except Exception as error:
                raise RewardError(
                    f"Reward term {name!r} raised {type(error).__name__}: {error} (task {task.id!r}). "
                    "A term must return a number for every step; fix it, or leave it out of the rubric."
                ) from error
            if isinstance(value, complex) or not _finite(value) or not _finite(weight * float(value)):
                raise RewardError(
                    f"Reward term {name!r} returned {value!r} for task {task.id!r}; it must return a finite number, "
                    f"finite also when multiplied by its weight {weight:g}."
                )
            parts[name] = weight * float(value)
        return parts

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each term."""
        return {name: weight for name, (_, weight) in self._terms.items()}

    def __getitem__(self, name: str) -> tuple[Term, float]:
        return self._terms[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._terms)

    def __len__(self) -> int:
        return len(self._terms)

    def __repr__(self) -> str:
        return f"Rubric({', '.join(f'{n}×{w:g}' for n, w in self.weights.items())})"


def _finite(value: object) -> bool:
    try:
        return math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


REWARDS: Registry[Callable[[], Rubric]] = Registry(
    "reward",
    entry_points="trajgym.rewards",
    hint="Pass a Rubric of your own, or add a name with trajgym.rewards.register_rubric(...).",
)


def register_rubric(name: str, make: Callable[[], Rubric], *, replace: bool = False) -> None:
    """Let ``gym.make(..., reward=name)`` find the rubric that ``make()`` returns."""
    REWARDS.register(name, make, replace=replace)


def get_rubric(reward: str | Rubric | Mapping[str, tuple[Term, float]]) -> Rubric:
    """Return the rubric of that name; a rubric, or a mapping of terms, passes through."""
    if isinstance(reward, Rubric):
        return reward
    if isinstance(reward, Mapping):
        return Rubric(reward)
    if not isinstance(reward, str):
        raise ConfigError(f"reward must be a name or a Rubric, got {reward!r}.")
    return REWARDS[reward]()
