"""Advice on the options themselves, before anything has run."""

from __future__ import annotations

from trajgym.trainers.diagnose_changes import (
    ADVISED_RATE,
    LOWER_KL,
    LOWER_RATE,
    MORE_GENERATIONS,
    RAISE_KL,
    RAISE_RATE,
    TEMPERATURE_ONE,
    Options,
    is_toy,
    number,
)
from trajgym.trainers.diagnose_history import History
from trajgym.trainers.diagnose_rule import Evidence, Rule, Severity

__all__ = ["ADVICE"]

_RATE_FULL, _RATE_LORA = 5e-5, 5e-4  # from here on policies collapse; adapters bear about ten times as much
_KL_LOW, _KL_HIGH = 0.01, 0.5
_GREEDY = 0.05  # a temperature at which all samples are the same


def _kl_small(history: History, options: Options) -> Evidence | None:
    coef = number(options, "kl_coef")
    if coef is None or coef > _KL_LOW or is_toy(options):
        return None
    what = "nothing holds the policy near its start" if coef == 0 else "too little to hold the policy near its start"
    return Evidence(f"kl_coef is {coef:g}: {what}; 0.05 to 0.1 is advised.")


def _kl_large(history: History, options: Options) -> Evidence | None:
    coef = number(options, "kl_coef")
    if coef is None or coef < _KL_HIGH:
        return None
    return Evidence(f"kl_coef is {coef:g}: the policy can hardly move; 0.05 to 0.1 is advised.")


def _rate_large(history: History, options: Options) -> Evidence | None:
    rate, lora = number(options, "learning_rate"), bool(options.get("use_lora"))
    if rate is None or rate <= ADVISED_RATE[1] * (1 + 1e-9) or is_toy(options):
        return None
    trained = "adapters" if lora else "all weights"
    text = f"learning_rate is {rate:g} for {trained}; {ADVISED_RATE[0]:g} to {ADVISED_RATE[1]:g} is advised."
    if rate >= (_RATE_LORA if lora else _RATE_FULL):
        return Evidence(f"{text} The policy of a small model collapses at such rates.")
    return Evidence(text, severity=Severity.NOTE)


def _rate_small(history: History, options: Options) -> Evidence | None:
    rate = number(options, "learning_rate")
    if rate is None or rate >= ADVISED_RATE[0] * (1 - 1e-9):
        return None
    return Evidence(f"learning_rate is {rate:g}; {ADVISED_RATE[0]:g} to {ADVISED_RATE[1]:g} is advised.")


def _greedy(history: History, options: Options) -> Evidence | None:
    temperature = number(options, "temperature")
    if temperature is None or temperature > _GREEDY:
        return None
    return Evidence(f"temperature is {temperature:g}: all samples of a task are the same, and no advantage differs.")


def _temperature(history: History, options: Options) -> Evidence | None:
    temperature = number(options, "temperature")
    if temperature is None or temperature <= _GREEDY or 0.7 <= temperature <= 1.0:
        return None
    return Evidence(f"temperature is {temperature:g}; 0.7 to 1.0 is advised.")


def _small_groups(history: History, options: Options) -> Evidence | None:
    members = number(options, "num_generations")
    alone = options.get("algorithm") == "ppo" or options.get("estimator") == "vine" or options.get("baseline") == "none"
    if members is None or members >= 4 or alone:
        return None
    return Evidence(f"num_generations is {members:g}; 4 to 8 is advised.")


def _short_turns(history: History, options: Options) -> Evidence | None:
    tokens = number(options, "max_turn_tokens")
    if tokens is None or tokens >= 256 or is_toy(options):
        return None
    return Evidence(f"max_turn_tokens is {tokens:g}; 256 to 512 is advised for worked answers.")


ADVICE: tuple[Rule, ...] = (
    Rule(
        "greedy_sampling",
        Severity.SERIOUS,
        f"`temperature` of at most {_GREEDY}",
        "Without chance there is nothing to compare: every member of a group is the same.",
        "Set `temperature` between 0.7 and 1; 0 is for evaluation.",
        _greedy,
        (TEMPERATURE_ONE,),
    ),
    Rule(
        "rate_large",
        Severity.WARNING,
        f"`learning_rate` above {ADVISED_RATE[1]:g} (a warning from {_RATE_FULL:g} on, with adapters {_RATE_LORA:g})",
        "Reinforcement learning follows its own samples, so large steps feed on themselves.",
        "Lower `learning_rate`.",
        _rate_large,
        (LOWER_RATE,),
    ),
    Rule(
        "rate_small",
        Severity.NOTE,
        f"`learning_rate` below {ADVISED_RATE[0]:g}",
        "Steps so small move nothing within a usual run.",
        "Raise `learning_rate`.",
        _rate_small,
        (RAISE_RATE,),
    ),
    Rule(
        "kl_coef_large",
        Severity.WARNING,
        f"`kl_coef` of {_KL_HIGH} or more",
        "The penalty outweighs the reward.",
        "Lower `kl_coef`.",
        _kl_large,
        (LOWER_KL,),
    ),
    Rule(
        "kl_coef_small",
        Severity.NOTE,
        f"`kl_coef` of {_KL_LOW} or less",
        "The policy may drift into text that pays but that nobody can read.",
        "Raise `kl_coef`, or watch samples and the format closely.",
        _kl_small,
        (RAISE_KL,),
    ),
    Rule(
        "temperature",
        Severity.NOTE,
        "`temperature` outside of 0.7 to 1",
        "Colder samples explore little; hotter ones are full of slips, and the tempered policy is the one trained.",
        "Set `temperature` between 0.7 and 1.",
        _temperature,
        (TEMPERATURE_ONE,),
    ),
    Rule(
        "small_groups",
        Severity.NOTE,
        "`num_generations` below 4",
        "The baseline is the mean of so few others that it is mostly chance.",
        "Raise `num_generations`, and lower `groups_per_update` to pay for it.",
        _small_groups,
        (MORE_GENERATIONS,),
    ),
    Rule(
        "short_turns",
        Severity.NOTE,
        "`max_turn_tokens` below 256",
        "Answers that reason in words do not fit, and a turn that is cut ends its episode.",
        "Watch cut_turn_share; raise `max_turn_tokens` if it is not near 0.",
        _short_turns,
    ),
)
"""On options; read by ``advise`` and ``diagnose``."""
