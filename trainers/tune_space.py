"""What a tuning run may try: values, or a range of numbers, for each of some options.

>>> space = read_space({"learning_rate": {"low": 1e-6, "high": 1e-4, "log": True}, "lora_rank": [4, 8]})
>>> space["lora_rank"].values
(4, 8)
>>> len(grid(read_space(PRESETS["grid"].space)))
27
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeGuard

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.options import Options

__all__ = [
    "METHODS",
    "PRESETS",
    "Choice",
    "Method",
    "Preset",
    "Range",
    "Space",
    "applied",
    "draw",
    "grid",
    "read_space",
]

Method: TypeAlias = Literal["grid", "random", "optuna"]
METHODS: tuple[Method, ...] = ("grid", "random", "optuna")

_RESERVED = ("algorithm", "seed", "output_dir", "name", "resume", "overwrite", "save_every", "keep_checkpoints")
_RANGE_KEYS = ("low", "high", "log")


@dataclass(frozen=True)
class Choice:
    """One of some values.

    Args:
        values: JSON values, at least one, no two alike.
    """

    values: tuple[Any, ...]

    def draw(self, rng: random.Random) -> Any:
        """Return one of them, each with the same probability."""
        return self.values[rng.randrange(len(self.values))]


@dataclass(frozen=True)
class Range:
    """A number between two others; a whole one where both are whole.

    Args:
        low: The smallest.
        high: The largest.
        log: Whether the logarithm is uniform, in place of the number itself.
    """

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def draw(self, rng: random.Random) -> float:
        """Return a number of the range."""
        if self.whole and not self.log:
            return rng.randint(int(self.low), int(self.high))
        if not self.log:
            return rng.uniform(self.low, self.high)
        value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        value = min(max(value, self.low), self.high)  # exp(log(x)) may miss x by a rounding
        return round(value) if self.whole else value


Space: TypeAlias = dict[str, Choice | Range]


@dataclass(frozen=True)
class Preset:
    """A search that is known by name.

    Args:
        method: How it goes through the space.
        space: As :func:`read_space` takes it.
        trials: How many; ``None`` for all of a grid.
        options: What every trial has besides.
    """

    method: Method
    space: Mapping[str, Any]
    trials: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


_RANDOM_SPACE: Mapping[str, Any] = {
    "learning_rate": {"low": 1e-6, "high": 1e-4, "log": True},
    "lora_rank": [4, 8, 16, 32, 64],
    "kl_coef": {"low": 0.01, "high": 0.5},
}
_ADAPTERS = {"use_lora": True}  # or the rank would act on nothing

PRESETS: Mapping[str, Preset] = {
    "grid": Preset(
        "grid",
        {"learning_rate": [1e-5, 5e-5, 1e-4], "lora_rank": [8, 16, 32], "kl_coef": [0.05, 0.1, 0.2]},
        options=_ADAPTERS,
    ),
    "random": Preset("random", _RANDOM_SPACE, trials=10, options=_ADAPTERS),
    "bayes": Preset("optuna", _RANDOM_SPACE, trials=20, options=_ADAPTERS),
}
"""27 runs of a grid, 10 drawn at random, 20 chosen by what the ones before have shown."""


def read_space(given: Mapping[str, Any], kind: type[Options] | None = None) -> Space:
    """Read a space.

    Args:
        given: For each option a list of values, or ``{"low": …, "high": …, "log": false}``. A name such as
            ``env_kwargs.reward`` stands for one key of an option that is a mapping.
        kind: The options that there are; not checked when ``None``.

    Raises:
        ConfigError: For an empty space, an option that cannot be tuned, or values that make no dimension.
    """
    if not given:
        raise ConfigError(
            "The space is empty: there is nothing to tune. Give --space '{\"learning_rate\": [1e-5, 1e-4]}', or a "
            f"--preset: {', '.join(PRESETS)}."
        )
    return {name: _dimension(name, value, kind) for name, value in given.items()}


def grid(space: Space) -> list[dict[str, Any]]:
    """Return every combination, the last option changing fastest.

    Raises:
        ConfigError: When the space has a range, which has no end of values.
    """
    ranges = [name for name, dimension in space.items() if isinstance(dimension, Range)]
    if ranges:
        raise ConfigError(f"A grid takes lists of values, no ranges: {', '.join(ranges)}. Use method random or optuna.")
    values = [dimension.values for dimension in space.values() if isinstance(dimension, Choice)]
    return [dict(zip(space, combination, strict=True)) for combination in itertools.product(*values)]


def draw(space: Space, seed: int) -> dict[str, Any]:
    """Return a combination at random.

    Args:
        space: What is allowed.
        seed: Decides which; the order of the options does not matter.
    """
    return {name: dimension.draw(random.Random(f"{seed}/{name}")) for name, dimension in space.items()}


def applied(values: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with a trial's parameters in them.

    >>> applied({"env_kwargs": {"split": "train"}}, {"env_kwargs.reward": "dense", "gamma": 0.9})
    {'env_kwargs': {'split': 'train', 'reward': 'dense'}, 'gamma': 0.9}
    """
    out = dict(values)
    for name, value in parameters.items():
        option, dot, key = name.partition(".")
        out[option] = {**(out.get(option) or {}), key: value} if dot else value
    return out


def _dimension(name: str, value: Any, kind: type[Options] | None) -> Choice | Range:
    option, dot, _ = name.partition(".")
    if kind is not None and option not in kind.model_fields:
        raise UnknownNameError("option in the space", option, set(kind.model_fields) - set(_RESERVED))
    if option in _RESERVED:
        raise ConfigError(f"{option} cannot be tuned: the tuning run decides it. Runs per trial: --seeds.")
    if kind is not None and dot and not isinstance(kind.model_fields[option].default, dict):
        raise ConfigError(f"{name}: {option} is no mapping, so it has no keys to tune.")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _choice(name, value)
    if isinstance(value, Mapping):
        return _range(name, value)
    raise ConfigError(f'{name} in the space must be a list of values or {{"low": …, "high": …}}, got {value!r:.80}.')


def _choice(name: str, values: Sequence[Any]) -> Choice:
    if not values:
        raise ConfigError(f"{name} in the space has no values to choose from.")
    try:
        written = [json.dumps(value, sort_keys=True) for value in values]
    except TypeError as error:
        raise ConfigError(f"The values of {name} in the space must be JSON values: {error}.") from error
    if len(set(written)) < len(written):
        raise ConfigError(f"{name} in the space has a value twice: {', '.join(written)}.")
    return Choice(tuple(values))


def _range(name: str, value: Mapping[str, Any]) -> Range:
    for key in value:
        if key not in _RANGE_KEYS:
            raise UnknownNameError(f"key of the range of {name}", key, _RANGE_KEYS)
    low, high, log = value.get("low"), value.get("high"), value.get("log", False)
    if not (_is_finite(low) and _is_finite(high)):
        raise ConfigError(f"The range of {name} needs two finite numbers, low and high; got {low!r} and {high!r}.")
    if not low < high:
        raise ConfigError(f"The range of {name} must have low < high, got {low!r} and {high!r}.")
    if not isinstance(log, bool):
        raise ConfigError(f"log in the range of {name} must be true or false, got {log!r}.")
    if log and low <= 0:
        raise ConfigError(f"The range of {name} is logarithmic, so low must be above 0, got {low!r}.")
    return Range(low, high, log)


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
