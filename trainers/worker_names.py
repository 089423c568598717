"""What was registered in this process, sent to another one: tools, rewards, protocols and environments by name.

Another process knows what the package and its installed plug-ins register. What a script has added by itself, or put
in the place of a name that existed, has to come along.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import gymnasium

from trajgym.envs.tools.base import TOOLS
from trajgym.errors import ConfigError
from trajgym.protocols import PROTOCOLS
from trajgym.registry import Registry
from trajgym.rewards.catalogue import REWARDS, TERMS

__all__ = ["Name", "receive_names", "send_names"]

_ALL: tuple[Registry[Any], ...] = (TOOLS, REWARDS, TERMS, PROTOCOLS)
_REGISTRIES = {registry.kind: registry for registry in _ALL}
_ENVIRONMENT = "environment"
_ELSEWHERE = ("gymnasium.", "trajgym.")  # whose environments every process registers by itself


@dataclass(frozen=True)
class Name:
    """A name and what it stands for.

    Args:
        kind: ``"tool"``, ``"reward"``, ``"environment"``, …
        name: The name.
        data: The thing itself, as cloudpickle ships it; empty where it could not.
        problem: Why it could not.
    """

    kind: str
    name: str
    data: bytes = b""
    problem: str = ""


def send_names() -> list[Name]:
    """Return everything that is registered here by now; nothing further is imported for it."""
    return [_sent(kind, name, item) for kind, name, item in _here()]


def receive_names(names: list[Name]) -> list[str]:
    """Register what is not known here, or known as something else.

    Returns:
        What could not come along, one text each. It is missed by those alone who ask for it.

    Raises:
        ConfigError: When one of those would be taken for something else that has the name here.
    """
    missing = []
    own = {(kind, name): item for kind, name, item in _here()}
    for sent in names:
        known = own.get((sent.kind, sent.name))
        if known is not None and _sent(sent.kind, sent.name, known) == sent:
            continue
        problem = f"could not be sent: {sent.problem}"
        if sent.data:
            try:
                _register(sent.kind, sent.name, pickle.loads(sent.data))  # noqa: S301  from who started this process
                continue
            except Exception as error:
                problem = f"cannot be read here ({type(error).__name__}: {error}); install it on all machines"
        missing.append(f"{sent.kind} {sent.name!r} {problem}")
        if known is not None:
            raise ConfigError(f"Workers know another {missing[-1]}")
    return missing


def _here() -> Iterator[tuple[str, str, Any]]:
    for kind, registry in _REGISTRIES.items():
        for name, item in registry.registered().items():
            yield kind, name, item
    for name, spec in gymnasium.registry.items():
        if not (isinstance(spec.entry_point, str) and spec.entry_point.startswith(_ELSEWHERE)):
            yield _ENVIRONMENT, name, spec


def _register(kind: str, name: str, item: Any) -> None:
    if kind == _ENVIRONMENT:
        gymnasium.registry[name] = item
    else:
        _REGISTRIES[kind].register(name, item, replace=True)


def _sent(kind: str, name: str, item: Any) -> Name:
    try:
        return Name(kind, name, cloudpickle.dumps(item))
    except Exception as error:  # of any kind: pickling runs the item's own code
        return Name(kind, name, problem=f"{type(error).__name__}: {error}")
