"""What to change, as numbers: how far each option moves at once, and where it stops.

A change is a proposal for the next run, computed from the options of this one. Options that are not known give none.

>>> str(RAISE_KL({"kl_coef": 0.05}))
'kl_coef 0.05 → 0.1'
>>> str(RAISE_RATE({"learning_rate": 1e-5, "model": "Qwen/Qwen3-0.6B", "use_lora": True}))
'learning_rate 1e-05 → 5e-05'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ADVISED_RATE",
    "BF16",
    "CHECKPOINTING",
    "DYNAMIC_SAMPLING",
    "FEWER_GENERATIONS",
    "FEWER_GROUPS",
    "FEWER_PASSES",
    "FEWER_STEPS",
    "LONGER_EPISODES",
    "LONGER_TURNS",
    "LOWER_GRAD_NORM",
    "LOWER_KL",
    "LOWER_RATE",
    "MORE_GENERATIONS",
    "MORE_VALUE_PASSES",
    "OVERLAP_TOOLS",
    "OVERLONG_PENALTY",
    "RAISE_KL",
    "RAISE_RATE",
    "SAMPLER_CORRECTION",
    "SHORTER_TURNS",
    "SMALLER_MICROBATCH",
    "TEMPERATURE_ONE",
    "Change",
    "Move",
    "Options",
    "is_toy",
    "model_size",
    "number",
]

Options = Mapping[str, Any]
"""Options of a run by name, as in ``config.yaml``; ``model_parameters``, their number, may be added."""

ADVISED_RATE = (1e-6, 1e-5)
"""Learning rates that are advised for GRPO on a pretrained language model."""

_SMALL = 1e9  # parameters
_TOY = 20e6
_TINY = 923_000  # the embedded model
_CAP_FULL, _CAP = 1e-5, 5e-5


@dataclass(frozen=True)
class Change:
    """A proposal for one option.

    Args:
        option: Its name.
        now: Its value in this run.
        to: The proposed one; equal to ``now`` where it had better stay.
        reason: Why it goes no further.
    """

    option: str
    now: Any
    to: Any
    reason: str = ""

    def __str__(self) -> str:
        """Return the proposal in a few words."""
        tail = f" ({self.reason})" if self.reason else ""
        if self.now == self.to:
            return f"{self.option} stays at {_written(self.now)}{tail}"
        return f"{self.option} {_written(self.now)} → {_written(self.to)}{tail}"


Move = Callable[[Options], Change | None]
"""From the options to a proposal, or ``None`` where there is nothing to propose."""


def number(options: Options, option: str) -> float | None:
    """Return an option that is a number, ``None`` where it is missing or something else."""
    value = options.get(option)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def model_size(options: Options) -> float | None:
    """Return the model's number of parameters: as given, or as its name says; ``None`` where nothing does.

    >>> model_size({"model": "HuggingFaceTB/SmolLM2-135M-Instruct"}), model_size({"model": "Qwen/Qwen3-0.6B"})
    (135000000.0, 600000000.0)
    """
    given = number(options, "model_parameters")
    if given is not None:
        return given
    name = str(options.get("model", "")).rstrip("/").split("/")[-1]
    if name == "tiny":
        return _TINY
    found = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)([BM])(?![a-z0-9])", name, flags=re.IGNORECASE)
    return float(found[1]) * {"B": 1e9, "M": 1e6}[found[2].upper()] if found else None


def is_toy(options: Options) -> bool:
    """Whether the model is too small for what is advised for language models: such ones learn at far higher rates."""
    size = model_size(options)
    return size is not None and size < _TOY


def _raise_rate(options: Options) -> Change | None:
    now = number(options, "learning_rate")
    if now is None:
        return None
    wanted = 5 * now
    if is_toy(options):
        return Change("learning_rate", now, wanted)
    # Of a model whose size nobody knows, the smaller step is proposed.
    small = not options.get("use_lora") and (model_size(options) or 0.0) < _SMALL
    cap = _CAP_FULL if small else _CAP
    if wanted <= cap * (1 + 1e-9):
        return Change("learning_rate", now, wanted)
    reason = f"no more than {cap:g}" + (
        ": all weights of a model under 1B parameters collapse easily; adapters, use_lora, bear 5e-05" if small else ""
    )
    return Change("learning_rate", now, max(now, cap), reason)


def _raise_kl(options: Options) -> Change | None:
    now = number(options, "kl_coef")
    if now is None or now >= 0.4 or (now == 0 and options.get("kl_form") == "k1_in_reward"):
        return None  # large enough, or a change of what the reward is
    return Change("kl_coef", now, 0.05 if now < 0.025 else min(0.4, 2 * now))


def _longer_turns(options: Options) -> Change | None:
    now, room = number(options, "max_turn_tokens"), number(options, "max_episode_tokens")
    if now is None or (room is not None and 2 * now >= room):
        return None  # the episode must be made longer first
    return Change("max_turn_tokens", int(now), int(2 * now))


def _shorter_turns(options: Options) -> Change | None:
    now = number(options, "max_turn_tokens")
    least = max(16.0, (number(options, "overlong_buffer") or 0.0) if options.get("overlong_penalty") else 0.0)
    return None if now is None or now < 2 * least else Change("max_turn_tokens", int(now), int(now // 2))


def _fewer_groups(options: Options) -> Change | None:
    now = number(options, "groups_per_update")
    least = number(options, "minibatches") or 1.0
    return None if now is None or now < 2 * least else Change("groups_per_update", int(now), int(now // 2))


def _fewer_generations(options: Options) -> Change | None:
    now = number(options, "num_generations")
    return None if now is None or now < 4 else Change("num_generations", int(now), int(now // 2))


def _dynamic_sampling(options: Options) -> Change | None:
    now = number(options, "dynamic_sampling")
    valued = options.get("algorithm") == "ppo" or options.get("estimator") == "vine"
    in_reward = options.get("kl_form") == "k1_in_reward" and options.get("kl_coef")
    return Change("dynamic_sampling", 0, 3) if now == 0 and not valued and not in_reward else None


def _factor(option: str, factor: float, *, low: float = 0.0, high: float = float("inf")) -> Move:
    def move(options: Options) -> Change | None:
        now = number(options, option)
        if now is None or not low <= factor * now <= high:
            return None
        to = float(f"{factor * now:.6g}")  # 1e-5 / 5 is to be 2e-6
        return Change(option, options[option], int(to) if isinstance(options[option], int) else to)

    return move


def _more_value_passes(options: Options) -> Change | None:
    return _factor("value_epochs", 2, high=8)(options) if options.get("algorithm") == "ppo" else None


def _set(option: str, value: Any, *, when: Any) -> Move:
    return lambda options: Change(option, when, value) if options.get(option) == when else None


def _overlong_penalty(options: Options) -> Change | None:
    room, buffer = number(options, "max_turn_tokens"), number(options, "overlong_buffer")
    fits = room is not None and buffer is not None and buffer <= room and options.get("estimator") != "vine"
    return Change("overlong_penalty", 0.0, 0.2) if fits and options.get("overlong_penalty") == 0.0 else None


def _temperature_one(options: Options) -> Change | None:
    now = number(options, "temperature")
    return None if now is None or now == 1.0 else Change("temperature", now, 1.0)


RAISE_RATE: Move = _raise_rate
LOWER_RATE = _factor("learning_rate", 0.2, low=1e-8)
RAISE_KL: Move = _raise_kl
LOWER_KL = _factor("kl_coef", 0.5, low=0.01)
LOWER_GRAD_NORM = _factor("max_grad_norm", 0.5, low=0.1)
FEWER_GENERATIONS: Move = _fewer_generations
MORE_GENERATIONS = _factor("num_generations", 2, high=16)
FEWER_GROUPS: Move = _fewer_groups
SHORTER_TURNS: Move = _shorter_turns
LONGER_TURNS: Move = _longer_turns
LONGER_EPISODES = _factor("max_episode_tokens", 2)
SMALLER_MICROBATCH = _factor("microbatch_tokens", 0.5, low=512)
CHECKPOINTING = _set("gradient_checkpointing", True, when=False)
BF16 = _set("dtype", "bfloat16", when="float32")
DYNAMIC_SAMPLING: Move = _dynamic_sampling
FEWER_PASSES = _factor("inner_epochs", 0.5, low=1)
FEWER_STEPS = _factor("minibatches", 0.5, low=1)
MORE_VALUE_PASSES: Move = _more_value_passes
OVERLAP_TOOLS = _set("deterministic", False, when=True)
OVERLONG_PENALTY: Move = _overlong_penalty
SAMPLER_CORRECTION = _set("sampler_correction", True, when=False)
TEMPERATURE_ONE: Move = _temperature_one


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
