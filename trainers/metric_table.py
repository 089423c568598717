"""What every metric of a run means, and in which unit: the one list from which ``docs/metrics.md`` is made.

``python -m trajgym.trainers.metric_table > docs/metrics.md`` writes that page anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["METRICS", "Metric", "describe", "page"]


@dataclass(frozen=True)
class Metric:
    """One number that is logged after each update.

    Args:
        unit: Of the number; ``"share"`` lies in 0 … 1.
        meaning: What it says.
        when: Where it is logged; empty for everywhere.
    """

    unit: str
    meaning: str
    when: str = ""


_VALID = "where an episode is valid"  # at least one was played without a fault
_STEP = "where there was something to learn from"
_MEASURED = "where the machine was measured"

METRICS: Mapping[str, Metric] = {
    # Where the run stands
    "update": Metric("count", "Finished updates."),
    "epoch": Metric("passes", "Passes over the data that are done; 0 where tasks never end."),
    "env_steps": Metric("turns", "Turns that were played, those for state values included.", _VALID),
    # What was earned
    "reward": Metric("reward", "Mean sum of rewards of an episode, undiscounted.", _VALID),
    "return": Metric("reward", "The same, discounted by γ per turn.", _VALID),
    "reward/TERM": Metric("reward", "Part of one term of the rubric in `reward`, its weight included.", _VALID),
    "reward_variance/TERM": Metric("share", "Part of one term in the variance of `return`; adds up to 1.", _VALID),
    "weight/TERM": Metric("weight", "Weight of a term in this update.", "with reward_schedule"),
    "success": Metric("share", "Episodes with the right answer.", "where tasks have an answer to grade"),
    # How it was played
    "turns": Metric("turns", "Mean turns of an episode.", _VALID),
    "calls": Metric("calls", "Mean tool calls of an episode.", _VALID),
    "call_share": Metric("share", "Turns that hold a tool call.", _VALID),
    "call_error_share": Metric("share", "Turns with a call that could not be parsed or checked.", _VALID),
    "unknown_tool_share": Metric("share", "Calls of a tool that does not exist.", _VALID),
    "tool_error_share": Metric("share", "Calls that ended in a tool's error.", _VALID),
    "answered_share": Metric("share", "Episodes that ended with an answer.", _VALID),
    "unreadable_share": Metric("share", "Answers in which none could be read.", "where tasks have an answer to grade"),
    "format_share": Metric("share", "Answers behind a marker such as `####`.", "where tasks have an answer to grade"),
    "truncated_share": Metric("share", "Episodes that a budget has cut.", _VALID),
    "cut_turn_share": Metric("share", "Episodes whose last turn ran out of tokens.", _VALID),
    "tokens_per_trajectory": Metric("tokens", "Mean sampled tokens of an episode.", _VALID),
    "fault_share": Metric("share", "Episodes lost to faults of the machinery, not of the policy."),
    "faults/CLASS": Metric("episodes", "Those by the class of what was raised.", "where there are any"),
    # What was learned
    "loss": Metric("–", "Loss of the update's first pass, KL included; its level says little.", _STEP),
    "kl": Metric("nats/token", "Mean KL to the reference; 0.01 … 0.1 is healthy.", "with kl_coef above 0"),
    "kl_trajectory": Metric("nats/episode", "The same per episode.", "with kl_coef above 0"),
    "entropy": Metric("nats/token", "Mean entropy of the policy where it sampled.", _STEP),
    "grad_norm": Metric("–", "Norm of the gradient before clipping, mean of the update's steps.", _STEP),
    "learning_rate": Metric("–", "Of the update's last step.", _STEP),
    "clip_share": Metric("share", "Tokens whose ratio was clipped.", _STEP),
    "sampler_gap": Metric("nats/token", "Mean |log π of the trainer − log π of the sampler|.", _STEP),
    "capped_share": Metric(
        "share", "Tokens whose weight π_old/π_sampler was cut at `sampler_cap`.", "with sampler_correction"
    ),
    "staleness": Metric(
        "updates", "Between the weights that played the episodes and those that learn.", "with rollout_ahead"
    ),
    "skipped_steps": Metric("steps", "Optimiser steps left out because a number in them was not finite.", _STEP),
    "groups": Metric("groups", "Groups that were learned from."),
    "no_signal_share": Metric("share", "Groups whose advantages are all 0: they teach nothing.", _STEP),
    "skipped_trajectories": Metric("episodes", "Left out of the passes: their loss has no gradient.", _STEP),
    "kl_coef": Metric("weight", "β in this update.", "with kl_control: auto"),
    "value_loss": Metric("reward²", "Loss of the value model.", "ppo"),
    "value_explained": Metric("share", "Of the returns' variance, explained by the values; at most 1.", "ppo"),
    "value_skipped_steps": Metric("steps", "As skipped_steps, of the value model.", "ppo"),
    # Where the time went
    "time/update": Metric("s", "The whole update."),
    "time/rollout": Metric("s", "Playing its episodes: generation, environment, lockstep, and what lies between."),
    "time/wait": Metric("s", "Nothing was done but wait for episodes that are played ahead.", "with rollout_ahead"),
    "time/tokens_per_second": Metric("tokens/s", "Sampled tokens over time/update."),
    "time/generation": Metric("s", "The policy samples.", _MEASURED),
    "time/environment": Metric("s", "No turn can be written: all wait for their environments.", _MEASURED),
    "time/lockstep": Metric("s", "Turns could be written, and wait for others' environments.", _MEASURED),
    "time/logprobs": Metric("s", "Passes without gradients: π_old and π_ref.", _MEASURED),
    "time/train": Metric("s", "Passes with gradients, and optimiser steps.", _MEASURED),
    "time/sync": Metric("s", "Processes wait for one another, and exchange.", _MEASURED),
    "efficiency/bound": Metric("s", "T_LB: the least time that this machine needs for the update.", _MEASURED),
    "efficiency/eta": Metric("share", "η: efficiency/bound over time/update.", _MEASURED),
    "efficiency/mfu": Metric("share", "Of the peak, reached by needed operations within time/train.", _MEASURED),
    "efficiency/useful_token_share": Metric(
        "share", "Tokens that had to be processed over those that were.", _MEASURED
    ),
    "efficiency/goodput": Metric("tokens/s", "Sampled tokens with an advantage that is not 0.", _MEASURED),
    "efficiency/lockstep_loss": Metric("share", "time/lockstep over time/update.", _MEASURED),
    "memory/peak": Metric("GiB", "Most memory held: by the process so far, or on its GPU in the update.", _MEASURED),
}
"""Name → what it is. ``TERM`` and ``CLASS`` stand for any name."""

_HEAD = """# Metrics

