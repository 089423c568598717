"""What a reading tells: where it stands in the whole text, its tier, its reason."""

from __future__ import annotations

import pytest

from trajgym.rewards.answer_reading import MARKER_RULES, MAX_CHARACTERS, REASONS, RULES, Reading, read_with


def find_five(text: str) -> Reading[int]:
    """A reader that knows one number."""
    place = text.find("5")
    return Reading(None, None, "none", "nothing") if place < 0 else Reading(5, (place, place + 1), "hash")


def test_a_reading_shows_its_source() -> None:
    reading = read_with(find_five, "so 5")
    assert (reading.value, reading.source("so 5"), reading.tier, reading.marked) == (5, "5", 1, True)


def test_without_a_span_there_is_no_source() -> None:
    reading = read_with(find_five, "so")
    assert (reading.source("so"), reading.marked) == ("", False)


@pytest.mark.parametrize("text", ["\u200b5", "a\u200b\u200bb5\u200b", "\ufeff\u00ad5", "é\u20605"])
def test_what_is_not_seen_is_not_read_but_counted(text: str) -> None:
    assert read_with(find_five, text).source(text) == "5"


def test_what_is_too_long_is_not_given_to_the_reader() -> None:
    assert read_with(find_five, "5" * (MAX_CHARACTERS + 1)).reason == "too_long"
    assert read_with(find_five, "5" + " " * MAX_CHARACTERS).value == 5


def test_a_marker_without_a_value_is_not_marked() -> None:
    assert not Reading(None, (0, 4), "hash", "hedged").marked


def test_rules_and_reasons_are_words_for_people() -> None:
    assert {RULES[name].tier for name in MARKER_RULES} == {1, 2}
    assert len({rule.sign for rule in RULES.values()}) == len(RULES)
    assert all(REASONS.values())
