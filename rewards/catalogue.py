"""Rewards and reward terms by name, and everything else that ``gym.make(..., reward=…)`` takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.registry import Registry
from trajgym.rewards.functions import FunctionTerm, RewardTerm, Term, takes_completions
from trajgym.rewards.rubric import Rubric, Weight
from trajgym.rewards.schedule import Schedule

__all__ = [
    "REWARDS",
    "TERMS",
    "RewardLike",
    "get_reward_function",
    "get_rubric",
    "register_reward_function",
    "register_rubric",
    "register_term",
]

RewardFunction: TypeAlias = Callable[..., Sequence[float]]
"""``(completions, **columns) -> list[float]``."""

RewardLike: TypeAlias = str | Rubric | type[Rubric] | RewardTerm | RewardFunction | Mapping[str, Any]
"""See :func:`get_rubric`."""

REWARDS: Registry[Callable[..., Any]] = Registry(
    "reward",
    entry_points="trajgym.rewards",
    hint="Pass a Rubric of your own, or add a name with trajgym.rewards.register_rubric(...) or "
    "register_reward_function(...).",
)
TERMS: Registry[Callable[..., Term]] = Registry(
    "reward term", hint="Pass a pair (term, weight), or add a name with trajgym.rewards.register_term(...)."
)


def register_rubric(name: str, make: Callable[..., Rubric], *, replace: bool = False) -> None:
    """Let ``gym.make(..., reward=name)`` find the rubric that ``make()`` returns.

    Args:
        name: The name.
        make: Returns the rubric; its arguments are the options of :func:`get_rubric`.
        replace: Take the name from whoever has it.

    Raises:
        ConfigError: When the name is taken.
    """
    REWARDS.register(name, make, replace=replace)


def register_reward_function(
    name: str, function: RewardFunction, *, clip: bool = False, replace: bool = False
) -> RewardFunction:
    """Let ``gym.make(..., reward=name)`` pay what a function ``(completions, **columns) -> list[float]`` returns.

    Args:
        name: The name.
        function: The function; see :class:`trajgym.rewards.functions.FunctionTerm` for the columns it gets.
        clip: Cut its values to [0, 1].
        replace: Take the name from whoever has it.

    Returns:
        ``function``.

    Raises:
        ConfigError: When it is no such function, or the name is taken.
    """
    term = FunctionTerm(function, clip=clip, name=name)
    REWARDS.register(name, term if clip else function, replace=replace)
    return function


def register_term(name: str, make: Callable[..., Term], *, replace: bool = False) -> None:
    """Let a mapping such as ``reward={"accuracy": 1.0, name: 0.1}`` find the term that ``make(**options)`` returns.

    Raises:
        ConfigError: When the name is taken.
    """
    TERMS.register(name, make, replace=replace)


def get_rubric(reward: RewardLike, **options: Any) -> Rubric:
    """Return the rubric that ``reward`` stands for.

    Args:
        reward: One of

            - the name of a reward,
            - a :class:`~trajgym.rewards.Rubric`, which passes through, or a class of such,
            - a term that can be called in both ways, or a function ``(completions, **columns) -> list[float]``,
            - a mapping from names to parts. A part is a pair ``(term, weight)``; or, where the name is that of a
              registered term, its weight alone, or a mapping of ``weight`` and the term's options (``term`` names
              another one). A weight is a number or the points of a :class:`~trajgym.rewards.Schedule`. Apart from the
              pairs this is JSON.
        options: Options of a named reward or of a class.

    Raises:
        UnknownNameError: For a name, a term or an option that does not exist.
        ConfigError: When it is something else.

    >>> get_rubric({"accuracy": 1.0, "step": {"weight": 0.3, "step_bonus": 0.1}}).weights
    {'accuracy': 1.0, 'step': 0.3}
    """
    if isinstance(reward, str):
        return _made(REWARDS[reward], f"reward {reward!r}", options, reward)
    if isinstance(reward, type) and issubclass(reward, Rubric):
        return _made(reward, f"reward {reward.__name__}", options)
    if options:
        raise ConfigError(f"Options such as {next(iter(options))!r} go with the name of a reward, got {reward!r:.200}.")
    if isinstance(reward, Rubric):
        return reward
    if isinstance(reward, Mapping):
        return Rubric({name: _part(name, part) for name, part in reward.items()})
    if isinstance(reward, RewardTerm) or takes_completions(reward):
        return _alone(reward)
    raise ConfigError(
        f"reward must be a name or a Rubric, a mapping of terms, or a function of (completions, **columns), "
        f"got {reward!r:.200}."
    )


def get_reward_function(reward: RewardLike, **options: Any) -> Callable[..., list[float]]:
    """Return a reward, by name or otherwise, as a function ``(completions, **columns) -> list[float]`` for TRL.

    Args:
        reward: See :func:`get_rubric`.
        options: Options of a named reward or of a class.

    Raises:
        UnknownNameError, ConfigError: As in :func:`get_rubric`.

    >>> get_reward_function("sparse")(completions=["#### 72"], answer=["72"])
    [1.0]
    """
    return get_rubric(reward, **options)


def _made(make: Any, what: str, options: Mapping[str, Any], name: str = "") -> Rubric:
    """Make the rubric of a registered item: a maker, a class, or a reward function as it is."""
    if isinstance(make, (Rubric, RewardTerm)) or takes_completions(make):
        if options:
            raise UnknownNameError(f"option of the {what}", next(iter(options)), ())
        return make if isinstance(make, Rubric) else _alone(make, name)
    rubric = _called(make, what, options)
    return rubric if isinstance(rubric, Rubric) else get_rubric(rubric)


def _alone(reward: Any, name: str = "") -> Rubric:
    term = reward if isinstance(reward, RewardTerm) else FunctionTerm(reward, name=name)
    return Rubric({name or getattr(term, "__name__", type(term).__name__): (term, 1.0)})


def _part(name: str, part: Any) -> tuple[Term, Weight]:
    if isinstance(part, tuple):
        if len(part) == 2 and not isinstance(part[0], RewardTerm) and takes_completions(part[0]):
            return FunctionTerm(part[0], name=name), part[1]
        return part  # whatever it is: Rubric says what is wrong with it
    options = dict(part) if isinstance(part, Mapping) else {"weight": part}
    if "weight" not in options:
        raise ConfigError(f"Reward term {name!r} needs a weight, got {part!r:.200}.")
    weight = options.pop("weight")
    if isinstance(weight, list):
        weight = Schedule(weight)
    elif isinstance(weight, bool) or not isinstance(weight, (int, float, Schedule)):
        raise ConfigError(
            f"Reward term {name!r} must be a pair (term, weight), or a weight where the name is that of a registered "
            f"term, got {part!r:.200}."
        )
    kind = options.pop("term", name)
    return _called(TERMS[kind], f"reward term {kind!r}", options), weight


def _called(make: Callable[..., Any], what: str, options: Mapping[str, Any]) -> Any:
    """Call ``make(**options)``; options that it does not have are named."""
    parameters = inspect.signature(make).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for option in options:
        if option not in known and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise UnknownNameError(f"option of the {what}", option, known)
    return make(**options)
