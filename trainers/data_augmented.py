"""New problems made of old ones, and what became of those of which none could be made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trajgym.errors import DataError

__all__ = ["Augmented", "gathered"]


@dataclass(frozen=True)
class Augmented:
    """New problems.

    Args:
        what: What was done, as a participle: ``"renumbered"``, …
        rows: The new problems, ``{question, answer}`` and perhaps more, in the order of the old ones.
        sources: For each, the place of the row that it was made of.
        refused: Why nothing was made of the other rows, with their places, the most frequent reason first.
    """

    what: str
    rows: tuple[dict[str, str], ...]
    sources: tuple[int, ...]
    refused: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Share of the old problems of which new ones were made."""
        made = len(set(self.sources))
        return made / max(1, made + sum(map(len, self.refused.values())))

    @property
    def summary(self) -> str:
        """One line for people."""
        made = len(set(self.sources))
        total = made + sum(map(len, self.refused.values()))
        reasons = "".join(f"; {len(rows):,} refused: {reason}" for reason, rows in self.refused.items())
        return f"{made:,} of {total:,} problems {self.what} ({self.share:.1%}), {len(self.rows):,} new rows{reasons}"


def gathered(
    what: str,
    rows: Sequence[Mapping[str, Any]],
    attempts: Iterable[int],
    make: Callable[[int, int], Mapping[str, str]],
) -> Augmented:
    """Make new problems of rows, none of them twice and none that is among the old ones.

    Args:
        what: As in :class:`Augmented`.
        rows: The old problems.
        attempts: Numbers of the attempts with each row.
        make: Makes a problem of a row, given its place and the number of the attempt; raises
            :class:`~trajgym.errors.DataError` with the reason where it cannot.

    Raises:
        DataError: When a row has no ``question``.
    """
    numbers = list(attempts)
    known = {row.get("question") for row in rows}
    made: list[dict[str, str]] = []
    sources: list[int] = []
    reasons: dict[int, str] = {}
    for i, row in enumerate(rows):
        if not isinstance(row.get("question"), str):
            raise DataError(f"Row {i + 1}: needs a 'question' to make a new one of, its columns are {list(row)}.")
        for number in numbers:
            try:
                new = make(i, number)
            except DataError as error:
                reasons[i] = str(error)
                continue
            if new["question"] in known:
                reasons[i] = "it comes out as a problem that exists"
                continue
            known.add(new["question"])
            made.append(dict(new))
            sources.append(i)
    refused: dict[str, list[int]] = {}
    used = set(sources)
    for i, reason in reasons.items():
        if i not in used:
            refused.setdefault(reason, []).append(i)
    ranked = sorted(refused.items(), key=lambda pair: -len(pair[1]))
    return Augmented(what, tuple(made), tuple(sources), {reason: tuple(places) for reason, places in ranked})
