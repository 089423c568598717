"""The numbers of a problem: which stand alone, and which values the wording brings along."""

from __future__ import annotations

from fractions import Fraction

import pytest

from trajgym.trainers.data_numerals import implied_values, numerals, refusal, spelled_values, written


def plain(text: str, *, working: bool = False) -> list[int]:
    return [int(n.value) for n in numerals(text, working=working) if n.plain]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He has 20 apples, 1,000 pears and $35.", [20, 1000, 35]),
        ("Pay $1,250.", [1250]),
        ("(16) of 17, 18; 19?", [16, 17, 18, 19]),
        ("3.5 of 007 and 0 and 1,00", []),
        ("25% or 30 percent", []),
        ("3/4 of the 5:30 train, 9-10, #12, B16, 20th, 21 st, 5-year", []),
        ("in 1999 for $1999 or 1,999", [1999, 1999]),
        ("an 8 hour day, a $9 pen, the 7", [7]),
        ("2 million", []),
        ("It costs 5.", [5]),
    ],
)
def test_numbers_that_stand_alone(text: str, expected: list[int]) -> None:
    assert plain(text) == expected


def test_signs_of_a_calculation_do_not_tie_numbers_together() -> None:
    assert plain("So 60*8=$480-20 is (7+5)x3 = 20 x 4", working=True) == [60, 8, 480, 20, 7, 5, 3, 20, 4]
    assert plain("60*8", working=False) == [60, 8]  # the sign is no letter
    assert plain("7x8") == []


def test_values_and_percentages() -> None:
    found = list(numerals("1,000.5 and .25 and 40% of 3"))
    assert [n.value for n in found] == [Fraction(2001, 2), Fraction(1, 4), 40, 3]
    assert [n.percent for n in found] == [False, False, True, False]


def test_the_wording_brings_values_along() -> None:
    assert spelled_values("Twenty-five of a hundred; seven") >= {25, 100, 7}
    assert {2, 50} <= implied_values("twice")
    assert 7 in implied_values("every week")
    assert {12, 60} <= implied_values("in two hours")
    assert 100 in implied_values("5% off")
    assert 12 in implied_values("a dozen")
    assert implied_values("He sells pens.") == {0, 1}


@pytest.mark.parametrize(
    "text",
    ["He is 12 years old", "at 5 pm", "at least 3", "on average", "what percent of", "the nearest", "x = 3", "most of"],
)
def test_problems_about_more_than_numbers_are_refused(text: str) -> None:
    assert refusal(text)


def test_others_are_not() -> None:
    assert refusal("He sells 12 pens on Monday, and 30 pencils. How many things?") == ""


def test_numbers_are_written_as_their_neighbours_are() -> None:
    assert written(Fraction(1200), "1,000") == "1,200"
    assert written(Fraction(1200), "1000") == "1200"
    assert written(Fraction(12), "1,000") == "12"
