"""What an estimator is: a pure function from the rewards of one group to one advantage per turn.

``rewards[i][t]`` is the reward of turn t of trajectory i. Some estimators ask for more, by keyword: ``states[i][t]``, a
hashable key of the state s_t that turn t began in; ``values[i]``, the ``T_i + 1`` numbers V(s_0) … V(s_{T_i}), the last
one 0 where the episode terminated. An estimator treats the members of a group alike: in another order they get the
same advantages.

Whatever is registered here is guarded: bad input is refused before the formula sees it, and what comes out has the
shape of the rewards and is finite. Of an unbiased estimator, whose numbers have the unit of the rewards, what rounding
has left of a difference of equals becomes 0: a spread may be as small, and dividing by it would make a signal of it.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeAlias

from trajgym.errors import ConfigError, RewardError, TrajgymError, UnknownNameError
from trajgym.registry import Registry
from trajgym.rewards.functions import is_finite

__all__ = [
    "ESTIMATORS",
    "Advantages",
    "Estimator",
    "Rewards",
    "States",
    "Values",
    "check_choice",
    "check_others",
    "estimator",
]

P = ParamSpec("P")

_ROUNDING = 1e-12  # of the largest reward or value

Rewards: TypeAlias = Sequence[Sequence[float]]
States: TypeAlias = Sequence[Sequence[Hashable]]
Values: TypeAlias = Sequence[Sequence[float]]
Advantages: TypeAlias = list[list[float]]

_NEEDS = {
    "states": "a hashable key of the state each turn began in (one per turn)",
    "values": "V of the state before each turn and of the last one (one more than turns)",
}


@dataclass(frozen=True)
class Estimator:
    """A registered estimator; call it as its function.

    Args:
        name: What the options call it.
        function: ``function(rewards, *, gamma, [states], [values], **options) -> advantages``.
        unbiased: Whether its expected gradient is that of ``J = E[Σ_t γ^t r_t]``, with its options as they are by
            default.
        exact_at: Options that make it unbiased where it is not by default.

    Raises:
        ConfigError: When the function's parameters are not of that form.
    """

    name: str
    function: Callable[..., Advantages]
    unbiased: bool = False
    exact_at: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            first, *others = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"The estimator {self.name!r} must be a function of rewards, got {self.function!r}."
            ) from (error)
        wrong = [p.name for p in others if p.kind is not p.KEYWORD_ONLY]
        unset = [p.name for p in others if p.default is p.empty and p.name not in ("gamma", *_NEEDS)]
        if wrong or unset or first.kind is first.KEYWORD_ONLY or "gamma" not in (p.name for p in others):
            raise ConfigError(
                f"The estimator {self.name!r} must be written as f(rewards, *, gamma, …): all parameters but the first "
                f"by keyword, options with a default. Got f{inspect.signature(self.function)}."
            )

    def __call__(self, rewards: Rewards, **arguments: Any) -> Advantages:
        """Return the advantages, one per turn of each trajectory."""
        return self.function(rewards, **arguments)

    @property
    def needs(self) -> tuple[str, ...]:
        """Which of ``states`` and ``values`` it takes."""
        return tuple(name for name in _NEEDS if name in self._keywords)

    @property
    def options(self) -> dict[str, Any]:
        """Its options and their defaults."""
        return {name: p.default for name, p in self._keywords.items() if name not in ("gamma", *_NEEDS)}

    @functools.cached_property
    def _keywords(self) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.function).parameters
        return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


class _Estimators(Registry[Estimator]):
    """The registry; a plain function that a package or a caller has put there counts as one of unknown bias."""

    def __getitem__(self, name: str) -> Estimator:
        item: object = super().__getitem__(name)
        if isinstance(item, Estimator):
            return item
        if not callable(item):
            raise ConfigError(f"The estimator {name!r} must be a function of rewards, got {item!r}.")
        return self.register(name, Estimator(name, _guarded(name, item)), replace=True)


ESTIMATORS: Registry[Estimator] = _Estimators(
    "estimator",
    entry_points="trajgym.estimators",
    hint="Add one with trajgym.trainers.advantages.estimator.",
)


def estimator(
    name: str, *, unbiased: bool = False, exact_at: Mapping[str, object] | None = None
) -> Callable[[Callable[P, Advantages]], Callable[P, Advantages]]:
    """Register the decorated function, guarded, as an estimator.

    Args:
        name: What the options call it.
        unbiased: See :class:`Estimator`.
        exact_at: See :class:`Estimator`.

    Raises:
        ConfigError: When the name is taken, or the function's parameters are of another form.
    """

    def register(function: Callable[P, Advantages]) -> Callable[P, Advantages]:
        guarded = _guarded(name, function, rounds=unbiased or exact_at is not None)
        ESTIMATORS.register(name, Estimator(name, guarded, unbiased, exact_at or {}))
        return guarded

    return register


def check_choice(what: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a value that is not among the allowed ones.

    Raises:
        UnknownNameError: Lists them.
    """
    if value not in allowed:
        raise UnknownNameError(what, value, allowed)


