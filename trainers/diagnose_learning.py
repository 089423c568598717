"""Rules on how the policy learns: KL, reward, gradient, entropy, advantages, the value model.

Each check reads means over a few updates and says what it saw in numbers, or nothing.
"""

from __future__ import annotations

import math

from trajgym.trainers.diagnose_changes import (
    DYNAMIC_SAMPLING,
    FEWER_PASSES,
    FEWER_STEPS,
    LOWER_GRAD_NORM,
    LOWER_KL,
    LOWER_RATE,
    MORE_GENERATIONS,
    MORE_VALUE_PASSES,
    RAISE_KL,
    RAISE_RATE,
    TEMPERATURE_ONE,
    Options,
)
from trajgym.trainers.diagnose_history import LONG, SHORT, History
from trajgym.trainers.diagnose_rule import Evidence, Rule, Severity

__all__ = ["LEARNING", "reward_name", "solved"]

KL_FROZEN, KL_WATCH, KL_FAR = 1e-3, 0.1, 0.5  # nats per token; healthy from 0.01 to KL_WATCH
GRAD_LOW, GRAD_HIGH = 0.01, 100.0  # 0.1 to 10 is healthy
SOLVED = 0.95  # share of right answers at which there is nothing left to learn
_PATIENCE = 30  # updates until a reward that does not move is told
_EARLY = 10  # updates in which nothing need have moved yet


def solved(history: History) -> bool:
    """Whether nearly all answers have been right of late."""
    share = history.recent("success")
    return share is not None and share >= SOLVED


def reward_name(history: History, options: Options) -> str:
    """Return the metric that says how well it goes: the reward, or success where the reward's weights move."""
    return "success" if options.get("reward_schedule") and history.count("success") else "reward"


def _has_risen(history: History, options: Options) -> bool:
    """Whether the reward is clearly above what it was at the start."""
    rewards = history.track(reward_name(history, options), LONG)
    if rewards.first is None or rewards.recent is None:
        return False
    noise = math.hypot(rewards.first.error, rewards.recent.error)
    return rewards.recent.value - rewards.first.value > 2 * noise


def _kl_explosion(history: History, options: Options) -> Evidence | None:
    kl = history.recent("kl")
    if kl is None or kl <= KL_FAR:
        return None
    return Evidence(
        f"KL per token is {kl:.3g} (mean of {SHORT} updates); 0.01 to {KL_WATCH} is healthy, above {KL_FAR} the policy "
        "has gone too far from where it started.",
        size=kl,
    )


def _kl_watch(history: History, options: Options) -> Evidence | None:
    kl = history.recent("kl")
    if kl is None or not KL_WATCH < kl <= KL_FAR:
        return None
    return Evidence(f"KL per token is {kl:.3g}; 0.01 to {KL_WATCH} is healthy, {KL_FAR} is too far.", size=kl)


def _kl_frozen(history: History, options: Options) -> Evidence | None:
    kl = history.recent("kl")
    if kl is None or kl >= KL_FROZEN or history.count("kl") < _EARLY:
        return None
    rate = history.track("learning_rate", 1)
    if rate.first and rate.highest and rate.highest.value > rate.first.value and rate.highest == rate.recent:
        return None  # still warming up
    text = f"KL per token is {kl:.2g} after {history.update} updates; below {KL_FROZEN:g} the policy has hardly moved."
    if _has_risen(history, options):
        return Evidence(f"{text} The reward rises all the same, so there is no hurry.", severity=Severity.NOTE)
    return Evidence(text)


def _reward_flat(history: History, options: Options) -> Evidence | None:
    name = reward_name(history, options)
    track = history.track(name, LONG)
    if history.now(name) is None or history.count(name) < _PATIENCE or not track.first or not track.recent:
        return None
    best = track.highest or track.first
    once = best.value - track.first.value > 4 * math.hypot(best.error, track.first.error)
    if once or _has_risen(history, options) or solved(history) or _reward_falls(history, options):
        return None
    noise = math.hypot(track.first.error, track.recent.error)
    return Evidence(
        f"The {name} was {track.first.value:.3g} in the first {LONG} updates and is {track.recent.value:.3g} in the "
        f"last {LONG}, after {history.update}: no more than chance (±{2 * noise:.2g})."
    )


def _reward_falls(history: History, options: Options) -> Evidence | None:
    name = reward_name(history, options)
    track = history.track(name, LONG)
    best, low, recent = track.highest, track.lowest, track.recent
    if history.now(name) is None or best is None or low is None or recent is None:
        return None
    drop = best.value - recent.value
    # The best of many means is lucky, so two standard errors would be too little.
    if drop <= 4 * math.hypot(best.error, recent.error) or drop < 0.2 * (best.value - low.value):
        return None
    return Evidence(
        f"The {name} was {best.value:.3g} up to update {best.update} and has fallen to {recent.value:.3g} (means of "
        f"{LONG} updates).",
        size=drop,
    )


