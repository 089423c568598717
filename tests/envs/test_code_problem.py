from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.envs.arithmetic_wording import PEOPLE
from trajgym.envs.code_problem import Draw, Problem, kinds_of, listed, rounded


@given(low=st.integers(-99, 99), width=st.integers(0, 9), seed=st.integers(0, 99))
def test_whole_numbers_lie_within_their_bounds_and_all_are_drawn(low: int, width: int, seed: int) -> None:
    drawn = Draw(random.Random(seed)).wholes(600, low, low + width)
    assert set(drawn) == set(range(low, low + width + 1))


def test_some_items_are_all_different_and_in_every_order() -> None:
    draw = Draw(random.Random(1))
    orders = {tuple(draw.some((1, 2, 3), 3)) for _ in range(200)}
    assert len(orders) == 6
    assert {len(set(draw.some(range(9), 4))) for _ in range(50)} == {4}


def test_letters_and_names() -> None:
    draw = Draw(random.Random(2))
    assert set(draw.letters("abc", 300)) == set("abc")
    names = draw.names(7)
    assert len(set(names)) == 7
    assert set(names) <= {person.name for person in PEOPLE}
    assert len({draw.name() for _ in range(300)}) == len(PEOPLE)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (Fraction(2, 3), 2, "0.67"),
        (Fraction(-2, 3), 2, "-0.67"),
        (Fraction(5), 3, "5.000"),
        (Fraction(1999, 1000), 2, "2.00"),
        (Fraction(-1, 1000), 2, "0.00"),
        (Fraction(1, 10), 4, "0.1000"),
        (Fraction(123456, 100), 1, "1234.6"),
        (Fraction(1, 200), 2, None),  # a tie
        (Fraction(-25, 10), 0, None),
        (Fraction(50001, 10**7), 2, None),  # too close to one
    ],
)
def test_values_are_rounded_unless_it_could_go_either_way(value: Fraction, digits: int, text: str | None) -> None:
    assert rounded(value, digits) == text


@given(value=st.fractions(-999, 999), digits=st.integers(1, 5))
def test_a_rounded_value_is_the_nearest_one(value: Fraction, digits: int) -> None:
    text = rounded(value, digits)
    if text is None:
        assert abs((value * 10**digits) % 1 - Fraction(1, 2)) < Fraction(1, 500)
    else:
        assert len(text.split(".")[1]) == digits
        assert abs(Fraction(text) - value) < Fraction(1, 2 * 10**digits)
        assert Fraction(text) == Fraction(f"{value.numerator / value.denominator:.{digits}f}")


def test_lists_read_as_english() -> None:
    assert [listed([1]), listed([1, 2]), listed([1, 2, 3])] == ["1", "1 and 2", "1, 2 and 3"]


def test_programs_lose_their_margin() -> None:
    calls = ("\n        for i in x:\n            y\n    ", "1 + 1")
    assert Problem("?", 2, calls).programs == ["for i in x:\n    y", "1 + 1"]


def test_kinds_are_called_as_their_makers() -> None:
    def easy(draw: Draw) -> Problem:
        return Problem("?", draw.whole(1, 1), ("1",))

    def hard(draw: Draw) -> Problem | None:
        return None

    kinds = kinds_of("group", {1: (easy,), 3: (hard,)})
    assert [(kind.name, kind.group, kind.level, kind.make) for kind in kinds] == [
        ("easy", "group", 1, easy),
        ("hard", "group", 3, hard),
    ]
