"""The founding document's names for options, and what we call them.

Both the facade and the pipeline read configurations that were written for the document: ``num_epochs``, ``batch_size``,
``max_new_tokens``. Whatever our own trainers call something may be given by that name too.

>>> in_our_names("sft", {"num_epochs": 3, "save_steps": 500}, "the call")
{'epochs': 3, 'save_every': 500}
>>> in_our_names("grpo", {"batch_size": 4, "num_generations": 8, "clip_range": 0.1}, "the call")
{'num_generations': 8, 'clip_range': 0.1, 'clip_range_high': 0.1, 'groups_per_update': 2}
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trajgym.errors import ConfigError
from trajgym.trainers.config import GRPOConfig

__all__ = ["ACCUMULATION", "NAMES", "groups_of", "in_our_names"]

ACCUMULATION = 4
"""Batches of which an update of GRPO is made, where nothing else is said."""

_SHARED = {"num_epochs": "epochs", "lora_target_modules": "lora_targets", "save_steps": "save_every"}
_SHARED |= {"logging_steps": "log_every"}

NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "sft": {
            **_SHARED,
            "gradient_accumulation_steps": "gradient_accumulation",
            "eval_steps": "eval_every",
        },
        "grpo": {**_SHARED, "max_new_tokens": "max_turn_tokens"},
    }
)
"""By algorithm: the document's name and ours. GRPO's ``batch_size`` is no other name, see :func:`groups_of`."""


def in_our_names(algorithm: str, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return options under the names of our own trainers.

    Args:
        algorithm: ``"sft"`` or ``"grpo"``.
        given: Options under either name; unknown ones pass through, for the trainer to refuse.
        where: What holds them, for messages.

    Raises:
        ConfigError: When one is given under both names, or GRPO's batch cannot be divided.
    """
    options: dict[str, Any] = {}
    for key, value in given.items():
        ours = NAMES[algorithm].get(key, key)
        if ours in options:
            raise ConfigError(f"{where} gives {ours} twice, as {key!r} too. Give it once.")
        options[ours] = value
    if algorithm == "sft":
        return options
    if "clip_range" in options:  # the document's interval is symmetric
        options.setdefault("clip_range_high", options["clip_range"])
    batch, accumulation = options.pop("batch_size", None), options.pop("gradient_accumulation_steps", None)
    if batch is None and accumulation is None:
        return options
    if "groups_per_update" in options:
        raise ConfigError(f"{where} gives groups_per_update and batch_size, which say the same. Give one of them.")
    generations = options.get("num_generations", GRPOConfig.model_fields["num_generations"].default)
    options["groups_per_update"] = groups_of(4 if batch is None else batch, generations, accumulation)
    return options


def groups_of(batch_size: int, num_generations: int, accumulation: int | None = None) -> int:
    """Return how many groups of answers an update of GRPO has: ``batch_size × accumulation / num_generations``.

    Args:
        batch_size: Answers in a batch.
        num_generations: Answers to one question, which are compared with one another.
        accumulation: Batches in an update; :data:`ACCUMULATION` when ``None``.

    Raises:
        ConfigError: When the answers cannot be divided into whole groups; names the numbers to change.

    >>> groups_of(4, 8), groups_of(4, 4, 1)
    (2, 1)
    """
    batches = ACCUMULATION if accumulation is None else accumulation
    named = {"batch_size": batch_size, "num_generations": num_generations, "gradient_accumulation_steps": batches}
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}.")
    answers = batch_size * batches
    if answers % num_generations == 0:
        return answers // num_generations
    fitting = [n for n in range(2, answers + 1) if answers % n == 0]
    batch = next(b for b in range(batch_size, batch_size + num_generations) if b * batches % num_generations == 0)
    raise ConfigError(
        f"An update has batch_size ({batch_size}) × gradient_accumulation_steps ({batches}) = {answers} answers, which "
        f"cannot be divided into groups of num_generations ({num_generations}). Change num_generations to "
        f"{' or '.join(map(str, fitting[-3:])) or answers}, or batch_size to {batch}."
    )
