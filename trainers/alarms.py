"""When to tell a running training what is going wrong: once it is clear, not at every update.

What is wrong is decided by the rules of :mod:`trajgym.trainers.diagnose`; this is about when to say so again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trajgym.trainers.diagnose import look
from trajgym.trainers.diagnose_changes import Options
from trajgym.trainers.diagnose_history import History
from trajgym.trainers.diagnose_rule import Finding, Severity

__all__ = ["Alarms"]

_REPEAT = 20  # updates until a finding is told again, unless it has become twice as bad


class Alarms:
    """Watches a run and tells each finding once, and again when it is twice as bad or still there much later.

    Notes are not told; ``trajgym diagnose`` shows them.

    Args:
        history: Metrics of the updates before, where a run is resumed: what was told then is not told again.
        options: The run's options by name.

    >>> alarms = Alarms()
    >>> for share in (0.02, 0.02, 0.02, 0.3, 0.3):
    ...     told = alarms.check({"update": 1, "tool_error_share": share})
    >>> [finding.evidence for finding in told]
    ["21% of calls ended in a tool's error; it was 2% up to update 1."]
    """

    def __init__(self, history: Iterable[Mapping[str, Any]] = (), options: Options | None = None) -> None:
        self._options: Options = {} if options is None else options
        self._history = History()
        self._told: dict[str, tuple[int, float]] = {}  # rule → update and size of when it was told
        for metrics in history:
            self.check(metrics)

    def check(self, metrics: Mapping[str, Any]) -> list[Finding]:
        """Take in one update's metrics and return what to tell, the most serious first.

        Args:
            metrics: Numbers by name, ``"update"`` among them; a metric that is missing says nothing.
        """
        self._history.add(metrics)
        found = (f for f in look(self._history, self._options) if f.severity is not Severity.NOTE)
        return [finding for finding in found if self._news(finding)]

    def _news(self, finding: Finding) -> bool:
        last, told = self._told.get(finding.rule, (-_REPEAT, 0.0))
        update = self._history.update
        if update < last + _REPEAT and finding.size < 2 * told:
            return False
        self._told[finding.rule] = (update, finding.size)
        return True
