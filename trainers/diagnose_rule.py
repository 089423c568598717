"""What a rule of diagnosis is, and what it finds."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trajgym.trainers.diagnose_changes import Change, Move, Options
from trajgym.trainers.diagnose_history import History

__all__ = ["Evidence", "Finding", "Rule", "Severity"]


class Severity(str, enum.Enum):
    """How much a finding matters."""

    NOTE = "note"  # worth knowing
    WARNING = "warning"  # the run loses something; look into it soon
    SERIOUS = "serious"  # what is trained from here on is likely worthless; stop and change something


@dataclass(frozen=True)
class Evidence:
    """What a rule saw.

    Args:
        text: One or more sentences with the numbers.
        size: How bad it is, in any unit that grows with it; a live run is told again when it has doubled.
        severity: Instead of the rule's own.
    """

    text: str
    size: float = 1.0
    severity: Severity | None = None


@dataclass(frozen=True)
class Finding:
    """One thing that goes wrong, in words for somebody who sees it for the first time.

    Args:
        rule: Name of the rule.
        severity: How much it matters.
        evidence: What was seen, with the numbers.
        cause: Where it usually comes from.
        remedy: What to do; names of options stand in backticks.
        changes: Options with a new value, for the next run.
        size: See :class:`Evidence`.
        first: The update at which it was first seen; ``None`` for advice that needs no run.
        last: The update at which it was last seen.
        over: Whether it was gone at the end of what was read.
    """

    rule: str
    severity: Severity
    evidence: str
    cause: str
    remedy: str
    changes: tuple[Change, ...] = ()
    size: float = 1.0
    first: int | None = None
    last: int | None = None
    over: bool = False

    @property
    def advice(self) -> str:
        """Cause, remedy and proposed values, as running text."""
        tail = f" Try {', '.join(map(str, self.changes))}." if self.changes else ""
        return f"{self.cause} {self.remedy}{tail}"

    @property
    def text(self) -> str:
        """Everything, as running text."""
        return f"{self.evidence} {self.advice}"

    def renamed(self, names: Mapping[str, str]) -> Finding:
        """Return the finding with options called as another trainer calls them.

        Args:
            names: From our names to the other ones; what is missing keeps its name.
        """
        swap = re.compile(r"`(\w+)`")
        cause, remedy = (
            swap.sub(lambda found: f"`{names.get(found[1], found[1])}`", text) for text in (self.cause, self.remedy)
        )
        changes = tuple(dataclasses.replace(c, option=names.get(c.option, c.option)) for c in self.changes)
        return dataclasses.replace(self, cause=cause, remedy=remedy, changes=changes)


@dataclass(frozen=True)
class Rule:
    """One way in which a run goes wrong.

    Args:
        name: Its name.
        severity: How much it matters, unless the evidence says otherwise.
        symptom: When it speaks, for the documentation.
        cause: See :class:`Finding`.
        remedy: See :class:`Finding`.
        check: Looks at the metrics so far and at the options; ``None`` where only an error shows it.
        moves: What to propose.
        errors: Words of error messages that mean the same, in lower case.
    """

    name: str
    severity: Severity
    symptom: str
    cause: str
    remedy: str
    check: Callable[[History, Options], Evidence | None] | None = None
    moves: tuple[Move, ...] = ()
    errors: tuple[str, ...] = ()

    def __call__(self, history: History, options: Options) -> Finding | None:
        """Return what the rule finds in the metrics so far, if anything."""
        evidence = None if self.check is None else self.check(history, options)
        return None if evidence is None else self.finding(evidence, options, history.update)

    def finding(self, evidence: Evidence, options: Options, update: int) -> Finding:
        """Return the finding for this evidence.

        Args:
            evidence: What was seen.
            options: Decide which changes to propose.
            update: When it was seen; 0 for before the run.
        """
        proposed = (move(options) for move in self.moves)
        return Finding(
            rule=self.name,
            severity=evidence.severity or self.severity,
            evidence=evidence.text,
            cause=self.cause,
            remedy=self.remedy,
            changes=tuple(change for change in proposed if change is not None),
            size=evidence.size,
            first=update or None,
            last=update or None,
        )
