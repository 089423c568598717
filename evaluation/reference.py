"""Figures that the founding document gives for its own models: quoted beside a result, never taken for one.

>>> quoted("GSM8KTool-v0", ["Qwen/Qwen3-0.6B"])[0]
'Qwen3-0.6B after supervised fine-tuning: 40 to 50 % on GSM8K, as the founding document says; not measured here'
>>> quoted("ArithmeticTool-v0", ["Qwen/Qwen3-0.6B"])
[]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["BANDS", "Band", "quoted"]


@dataclass(frozen=True)
class Band:
    """A range of accuracies that somebody else has given.

    Args:
        model: What the model's name ends with.
        benchmark: What the environment's id begins with.
        stage: After which training.
        low: Share of right answers.
        high: The same, at the upper end.
        source: Who says so.
    """

    model: str
    benchmark: str
    stage: str
    low: float
    high: float
    source: str = "the founding document"


BANDS = (
    Band("Qwen3-0.6B", "GSM8K", "after supervised fine-tuning", 0.40, 0.50),
    Band("Qwen3-0.6B", "GSM8K", "after reinforcement learning", 0.60, 0.70),
)


def quoted(environment: str, models: Iterable[str]) -> list[str]:
    """Return a line for each band that is about one of these models on this environment.

    Args:
        environment: Its id.
        models: Names or folders.
    """
    names = [name.rstrip("/").casefold() for name in models]
    return [
        f"{band.model} {band.stage}: {100 * band.low:.0f} to {100 * band.high:.0f} % on {band.benchmark}, as "
        f"{band.source} says; not measured here"
        for band in BANDS
        if environment.rpartition(":")[2].startswith(band.benchmark)
        and any(name.endswith(band.model.casefold()) for name in names)
    ]
