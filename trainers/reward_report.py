"""How good a reward model is on pairs it was not trained on, and whether it has learned length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from trajgym.evaluation.evaluate import Share
from trajgym.trainers.preference_checks import LengthBias, length_bias
from trajgym.trainers.preference_loss import bradley_terry_loss
from trajgym.trainers.preferences import PreferencePair

__all__ = ["RewardReport", "reward_report"]

_BLIND = 0.2  # how much less often a model may be right where the better text is on the other side of the length


@dataclass(frozen=True)
class RewardReport:
    """A reward model's scores on pairs.

    Args:
        accuracy: Pairs in which the chosen side scores higher; a tie is a mistake.
        when_longer: The same, of the pairs whose chosen side is the longer one.
        when_shorter: Of those whose chosen side is the shorter one.
        loss: Bradley–Terry loss.
        margin: Mean of chosen minus rejected score.
        length: How far the model's preferences go with length.
    """

    accuracy: Share
    when_longer: Share
    when_shorter: Share
    loss: float
    margin: float
    length: LengthBias

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know before a policy is trained on these scores."""
        found = []
        low, high = self.accuracy.interval
        if self.accuracy.trials and low <= 0.5:
            found.append(
                f"on {self.accuracy.trials} held-out pairs the model is right in {self.accuracy.value:.0%} "
                f"({low:.0%} … {high:.0%}), which may be chance"
            )
        better, worse = sorted((self.when_longer, self.when_shorter), key=lambda share: -share.value)
        if better.trials and worse.trials and worse.interval[1] < better.interval[0] - _BLIND:
            side = "longer" if better is self.when_longer else "shorter"
            found.append(
                f"the model is right in {better.value:.0%} of the pairs whose better side is the {side} one and in "
                f"{worse.value:.0%} of the others: it scores length"
            )
        elif self.length.warning:
            found.append(f"by the model's scores {self.length.warning}")
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        shares = {
            name: {**asdict(share), "value": share.value, "interval": list(share.interval)}
            for name, share in (
                ("accuracy", self.accuracy),
                ("when_longer", self.when_longer),
                ("when_shorter", self.when_shorter),
            )
        }
        return {**asdict(self), **shares, "warnings": list(self.warnings)}


def reward_report(pairs: Sequence[PreferencePair], chosen: Sequence[float], rejected: Sequence[float]) -> RewardReport:
    """Return how a reward model's scores fit preferences.

    Args:
        pairs: The pairs.
        chosen: Score of each chosen side.
        rejected: Score of each rejected side.
    """
    gaps = [a - b for a, b in zip(chosen, rejected, strict=True)]
    lengths = [len(p.words("chosen")) - len(p.words("rejected")) for p in pairs]
    count = max(1, len(gaps))
    loss = bradley_terry_loss(torch.tensor(list(chosen)), torch.tensor(list(rejected))).item() if gaps else 0.0
    return RewardReport(
        accuracy=_share(gaps),
        when_longer=_share([g for g, n in zip(gaps, lengths, strict=True) if n > 0]),
        when_shorter=_share([g for g, n in zip(gaps, lengths, strict=True) if n < 0]),
        loss=loss,
        margin=sum(gaps) / count,
        length=length_bias(pairs, gaps),
    )


def _share(gaps: Sequence[float]) -> Share:
    return Share(sum(gap > 0 for gap in gaps), len(gaps))
