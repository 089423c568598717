"""What goes wrong is told once it is clear, not at every jump, and not again and again."""

from __future__ import annotations

from typing import Any

import pytest

from trajgym.trainers.alarms import Alarms
from trajgym.trainers.diagnose import Severity

SHARES = [
    "unreadable_share", "call_error_share", "unknown_tool_share", "tool_error_share", "cut_turn_share",
    "truncated_share",
]  # fmt: skip


def told(
    values: list[float], name: str = "tool_error_share", alarms: Alarms | None = None, first: int = 1
) -> list[int]:
    """The updates at which there was a warning."""
    alarms = alarms or Alarms()
    return [i for i, value in enumerate(values, first) if alarms.check({"update": i, name: value})]


@pytest.mark.parametrize("name", SHARES)
def test_each_share_is_watched_and_explained(name: str) -> None:
    alarms = Alarms()
    warnings = [alarms.check({"update": i, name: 0.0 if i < 4 else 0.2}) for i in range(1, 7)]
    assert warnings[:4] == [[]] * 4
    (warning,) = warnings[4]
    assert warning.evidence.startswith("13% of ")
    assert warning.text.startswith(warning.evidence)
    assert len(warning.text) > 60


def test_the_loss_must_be_large_and_last() -> None:
    assert told([0.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0]) == []  # one bad update
    assert told([0.0, 0.0, 0.0, 0.09, 0.09, 0.09, 0.09]) == []  # small
    assert told([0.3, 0.3, 0.3, 0.42, 0.42, 0.42]) == []  # grown, not doubled
    assert told([0.1, 0.1, 0.1, 0.22, 0.22, 0.22]) == [6]


def test_a_great_loss_is_told_from_the_start() -> None:
    assert told([0.6, 0.6, 0.6]) == [3]


def test_falling_is_no_alarm_and_sets_the_mark() -> None:
    assert told([0.4, 0.3, 0.2, 0.1, 0.05, 0.0, 0.0, 0.0]) == []
    assert told([0.4, 0.3, 0.2, 0.0, 0.0, 0.0, 0.4]) == [7]


def test_told_again_only_when_much_worse_or_much_later() -> None:
    shares = [0.0, 0.0, 0.0] + [0.2] * 40
    assert told(shares) == [5, 25]
    assert told([0.0, 0.0, 0.0, 0.2, 0.2, 0.2, 0.45, 0.45, 0.45]) == [5, 7]
    assert told([0.6] * 45, "kl") == [3, 23, 43]
    assert told([0.6, 0.6, 0.6, 0.9, 0.9, 0.9, 1.5, 1.5, 1.5], "kl") == [3, 8]


def test_a_resumed_run_remembers() -> None:
    before = [{"update": i, "tool_error_share": 0.0} for i in (1, 2, 3)]
    assert told([0.2, 0.2], alarms=Alarms(before), first=4) == [5]
    assert told([0.2, 0.2]) == []
    alarmed = [{"update": i, "kl": 0.6} for i in range(1, 5)]
    assert told([0.6] * 20, "kl", Alarms(alarmed), first=5) == [23]


def test_what_was_not_measured_says_nothing() -> None:
    assert Alarms().check({"update": 1, "reward": 0.0}) == []


def test_notes_are_not_told() -> None:
    assert told([0.3] * 5, "kl") == []  # a note: kl_watch


def test_each_rule_is_remembered_by_itself_and_the_most_serious_comes_first() -> None:
    alarms = Alarms(options={"kl_coef": 0.05})
    row: dict[str, Any] = {"kl": 0.6, "tool_error_share": 0.6}
    found = [alarms.check({"update": i, **row}) for i in (1, 2, 3)][-1]
    assert [(finding.rule, finding.severity) for finding in found] == [
        ("kl_explosion", Severity.SERIOUS),
        ("tool_errors", Severity.WARNING),
    ]
    assert [str(change) for change in found[0].changes] == ["kl_coef 0.05 → 0.1"]
