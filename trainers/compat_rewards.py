"""The founding document's ways of naming a reward, as what ``gym.make(..., reward=…)`` takes.

>>> reward_of("length_penalty", {"target_length": 100})
{'accuracy': 1.0, 'length_penalty': {'weight': 1.0, 'target_length': 100}}
>>> parts = [{"type": "accuracy", "weight": 1.0}, {"type": "step", "weight": 0.3, "step_bonus": 0.1}]
>>> reward_of("combined", {"components": parts})
{'accuracy': 1.0, 'step': {'weight': 0.3, 'step_bonus': 0.1}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.rewards import get_rubric
from trajgym.rewards.catalogue import REWARDS, TERMS

__all__ = ["DESCRIPTIONS", "reward_of"]

DESCRIPTIONS: Mapping[str, str] = {
    "accuracy": "1 for a right final answer, 0 for any other",
    "length_penalty": "a right answer, less penalty_weight for each character above target_length",
    "step": "a right answer, and step_bonus more for each step that it shows",
    "combined": "a right answer, less a penalty for length, and more for each step that it shows",
}
"""The types of reward that the document knows, in words; any registered reward can be named beside them."""

_LENGTH = ("target_length", "penalty_weight", "unit", "most")
_STEP = ("step_bonus", "mode", "pattern", "most")
_OTHER_NAMES = {"max_length": "target_length"}


def reward_of(reward_type: str = "accuracy", config: Mapping[str, Any] | None = None) -> str | dict[str, Any]:
    """Return a reward by the document's name and options.

    Args:
        reward_type: One of :data:`DESCRIPTIONS`, or the name of a registered reward, which takes no options here.
        config: Its options. ``combined`` takes ``components``, a list of ``{type, weight, …}``; or the weights
            ``accuracy``, ``length_penalty`` and ``step`` with ``target_length``, ``penalty_weight`` and ``step_bonus``.

    Raises:
        UnknownNameError: For a type or an option that does not exist.
        ConfigError: For a value that is not allowed.
    """
    options = {_OTHER_NAMES.get(key, key): value for key, value in (config or {}).items()}
    reward: str | dict[str, Any]
    if reward_type == "accuracy":
        reward = _accuracy(options)
    elif reward_type == "length_penalty":
        reward = {"accuracy": 1.0, "length_penalty": _part(reward_type, options, _LENGTH)}
    elif reward_type == "step":
        reward = {"accuracy": 1.0, "step": _part(reward_type, options, _STEP)}
    elif reward_type == "combined":
        reward = _components(options) if "components" in options else _weighed(options)
    elif reward_type in REWARDS:
        for option in options:
            raise UnknownNameError(f"option of the reward {reward_type!r}", option, ())
        reward = reward_type
    else:
        raise UnknownNameError("reward_type", reward_type, {*DESCRIPTIONS, *REWARDS}, REWARDS.hint)
    get_rubric(reward)  # says what is wrong with a value, before anything is loaded
    return reward


def _accuracy(options: Mapping[str, Any]) -> str | dict[str, Any]:
    _require_known("accuracy", options, ("strict",))
    strict = options.get("strict", False)
    if not isinstance(strict, bool):
        raise ConfigError(f"strict must be True or False, got {strict!r:.80}.")
    return {"accuracy": {"weight": 1.0, "term": "strict_accuracy"}} if strict else "accuracy"


def _part(name: str, options: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    _require_known(name, options, ("weight", *known))
    return {"weight": 1.0, **options}


def _components(options: Mapping[str, Any]) -> dict[str, Any]:
    _require_known("combined", options, ("components",))
    parts = options["components"]
    if (
        not isinstance(parts, (list, tuple))
        or not parts
        or not all(isinstance(p, Mapping) and "type" in p for p in parts)
    ):
        raise ConfigError(f"components must be a list of {{'type': …, 'weight': …}}, got {parts!r:.200}.")
    reward: dict[str, Any] = {}
    for part in parts:
        name = part["type"]
        if not isinstance(name, str) or name not in TERMS:
            raise UnknownNameError("type of reward component", name, TERMS)
        if name in reward:
            raise ConfigError(f"components hold {name!r} twice. Give it once, with one weight.")
        given = {_OTHER_NAMES.get(key, key): value for key, value in part.items() if key != "type"}
        reward[name] = {"weight": 1.0, **given} if set(given) - {"weight"} else given.get("weight", 1.0)
    return reward


def _weighed(options: Mapping[str, Any]) -> dict[str, Any]:
    _require_known("combined", options, ("accuracy", "length_penalty", "step", *_LENGTH[:3], *_STEP[:1]))
    length = {key: options[key] for key in _LENGTH if key in options}
    step = {key: options[key] for key in _STEP if key in options}
    return {
        "accuracy": options.get("accuracy", 1.0),
        "length_penalty": {"weight": options.get("length_penalty", 1.0), **length},
        "step": {"weight": options.get("step", 1.0), **step},
    }


def _require_known(name: str, options: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for option in options:
        if option not in known:
            raise UnknownNameError(f"option of the reward {name!r}", option, known)