def _grad_explosion(history: History, options: Options) -> Evidence | None:
    norm = history.recent("grad_norm")
    if norm is None or norm <= GRAD_HIGH:
        return None
    return Evidence(f"The gradient's norm is {norm:.3g}; 0.1 to 10 is healthy, above {GRAD_HIGH:g} it explodes.", norm)


def _grad_vanishing(history: History, options: Options) -> Evidence | None:
    norm = history.recent("grad_norm")
    if norm is None or norm >= GRAD_LOW or solved(history) or _advantages_zero(history, options):
        return None
    return Evidence(f"The gradient's norm is {norm:.2g}; 0.1 to 10 is healthy, below {GRAD_LOW} it vanishes.")


def _entropy_collapse(history: History, options: Options) -> Evidence | None:
    first, recent = history.track("entropy", SHORT).first, history.recent("entropy")
    if not history.count("reward") or first is None or recent is None:
        return None
    if recent > 0.2 * first.value or recent >= 0.1 or history.now("entropy") == 0.0:
        return None  # exactly 0 is logged where no group had a signal and nothing was computed
    text = f"Entropy per token has fallen from {first.value:.3g} to {recent:.2g} nats: all samples are nearly the same."
    if solved(history) or (_has_risen(history, options) and not _no_signal(history, options)):
        return Evidence(f"{text} The reward has risen meanwhile: it may have learned.", severity=Severity.NOTE)
    return Evidence(text)


def _entropy_rises(history: History, options: Options) -> Evidence | None:
    first, recent = history.track("entropy", SHORT).first, history.recent("entropy")
    if not history.count("reward") or first is None or recent is None:
        return None
    if recent < max(2 * first.value, first.value + 0.5):
        return None
    return Evidence(
        f"Entropy per token has grown from {first.value:.3g} to {recent:.3g} nats: the policy turns random.", recent
    )


def _advantages_zero(history: History, options: Options) -> Evidence | None:
    share = history.recent("no_signal_share")
    if share is None or share < 1.0 - 1e-9:
        return None
    if solved(history):
        return Evidence("All members of every group are paid the same: all is solved.", severity=Severity.NOTE)
    return Evidence(f"In the last {SHORT} updates all advantages were zero: no group had two different returns.")


def _no_signal(history: History, options: Options) -> Evidence | None:
    share, success = history.recent("no_signal_share"), history.recent("success")
    if share is None or share < 0.7 or _advantages_zero(history, options):
        return None
    known = "" if success is None else f" Of their answers {success:.0%} are right."
    text = f"{share:.0%} of the groups have no two different returns and teach nothing.{known}"
    return Evidence(text, share, Severity.NOTE if solved(history) else None)


def _value_model(history: History, options: Options) -> Evidence | None:
    share = history.track("value_explained", LONG).recent
    if share is None or history.now("value_explained") is None or history.count("value_explained") < 2 * LONG:
        return None
    if share.value >= 0.05:
        return None
    return Evidence(
        f"After {history.update} updates the value model explains {share.value:.0%} of the variance of what it is to "
        "predict; a constant explains 0%."
    )


def _clipping(history: History, options: Options) -> Evidence | None:
    share = history.recent("clip_share")
    if share is None or share <= 0.3:
        return None
    return Evidence(f"The ratio of {share:.0%} of the tokens is clipped, so they do not count.", share)