def check_others(rewards: Rewards, instead: str = 'set baseline="none"') -> None:
    """Refuse a group in which nobody can be compared with anybody.

    Args:
        rewards: The group.
        instead: What else the user may do.

    Raises:
        ConfigError: For fewer than two trajectories.
    """
    if len(rewards) < 2:
        raise ConfigError(
            f"A group needs at least 2 trajectories to compare, got {len(rewards)}. Raise num_generations, or "
            f"{instead}."
        )


def _guarded(name: str, function: Callable[P, Advantages], *, rounds: bool = False) -> Callable[P, Advantages]:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return function  # Estimator says what is wrong with it
    required = [n for n, p in signature.parameters.items() if n in _NEEDS and p.default is p.empty]

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> Advantages:
        for need in required:
            if kwargs.get(need) is None:
                raise ConfigError(f"Estimator {name!r} needs {need}: {_NEEDS[need]}.")
        call = signature.bind(*args, **kwargs)
        first = next(iter(signature.parameters))
        rewards = call.arguments[first] = _checked_rewards(call.arguments[first])
        lengths = [len(row) for row in rewards]
        gamma = call.arguments["gamma"]
        if not (is_finite(gamma) and 0.0 <= gamma <= 1.0):
            raise ConfigError(f"gamma must lie in [0, 1], got {gamma!r}.")
        if call.arguments.get("states") is not None:
            call.arguments["states"] = _checked_states(call.arguments["states"], lengths)
        if call.arguments.get("values") is not None:
            call.arguments["values"] = _checked_values(call.arguments["values"], lengths)
        try:
            returned = function(*call.args, **call.kwargs)
        except TrajgymError:
            raise
        except OverflowError as error:
            raise RewardError(f"The rewards are too large for estimator {name!r}: {error}.") from error
        except Exception as error:
            raise RewardError(
                f"Estimator {name!r} failed: {type(error).__name__}: {error}. Rewards: {rewards!r:.200}"
            ) from error
        advantages = _checked_advantages(name, returned, lengths)
        if not rounds:
            return advantages
        given = itertools.chain(*rewards, *(call.arguments.get("values") or ()))
        least = _ROUNDING * max(map(abs, given))
        return [[a if abs(a) > least else 0.0 for a in row] for row in advantages]

    return guarded


def _checked_advantages(name: str, returned: Any, lengths: Sequence[int]) -> Advantages:
    try:
        advantages = [list(row) for row in returned]  # also what can be gone through only once
    except TypeError:
        advantages = []
    if [len(row) for row in advantages] != lengths:
        raise ConfigError(f"Estimator {name!r} must return one number per turn: {lengths}, got {returned!r:.200}.")
    for a in (a for row in advantages for a in row):
        if not isinstance(a, (int, float)) and not hasattr(a, "__float__"):
            raise ConfigError(f"Estimator {name!r} must return numbers, got {a!r:.200}.")
        if not is_finite(float(a)):
            raise RewardError(f"Estimator {name!r} came to a number that is not finite; the rewards may be too large.")
    return [[float(a) for a in row] for row in advantages]


def _checked_rewards(rewards: Any) -> list[list[float]]:
    rows = _rows("rewards", rewards)
    if not rows:
        raise RewardError("A group without trajectories has no advantages; rewards is empty.")
    for i, row in enumerate(rows):
        if not row:
            raise RewardError(f"Trajectory {i} has no turns; leave it out of the group.")
        for t, reward in enumerate(row):
            if not is_finite(reward):
                raise RewardError(f"Reward of trajectory {i}, turn {t} is {reward!r}; rewards must be finite numbers.")
    return [[float(reward) for reward in row] for row in rows]


def _checked_states(states: Any, lengths: Sequence[int]) -> list[list[Hashable]]:
    rows = _rows("states", states)
    if [len(row) for row in rows] != list(lengths):
        raise ConfigError(f"states must have one key per turn: {list(lengths)}, got {[len(row) for row in rows]}.")
    for i, row in enumerate(rows):
        for t, key in enumerate(row):
            try:
                hash(key)
            except TypeError as error:
                raise ConfigError(f"State of trajectory {i}, turn {t} cannot be a key: {error}.") from error
    return rows


def _checked_values(values: Any, lengths: Sequence[int]) -> list[list[float]]:
    rows = _rows("values", values)
    wanted = [length + 1 for length in lengths]
    if [len(row) for row in rows] != wanted:
        raise ConfigError(f"values must have one more number than turns: {wanted}, got {[len(row) for row in rows]}.")
    for i, row in enumerate(rows):
        for t, value in enumerate(row):
            if not is_finite(value):
                raise ConfigError(f"Value of trajectory {i}, state {t} is {value!r}; values must be finite numbers.")
    return [[float(value) for value in row] for row in rows]


def _rows(what: str, given: Any) -> list[list[Any]]:
    try:
        return [list(row) for row in given]
    except TypeError as error:
        raise ConfigError(f"{what} must be a list with one list per trajectory, got {given!r:.100}.") from error
