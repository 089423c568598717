"""States to go on from: what an episode is in the middle of, kept so that others can start there.

Played with ``states=``, :func:`trajgym.rollout.collect` records one before each turn; an
:class:`~trajgym.rollout.Episode` with ``start=`` goes on from it, as often as one likes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import gymnasium

from trajgym.errors import ConfigError
from trajgym.types import Message, Task

__all__ = ["State", "clone_env"]


@dataclass(frozen=True, eq=False)
class State:
    """An episode before a turn.

    Args:
        env: A clone of its environment, wrappers included. It is never stepped: whoever starts here clones it again.
        task: The problem.
        messages: The dialogue so far.
        tokens: The same as the policy has it: prompt, sampled turns and observations, token for token. Empty for
            policies without tokens.
    """

    env: gymnasium.Env[str, str]
    task: Task
    messages: tuple[Message, ...]
    tokens: tuple[int, ...] = ()


def clone_env(env: gymnasium.Env[str, str]) -> gymnasium.Env[str, str]:
    """Return an independent environment in exactly the same state, with clones of its wrappers around it.

    Args:
        env: Wrapped or not; the innermost one has a ``clone()``, as :class:`trajgym.envs.base.ToolEnv` does.

    Raises:
        ConfigError: When the environment has no ``clone()`` or is in a state that cannot be cloned, or when a wrapper
            holds something that cannot be copied.
    """
    return _copy(env, {})


def _copy(env: gymnasium.Env[str, str], memo: dict[int, Any]) -> gymnasium.Env[str, str]:
    if not isinstance(env, gymnasium.Wrapper):
        clone = getattr(env, "clone", None)
        if not callable(clone):
            raise ConfigError(
                f"{type(env).__name__} cannot be cloned. Give it a method clone() that returns an independent "
                "environment in the same state, or choose an estimator that needs no states."
            )
        twin: gymnasium.Env[str, str] = clone()
        memo[id(env)] = twin
        return twin
    inner = _copy(env.env, memo)  # first, so that what the wrapper says of it becomes what it says of the clone
    outer: gymnasium.Env[str, str] = object.__new__(type(env))
    memo[id(env)] = outer
    memo[id(env._cached_spec)] = env._cached_spec  # never changed, and may hold a whole data set
    for name, value in vars(env).items():
        try:
            vars(outer)[name] = inner if value is env.env else copy.deepcopy(value, memo)
        except TypeError as error:
            raise ConfigError(
                f"The wrapper {type(env).__name__} cannot be cloned: its attribute {name!r} cannot be copied "
                f"({error}). Play without it, or make it copyable."
            ) from error
    return outer
