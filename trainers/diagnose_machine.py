"""Rules on the machinery: faults, numbers that are none, memory, speed, a sampler that is not the trainer's model."""

from __future__ import annotations

from trajgym.trainers.diagnose_changes import (
    BF16,
    CHECKPOINTING,
    FEWER_GENERATIONS,
    FEWER_GROUPS,
    LOWER_RATE,
    OVERLAP_TOOLS,
    SAMPLER_CORRECTION,
    SHORTER_TURNS,
    SMALLER_MICROBATCH,
    Options,
    number,
)
from trajgym.trainers.diagnose_history import SHORT, History
from trajgym.trainers.diagnose_rule import Evidence, Rule, Severity

__all__ = ["MACHINE"]

_FAULT_ALARM = 0.05  # where the options do not say
_FAULTS = "faults/"  # metrics: number of faults of a class


def _not_a_number(history: History, options: Options) -> Evidence | None:
    names = [name for name in history.not_finite() if not name.startswith("time/")]
    if not names:
        return None
    return Evidence(f"{', '.join(names)} in update {history.update}: not a finite number.", size=len(names))


def _faults(history: History, options: Options) -> Evidence | None:
    share = history.now("fault_share")
    limit = number(options, "fault_alarm")
    if share is None or share <= (_FAULT_ALARM if limit is None else limit):
        return None
    kinds = ", ".join(f"{name.removeprefix(_FAULTS)} {history.now(name):g}" for name in history.names(_FAULTS))
    text = f"{share:.0%} of the episodes of update {history.update} failed{f' ({kinds})' if kinds else ''}."
    return Evidence(text, share, Severity.SERIOUS if share >= 0.5 else None)


def _sampler_gap(history: History, options: Options) -> Evidence | None:
    gap = history.recent("sampler_gap")
    if gap is None or gap <= (0.5 if options.get("sampler_correction") else 0.05):
        return None
    return Evidence(
        f"Sampler and trainer differ by {gap:.2g} nats per token in what they think of the same tokens.", size=gap
    )


def _padding(history: History, options: Options) -> Evidence | None:
    share = history.recent("efficiency/useful_token_share")
    if share is None or share >= 0.05:
        return None
    return Evidence(
        f"Only {share:.0%} of the tokens that went through models had to; the rest is padding and repetition."
    )


def _slowdown(history: History, options: Options) -> Evidence | None:
    best, recent = history.track("time/tokens_per_second", SHORT).highest, history.recent("time/tokens_per_second")
    if best is None or recent is None or recent > 0.5 * best.value:
        return None
    return Evidence(
        f"{recent:,.0f} tokens per second, down from {best.value:,.0f} up to update {best.update}.",
        size=best.value / max(recent, 1e-9),
    )


MACHINE: tuple[Rule, ...] = (
    Rule(
        "not_a_number",
        Severity.SERIOUS,
        "a metric is NaN or infinite",
        "The weights or the loss have overflowed: steps are too large, or the number format is too narrow.",
        "Go back to the checkpoint before; lower `learning_rate`; if `dtype` is bfloat16, try float32.",
        _not_a_number,
        (LOWER_RATE,),
        errors=("norm is nan", "norm is inf", "gradient is nan", "gradient is inf", "loss is nan", "loss is inf"),
    ),
    Rule(
        "out_of_memory",
        Severity.SERIOUS,
        "the run ends with an out-of-memory error",
        "Activations grow with the tokens of a forward pass, key/value caches with the episodes that are live at once.",
        "Lower `microbatch_tokens` and `slots` first, which change no result; then `num_generations`, "
        "`groups_per_update` and `max_turn_tokens`; turn on `gradient_checkpointing`, bfloat16 as `dtype`, and "
        "`use_lora`; or take a smaller model.",
        None,
        (SMALLER_MICROBATCH, CHECKPOINTING, BF16, FEWER_GENERATIONS, FEWER_GROUPS, SHORTER_TURNS),
        errors=("out of memory", "outofmemory", "memoryerror", "can't allocate memory", "cannot allocate memory"),
    ),
    Rule(
        "faults",
        Severity.WARNING,
        "a share of episodes above `fault_alarm` is lost to faults",
        "That is the machinery's doing, not the policy's: they are left out of the baseline and the loss.",
        "See to the tools; metrics.jsonl counts faults by kind, trajectories/ shows one per update.",
        _faults,
    ),
    Rule(
        "sampler_gap",
        Severity.WARNING,
        "sampler and trainer differ by more than 0.05 nats per token, or by 0.5 with `sampler_correction`",
        "They are not the same model bit for bit: another number format, another engine, or weights not yet updated.",
        "Turn on `sampler_correction`, or sample with the trainer's own weights and `dtype`.",
        _sampler_gap,
        (SAMPLER_CORRECTION,),
    ),
    Rule(
        "padding",
        Severity.NOTE,
        "less than 5 % of the tokens that went through models had to",
        "Each member of a group computes the same long prompt, or trajectories of very different length share a pass.",
        "Lower `microbatch_tokens`, so that fewer of different length are padded together; shorten the prompt.",
        _padding,
        (SMALLER_MICROBATCH,),
    ),
    Rule(
        "slowdown",
        Severity.NOTE,
        "half as many tokens per second as at its best",
        "Episodes got longer, a tool got slow, or the machine has other work.",
        "Compare time/rollout with time/update. If rollouts take it: raise `slots`, let slow tools overlap with "
        "`deterministic` false; else larger `microbatch_tokens` and bfloat16 as `dtype`; write fewer "
        "`log_trajectories`.",
        _slowdown,
        (OVERLAP_TOOLS, BF16),
    ),
)
"""On what the policy has no part in."""
