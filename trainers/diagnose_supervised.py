"""Rules on runs that minimise a loss: SFT, preference training, reward models.

In reinforcement learning the loss says nothing about progress, so these are silent as soon as there is a reward.
"""

from __future__ import annotations

import math

from trajgym.trainers.diagnose_changes import LOWER_RATE, RAISE_RATE, Options
from trajgym.trainers.diagnose_history import LONG, History, Track
from trajgym.trainers.diagnose_rule import Evidence, Rule, Severity

__all__ = ["SUPERVISED"]

_PATIENCE = 30  # records until a loss that does not fall is told


def _losses(history: History) -> Track | None:
    """Return the loss, where it is what the run is about."""
    reinforced = history.count("reward") or history.count("kl")
    return None if reinforced or history.now("loss") is None else history.track("loss", LONG)


def _loss_flat(history: History, options: Options) -> Evidence | None:
    losses = _losses(history)
    if losses is None or history.count("loss") < _PATIENCE or not losses.first or not losses.recent:
        return None
    fall, noise = losses.first.value - losses.recent.value, 2 * math.hypot(losses.first.error, losses.recent.error)
    if fall > noise or _loss_rises(history, options):
        return None
    return Evidence(
        f"The loss was {losses.first.value:.3g} at the start and is {losses.recent.value:.3g} at step "
        f"{history.update} (means of {LONG} records)."
    )


def _loss_rises(history: History, options: Options) -> Evidence | None:
    losses = _losses(history)
    if losses is None or not losses.highest or not losses.lowest or not losses.recent:
        return None
    rise = losses.recent.value - losses.lowest.value
    noise = 4 * math.hypot(losses.lowest.error, losses.recent.error)
    if rise <= noise or rise < 0.2 * (losses.highest.value - losses.lowest.value):
        return None
    return Evidence(
        f"The loss was down to {losses.lowest.value:.3g} at step {losses.lowest.update} and is back at "
        f"{losses.recent.value:.3g} (means of {LONG} records).",
        size=rise,
    )


def _overfit(history: History, options: Options) -> Evidence | None:
    held_out, train = history.track("eval_loss", 1), history.track("loss", 1)
    if not (held_out.lowest and held_out.recent and train.first and train.recent):
        return None
    if held_out.recent.value < 1.02 * held_out.lowest.value or train.recent.value >= train.first.value:
        return None
    return Evidence(
        f"On held-out data the loss was {held_out.lowest.value:.3g} at step {held_out.lowest.update} and is "
        f"{held_out.recent.value:.3g} now; on the training data it went from {train.first.value:.3g} to "
        f"{train.recent.value:.3g}.",
        size=held_out.recent.value - held_out.lowest.value,
    )


SUPERVISED: tuple[Rule, ...] = (
    Rule(
        "loss_rises",
        Severity.SERIOUS,
        "the loss has fallen and risen again",
        "`learning_rate` is too large.",
        "Lower `learning_rate` or lengthen the warm-up (`warmup_ratio`), and go back to the checkpoint before.",
        _loss_rises,
        (LOWER_RATE,),
    ),
    Rule(
        "loss_flat",
        Severity.WARNING,
        f"the loss has not fallen after {_PATIENCE} records",
        "`learning_rate` is too small, or the data are not in the form that the model expects: a wrong chat template, "
        "or completions that are masked out.",
        "Print one training example with its mask; then raise `learning_rate`, or train for more `epochs`.",
        _loss_flat,
        (RAISE_RATE,),
    ),
    Rule(
        "overfit",
        Severity.WARNING,
        "the loss on held-out data rises while that on the training data falls",
        "The model learns the examples by heart.",
        "Train for fewer `epochs`, add `weight_decay`, or use more data; the checkpoint of the lowest loss is the one "
        "to keep.",
        _overfit,
    ),
)
"""On losses."""
