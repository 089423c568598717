"""Policies by name, for the commands that play: those without a model, and what installed packages bring.

>>> import gymnasium, trajgym
>>> env = gymnasium.make("ArithmeticTool-v0").unwrapped
>>> type(POLICIES["expert"](env)).__name__
'ExpertPolicy'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from trajgym.errors import ConfigError
from trajgym.policies.base import Policy
from trajgym.policies.scripted import ExpertPolicy, RandomPolicy
from trajgym.registry import Registry

__all__ = ["POLICIES", "MakePolicy", "register_policy"]

MakePolicy: TypeAlias = Callable[[Any], Policy]
"""Makes a policy for an environment, whose ``protocol`` and ``tools`` say how calls are written and which there are."""

POLICIES: Registry[MakePolicy] = Registry(
    "policy",
    entry_points="trajgym.policies",
    hint="Add one with @trajgym.policies.catalogue.register_policy(name).",
)


def register_policy(name: str, *, replace: bool = False) -> Callable[[MakePolicy], MakePolicy]:
    """Make a policy known by a name: the class, or a function that makes one for an environment.

    Args:
        name: What ``trajgym evaluate --model`` calls it.
        replace: Take the place of a policy of the same name.

    Raises:
        ConfigError: When it is no name, or another policy has it and ``replace`` is not set.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"A policy's name is a text such as 'expert', got {name!r}.")
    return lambda make: POLICIES.register(name, make, replace=replace)


@register_policy("expert")
def _expert(env: Any) -> Policy:
    # Any other environment that Gymnasium knows has neither.
    return ExpertPolicy(getattr(env, "protocol", "hermes"), tools=bool(getattr(env, "tools", {})))


@register_policy("random")
def _random(env: Any) -> Policy:
    return RandomPolicy(getattr(env, "protocol", "hermes"), getattr(env, "tools", {}))