LEARNING: tuple[Rule, ...] = (
    Rule(
        "kl_explosion",
        Severity.SERIOUS,
        f"KL per token above {KL_FAR}",
        "The policy runs away from its reference: steps are too large, the penalty is too small, or a large reward "
        "pulls it somewhere odd.",
        "Lower `learning_rate`, raise `kl_coef`, clip gradients harder with `max_grad_norm`, and keep rewards near "
        "[0, 1]; take up a checkpoint from before.",
        _kl_explosion,
        (LOWER_RATE, RAISE_KL, LOWER_GRAD_NORM),
    ),
    Rule(
        "kl_watch",
        Severity.NOTE,
        f"KL per token between {KL_WATCH} and {KL_FAR}",
        "The policy moves away from its reference faster than usual.",
        "Read some of the trajectories; if they get worse, raise `kl_coef`.",
        _kl_watch,
        (RAISE_KL,),
    ),
    Rule(
        "kl_frozen",
        Severity.WARNING,
        f"KL per token below {KL_FROZEN} after {_EARLY} updates and the warm-up",
        "The policy stays where it started: steps are too small, or the penalty holds it.",
        "Lower `kl_coef`, or raise `learning_rate`.",
        _kl_frozen,
        (LOWER_KL, RAISE_RATE),
    ),
    Rule(
        "reward_flat",
        Severity.WARNING,
        f"the reward of the last {LONG} updates is not above that of the first {LONG}, after {_PATIENCE} or more",
        "`learning_rate` is too small, `kl_coef` too large, the reward does not tell good from bad, or the policy "
        "never does the right thing by chance, since the stage before (SFT) was too weak.",
        "Check the reward first (`trajgym audit`); then raise `learning_rate` or lower `kl_coef`; if hardly any answer "
        "is right, give easier tasks or do more SFT.",
        _reward_flat,
        (RAISE_RATE, LOWER_KL),
    ),
    Rule(
        "reward_falls",
        Severity.SERIOUS,
        "the reward has fallen clearly below its best",
        "The policy has collapsed or overfitted: it was trained too long or with too large steps.",
        "Take the checkpoint from before the fall; lower `learning_rate`, raise `kl_coef`, train on more data or for "
        "fewer `epochs`.",
        _reward_falls,
        (LOWER_RATE, RAISE_KL),
    ),
    Rule(
        "grad_explosion",
        Severity.SERIOUS,
        f"gradient norm above {GRAD_HIGH:g}",
        "A few samples with extreme rewards or probabilities make the step; clipping changes its size, not where it "
        "leads.",
        "Lower `learning_rate`, bound the reward, and look at the trajectories of this update.",
        _grad_explosion,
        (LOWER_RATE, LOWER_GRAD_NORM),
    ),
    Rule(
        "grad_vanishing",
        Severity.WARNING,
        f"gradient norm below {GRAD_LOW}, though rewards differ",
        "Little reaches the weights: the loss is divided by a large `normalizer`, rewards hardly differ, or few "
        "weights are trained.",
        "Check `normalizer`, `lora_rank` and the size of the reward. AdamW evens the scale out, so it matters only "
        "where the reward does not move; then raise `learning_rate`.",
        _grad_vanishing,
        (RAISE_RATE,),
    ),
    Rule(
        "entropy_collapse",
        Severity.WARNING,
        "entropy per token below a fifth of its start, and below 0.1 nats",
        "The policy has become sure of one way to answer before it is right; groups no longer differ, and learning "
        "stops.",
        "Raise `kl_coef`, widen `clip_range_high`, sample at `temperature` 1, lower `learning_rate`; an earlier "
        "checkpoint still explores.",
        _entropy_collapse,
        (RAISE_KL, LOWER_RATE, TEMPERATURE_ONE),
    ),
    Rule(
        "entropy_rises",
        Severity.WARNING,
        "entropy per token doubled, by half a nat or more",
        "Steps are too large, or the reward is noise to the policy.",
        "Lower `learning_rate`; check that the reward is the same for the same answer.",
        _entropy_rises,
        (LOWER_RATE, RAISE_KL),
    ),
    Rule(
        "advantages_zero",
        Severity.SERIOUS,
        f"no group has two different returns, {SHORT} updates in a row",
        "Every trajectory of a group is paid the same, so nothing is better than anything else: the tasks are far too "
        "hard or too easy, the reward is constant, or the samples are all alike.",
        "Try the reward on answers you know (`trajgym audit`); choose tasks that are solved sometimes; pay partial "
        "work (reward dense or hybrid); sample at `temperature` 1 with more `num_generations`.",
        _advantages_zero,
        (TEMPERATURE_ONE, MORE_GENERATIONS),
    ),
    Rule(
        "no_signal",
        Severity.WARNING,
        "70 % or more of the groups have no two different returns",
        "Most tasks are always solved, or never; their rollouts are paid for and teach nothing.",
        "Choose tasks of middling difficulty, raise `num_generations`, or let `dynamic_sampling` look for groups that "
        "differ.",
        _no_signal,
        (DYNAMIC_SAMPLING, MORE_GENERATIONS),
    ),
    Rule(
        "value_model",
        Severity.WARNING,
        f"PPO's value model explains less than 5 % of its targets' variance after {2 * LONG} updates",
        "The value model does not learn, so advantages are as noisy as without it, or biased.",
        "Raise `value_epochs` or `value_learning_rate`, give it a head start with `value_warmup`, or train with "
        "`algorithm` grpo, which needs none.",
        _value_model,
        (MORE_VALUE_PASSES,),
    ),
    Rule(
        "clipping",
        Severity.WARNING,
        "more than 30 % of the tokens are clipped",
        "The policy moves far within one batch of trajectories.",
        "Lower `learning_rate`, or take fewer steps per batch: `inner_epochs`, `minibatches`.",
        _clipping,
        (LOWER_RATE, FEWER_PASSES, FEWER_STEPS),
    ),
)
"""On the update itself; most important first."""