<!-- Made by `python -m trajgym.trainers.metric_table > docs/metrics.md`. -->

One line of `metrics.jsonl` per update holds these numbers. TensorBoard, W&B and trackio show each one as `train/NAME`:
`train/reward`, `train/kl`, `train/loss`, `train/learning_rate`, `train/epoch`. TERM is a term of the rubric, CLASS the
class of what an environment raised. A share lies between 0 and 1.

| metric | unit | meaning | logged |
| --- | --- | --- | --- |
"""

_TAIL = """
T_LB is max(operations of generation / peak, bytes of decoding / bandwidth, slowest episode) + operations of
learning / peak. Every token is processed once in it. What episodes of an update begin with in common (a prompt, the
instructions of different tasks, equal answers) is processed once for all of them, and each step that samples reads its
keys and values once. The peaks are those of a matrix product and of a copy, measured on this machine once
(`trajgym doctor --measure` does it again). A model that fits into the processor's cache reads its weights faster than a
copy in memory can, so the bound is a little high for the smallest.

With `rollout_ahead` the episodes are played while the update before is learned. Then time/rollout and its parts
(generation, environment, lockstep) lie beside the other ones and do not add up with them to time/update; time/wait is
what playing cost the update. T_LB is max(all operations / peak, bytes of decoding / bandwidth, slowest episode), since
both share a device. It counts the episodes that an update learns from, which were played in part before it began, so η
says something in the mean of updates and can exceed 1 in one of them. efficiency/lockstep_loss counts no more of
time/lockstep than was waited for.
"""


def describe(name: str) -> Metric | None:
    """Return what a metric is, also of one with the name of a term or a class in it; ``None`` when it is unknown.

    >>> describe("reward/accuracy").unit
    'reward'
    """
    if name in METRICS:
        return METRICS[name]
    for pattern, metric in METRICS.items():
        if re.fullmatch(re.sub("TERM|CLASS", ".+", pattern), name):
            return metric
    return None


def page() -> str:
    """Return the page for the documentation."""
    rows = (f"| `{name}` | {m.unit} | {_cell(m.meaning)} | {m.when or 'always'} |" for name, m in METRICS.items())
    return _HEAD + "\n".join(rows) + "\n" + _TAIL


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
