"""What a reward term is, in both of its forms.

Inside an environment a term is asked about one step: ``term(step, task, history)``. A trainer of TRL asks about whole
completions: ``term(completions, **columns)``. :class:`RewardTerm` answers both with the same logic, and
:class:`FunctionTerm` makes a term of a function that somebody wrote for a trainer.
"""

from __future__ import annotations

import abc
import functools
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias, overload

from trajgym.errors import ConfigError, RewardError
from trajgym.rewards.completions import TRUTHS, Completion, check_columns, columns_of, read_completions
from trajgym.types import Step, StopReason, Task

__all__ = [
    "FunctionTerm",
    "PlainTerm",
    "RewardTerm",
    "Term",
    "discounted",
    "is_finite",
    "is_number",
    "rate",
    "takes_completions",
    "term",
]

Term: TypeAlias = Callable[[Step, Task, Sequence[Step]], float]
"""``term(step, task, history) -> float``; ``history`` holds the earlier steps, not ``step`` itself."""


class RewardTerm(abc.ABC):
    """A term that can be called in both ways.

    Subclasses say in :meth:`score` what one step is worth. As a reward function, a term gives each completion the sum
    over its steps, and ignores the columns it does not need.
    """

    @abc.abstractmethod
    def score(self, step: Step, task: Task, history: Sequence[Step]) -> float:
        """Return what ``step`` is worth after ``history``."""

    def rate(self, completions: Sequence[Completion], **columns: Any) -> list[float]:
        """Return what each completion is worth; see :func:`rate`."""
        return rate(self.score, completions, columns)

    def discounted(self, gamma: float) -> Self:
        """Return the term for a run that discounts by ``gamma`` per turn; most terms do not mind.

        Raises:
            ConfigError: When the term was made for another discount.
        """
        return self

    @overload
    def __call__(self, step: Step, task: Task, history: Sequence[Step], /) -> float: ...
    @overload
    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float]: ...
    def __call__(self, *given: Any, **columns: Any) -> Any:
        """Rate a step given as ``(step, task, history)``, or ``(completions, **columns)``."""
        return self.score(*given) if len(given) == 3 else self.rate(*given, **columns)


def discounted(term: Term, gamma: float) -> Term:
    """Return a term, which may be a plain function, for a run that discounts by ``gamma`` per turn.

    Raises:
        ConfigError: When the term was made for another discount.
    """
    return term.discounted(gamma) if isinstance(term, RewardTerm) else term


def rate(score: Term, completions: Sequence[Completion], columns: dict[str, Any]) -> list[float]:
    """Return the sum of ``score`` over the steps of each completion.

    Raises:
        ConfigError: When completions or columns have the wrong form, or the term misses a ground truth.
        RewardError: When the term cannot rate one of the steps.
    """
    out = []
    for task, steps in read_completions(completions, columns):
        try:
            out.append(float(sum(score(step, task, steps[:i]) for i, step in enumerate(steps))))
        except RewardError as error:
            if task.answer or any(name in columns for name in TRUTHS):
                raise
            given = ", ".join(map(repr, sorted(columns))) or "none"
            raise ConfigError(
                f"The reward needs a ground truth. Pass a column {' or '.join(map(repr, TRUTHS))}; got {given}."
            ) from error
    return out


class PlainTerm(RewardTerm):
    """A function of ``(step, task, history)`` that can be called in both ways; made by :func:`term`."""

    def __init__(self, function: Term) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> float:
        """Return what ``step`` is worth after ``history``."""
        return self._function(step, task, history)

    def __repr__(self) -> str:
        return getattr(self, "__qualname__", repr(self._function))

    def __reduce__(self) -> str | tuple[Any, ...]:
        # The function's own name leads to this object, so pickle must look the object up, not the function.
        name, module = getattr(self, "__qualname__", ""), sys.modules.get(self.__module__)
        return name if getattr(module, name, None) is self else (PlainTerm, (self._function,))


def term(function: Term) -> PlainTerm:
    """Decorate a function of ``(step, task, history)`` so that it is a reward function for TRL as well.

    >>> @term
    ... def brief(step, task, history):
    ...     return float(len(step.action.text) < 10)
    >>> brief(["#### 72", "I do not know."], answer=["72", "72"])
    [1.0, 0.0]
    """
    return PlainTerm(function)


class FunctionTerm(RewardTerm):
    """A function ``(completions, **columns) -> list[float]`` as a term.

    In an environment it is asked once per episode, when the policy has answered, with that turn as the only completion.
    The columns are ``prompts``, ``question``, ``answer``, ``ground_truth``, ``solution`` (the last three are the task's
    answer), ``task_id``, ``difficulty`` and the task's metadata. A function without ``**columns`` gets those it names.

    Args:
        function: The function.
        clip: Cut values to [0, 1]. Otherwise the first one outside warns, since weights are chosen for this range.
        name: For messages; the function's own when left out.

    Raises:
        ConfigError: When it is not such a function.
    """

    def __init__(self, function: Callable[..., Sequence[float]], *, clip: bool = False, name: str = "") -> None:
        if not takes_completions(function):
            raise ConfigError(f"A reward function takes (completions, **columns), got {function!r}.")
        if inspect.iscoroutinefunction(function):
            raise ConfigError(f"The reward function {function!r} is asynchronous; wrap it in a function that waits.")
        self.__name__ = name or getattr(function, "__name__", type(function).__name__)
        self.function = function
        self.clip = clip
        self._warned = False
        parameters = inspect.signature(function).parameters.values()
        self._named = None if any(p.kind is p.VAR_KEYWORD for p in parameters) else {p.name for p in parameters}

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> float:
        """Return the function's value for the turn that answers, 0 for every other."""
        if step.stop_reason is not StopReason.ANSWERED:
            return 0.0
        return self.rate([step.action.text], **columns_of(task, step))[0]

    def rate(self, completions: Sequence[Completion], **columns: Any) -> list[float]:
        """Call the function with everything as it came, and check what it returns.

        Raises:
            ConfigError: When a column has the wrong length.
            RewardError: When it returns something else than one finite number for each completion.
        """
        count = check_columns(completions, columns)
        named = columns if self._named is None else {k: v for k, v in columns.items() if k in self._named}
        values = self.function(completions=completions, **named)
        if not isinstance(values, (list, tuple)) or len(values) != count or not all(map(is_finite, values)):
            raise RewardError(
                f"The reward function {self.__name__!r} must return a list of {count} finite numbers, one for each "
                f"completion, got {values!r:.200}."
            )
        return [self._in_range(float(value)) for value in values]

    def _in_range(self, value: float) -> float:
        if 0.0 <= value <= 1.0:
            return value
        if self.clip:
            return min(1.0, max(0.0, value))
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"The reward function {self.__name__!r} returned {value:g}. Weights are chosen for values from 0 to 1: "
                "scale it, or register it with clip=True.",
                stacklevel=2,
            )
        return value


def takes_completions(thing: object) -> bool:
    """Whether ``thing`` is a function whose parameter is called ``completions``, as trainers pass it by name."""
    if not callable(thing) or isinstance(thing, type):
        return False
    try:
        parameters = inspect.signature(thing).parameters
    except (TypeError, ValueError):  # built in, without a signature
        return False
    return "completions" in parameters


def is_number(value: object) -> bool:
    """Whether ``value`` can be an option's value: a finite real number, and not ``True`` or ``False``."""
    return not isinstance(value, bool) and is_finite(value)


def is_finite(value: object) -> bool:
    """Whether ``value`` can be what a term returns: a real number that is finite, a truth value among them."""
    try:
        return not isinstance(value, complex) and math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
