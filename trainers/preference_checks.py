"""What is wrong with preference pairs, and whether they teach length instead of quality.

A reward model learns whatever tells chosen from rejected most easily. Where that is length, it pays for padding: look
at :class:`LengthBias` before and after the training.

>>> from trajgym.trainers.preferences import make_pair
>>> pairs = [make_pair("2 + 2?", "It is 4.", "5"), make_pair("2 + 3?", "5", "5"), make_pair("2 + 4?", "6", "")]
>>> kept, report = checked_pairs(pairs)
>>> len(kept), report.identical, report.empty, report.length.longer
(1, 1, 1, 1)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trajgym.errors import DataError
from trajgym.evaluation.measures import wilson
from trajgym.trainers.preferences import PreferencePair

__all__ = ["LengthBias", "PairReport", "checked_pairs", "length_bias"]

_SKEWED = 0.6  # share of pairs, of which one side is the longer, beyond which length alone decides too much


@dataclass(frozen=True)
class LengthBias:
    """How far preferences go with length, in characters of the policy's own words.

    Args:
        pairs: Pairs of which one side is preferred.
        longer: Those in which the longer side is.
        shorter: Those in which the shorter side is.
        correlation: Of the difference in length with the preference's strength, over pairs in both orders: from −1
            (the shorter always wins, the more so the shorter) to 1.
        mean_preferred: Mean length of preferred sides.
        mean_other: Mean length of the others.
    """

    pairs: int
    longer: int
    shorter: int
    correlation: float
    mean_preferred: float
    mean_other: float

    @property
    def warning(self) -> str:
        """What a person should know; empty where length does not decide."""
        told = self.longer + self.shorter
        if not told:
            return ""
        low, high = wilson(self.longer, told)
        if low <= _SKEWED and high >= 1 - _SKEWED:
            return ""
        which, count = ("longer", self.longer) if low > _SKEWED else ("shorter", self.shorter)
        return (
            f"the {which} side is preferred in {count} of {told} pairs (correlation {self.correlation:+.2f}): length "
            "alone explains the preferences, and a policy can be paid for it"
        )


@dataclass(frozen=True)
class PairReport:
    """What was found in pairs.

    Args:
        given: All pairs.
        kept: Those that can be learned from.
        identical: Both sides are the same.
        empty: A side says nothing, or the prompt asks nothing.
        ties: The margin is 0.
        duplicates: The pair was there before.
        contradictions: Pairs whose two sides stand in the opposite order elsewhere; neither is kept.
        length: Of the pairs that are kept.
    """

    given: int
    kept: int
    identical: int
    empty: int
    ties: int
    duplicates: int
    contradictions: int
    length: LengthBias

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know."""
        found = [f"{self.contradictions} pairs contradict one another"] if self.contradictions else []
        return (*found, *([self.length.warning] if self.length.warning else []))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**asdict(self), "warnings": list(self.warnings)}


def checked_pairs(pairs: Sequence[PreferencePair]) -> tuple[list[PreferencePair], PairReport]:
    """Return the pairs that can be learned from, and what became of the others.

    Raises:
        DataError: When none is left.
    """
    counts = dict.fromkeys(("identical", "empty", "ties", "duplicates", "contradictions"), 0)
    orders = {(p.prompt, p.chosen, p.rejected) for p in pairs}
    kept, seen = [], set()
    for pair in pairs:
        key = (pair.prompt, pair.chosen, pair.rejected)
        if problem := _problem(pair):
            counts[problem] += 1
        elif (pair.prompt, pair.rejected, pair.chosen) in orders:
            counts["contradictions"] += 1
        elif key in seen:
            counts["duplicates"] += 1
        else:
            kept.append(pair)
            seen.add(key)
    if not kept:
        what = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "there is none"
        raise DataError(f"No preference pair can be learned from: of {len(pairs)}, {what}.")
    return kept, PairReport(len(pairs), len(kept), **counts, length=length_bias(kept))


def length_bias(pairs: Sequence[PreferencePair], margins: Sequence[float] | None = None) -> LengthBias:
    """Return how far preferences go with length.

    Args:
        pairs: The pairs.
        margins: How strongly a judge or a reward model prefers each chosen side, negative where it prefers the rejected
            one. Left out, the pairs' own order counts, each with the same strength.
    """
    strength = [1.0] * len(pairs) if margins is None else list(margins)
    lengths = [(len(p.words("chosen")), len(p.words("rejected"))) for p in pairs]
    gaps = [a - b for a, b in lengths]
    signed = [gap * math.copysign(1.0, s) for gap, s in zip(gaps, strength, strict=True) if s]
    ahead = [pair if s > 0 else pair[::-1] for pair, s in zip(lengths, strength, strict=True)]
    # Over both orders of every pair, gaps and strengths have the mean 0, so this is Pearson's correlation.
    norm = math.sqrt(sum(g * g for g in gaps) * sum(s * s for s in strength))
    return LengthBias(
        pairs=len(signed),
        longer=sum(gap > 0 for gap in signed),
        shorter=sum(gap < 0 for gap in signed),
        correlation=sum(g * s for g, s in zip(gaps, strength, strict=True)) / norm if norm else 0.0,
        mean_preferred=sum(a for a, _ in ahead) / max(1, len(ahead)),
        mean_other=sum(b for _, b in ahead) / max(1, len(ahead)),
    )


def _problem(pair: PreferencePair) -> str:
    """Return what makes a pair useless by itself, as the name of its count."""
    chosen, rejected = pair.words("chosen"), pair.words("rejected")
    if not pair.question.strip() or not chosen.strip() or not rejected.strip():
        return "empty"
    if chosen == rejected:
        return "identical"
    return "ties" if pair.margin == 0 else ""
