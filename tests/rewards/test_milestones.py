"""Numbers in texts, and the values on the way to an answer."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.rewards.milestones import all_numbers, milestones, numbers_in, one_number
from trajgym.types import Task


def test_numbers_in_texts() -> None:
    found = numbers_in("1,000 and -2.50, 3,4 [5,6] x7 8/9 ½ 10,0001")
    assert found == {Fraction(n) for n in (1000, 3, 4, 5, 6, 7, 8, 9, 10, 1)} | {Fraction(5, 2)}


def test_all_of_them_in_order() -> None:
    assert all_numbers("24 + 24 = 48.0, not 1,0") == [24, 24, 48, 1, 0]
    assert all_numbers("9" * 41) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [("24", 24), (" -2.50\n", Fraction(5, 2)), ("+1,000", 1000), ("24 or so", None), ("", None), ("1 2", None),
     ("9" * 41, None), ("9" * 200_000, None), ("1e5", None)],
)  # fmt: skip
def test_one_number(text: str, value: Any) -> None:
    assert one_number(text) == value


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert all(number >= 0 for number in all_numbers(text))
    assert one_number(text) is None or {one_number(text)} == numbers_in(text)


@pytest.mark.parametrize(
    ("metadata", "values"),
    [
        ({"steps": [24, 72]}, {24, 72}),
        ({"steps": [48, -24, "1,000", "2/3", None]}, {24, 1000}),
        ({"full_answer": "48/2 = <<48/2=24>>24, 48+24 = <<48+24=72>>72\n#### 72"}, {24, 72}),
        ({"full_answer": "<<1/3=1/3>> <<3*500=1,500>> <<x>> <<2=2=2>>"}, {1500}),
        ({"steps": "24 72"}, set()),
        ({}, set()),
    ],
)
def test_milestones(metadata: dict[str, Any], values: set[int]) -> None:
    assert milestones(Task("t", "48 clips", "72", metadata=metadata)) == values
