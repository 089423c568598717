"""Arithmetic in a text: found where it is meant, executed exactly, wrong only where it is."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.evaluation.equations import Equation, asked, called, equations
from trajgym.types import ToolCall, ToolResult

RIGHT = [
    ("48 / 2 = 24", ["24"]),
    ("He had 16 - 3 = <<16-3=13>>13 ducks left.", ["13"]),
    ("4 boxes * 64 bars = <<4*64=256>>256 bars", ["256"]),
    ("2 x 0.5 = 1.0 bolts", ["1"]),
    ("**48 * 2** = **96**", ["96"]),
    ("2**3 = 8", ["8"]),
    (r"\(48 \times 2 = 96\)", ["96"]),
    (r"\[\frac{48}{2} = 24\]", ["24"]),
    ("1. 4*2=8", ["8"]),
    ("- 4 * 2 = 8", ["8"]),
    ("He has (3+4 = 7) eggs", ["7"]),
    ("B = 64 / 8 = 8", ["8"]),
    ("2 + 3 = 5 + 4 = 9", ["5", "9"]),
    ("2 + 3 = 1 + 4", ["5"]),
    ("24 = 48 / 2", ["24"]),
    ("20/100 = 20%", ["1/5"]),
    ("10/3 = 3.33, 10/3 ≈ 3 and 10/3 = 4", ["10/3"]),
    ("10/3 = 3.3333333333333335", ["10/3"]),
    ("100 x 4 = $4.00", ["400"]),
    ("$1.50 x 10 = $15", ["15"]),
    ("In 2023, 4*2=8, and 3*3 = 9.", ["8", "9"]),
    (".25*44 = $<<.25*44=11.0>>11.00", ["11"]),
    ("8-50 = <<8-50=-42>>42 minutes", ["-42"]),
    ("5-3=2:00 pm", ["2"]),
    ("80,000+50,000=$130,000", ["130000"]),
    ("60 minutes x 3/4 = <<60*3/4=45>>45 minutes", ["45"]),
    ("250 x 12 = 3 000 grams", ["3000"]),
    ("60 / 3/4 = 80", ["80"]),
    ("250=(5/2)x, so 100 = 250 * 2/5", ["100"]),
]
WRONG = [
    "48/2 = 25",
    "2 + 3 = 6",
    "10/3 = 5",
    "130,000*.15 = $<<130000*.15=19500.0>>195,000",
    r"48 \times 2 = 97",
    "(1-.30)=20",
]
NOTHING = [
    "",
    "= 5",
    "x = 5",
    "72",
    "x - 4 * 2 = 8",
    "3 feet * 12 = 36",
    "1, 2, 3 = 6",
    "1/0 = 3",
    "4 1/2 * B = 8B = 64",
    "15 pages x 1/3 = 5",
    "9 = (3/4)*books",
    "16,0000/10=16000",
    "21/7 = 90/x",
    "a == b",
    "<<=>>",
]
HOSTILE = ["1+" * 50_000 + "=3", "(" * 99_000 + "=1", "$,." * 33_000 + "=1", "1 " * 30_000 + "a=1", "1=" * 50_000]


@pytest.mark.parametrize(("text", "values"), RIGHT)
def test_right_arithmetic(text: str, values: list[str]) -> None:
    found = equations(text)
    assert [str(e.value) for e in found] == values
    assert not any(e.wrong for e in found)


@pytest.mark.parametrize("text", WRONG)
def test_wrong_arithmetic(text: str) -> None:
    assert [e.wrong for e in equations(text)] == [True]


@pytest.mark.parametrize("text", NOTHING)
def test_no_arithmetic(text: str) -> None:
    assert equations(text) == []


def test_an_equation_says_what_went_in_and_what_was_claimed() -> None:
    [found] = equations("2 * $1,250 = 2,400")
    assert found == Equation("2 * $1,250", Fraction(2500), (Fraction(2), Fraction(1250)), Fraction(2400), True)
    assert str(found) == "2 * $1,250 = 2400"


@given(st.integers(-999, 999), st.integers(1, 999), st.sampled_from("+-*"))
def test_what_python_computes_is_never_wrong(a: int, b: int, operator: str) -> None:
    value = {"+": a + b, "-": a - b, "*": a * b}[operator]
    assert [e.wrong for e in equations(f"So ({a}) {operator} {b} = {value} in all.")] == [False]
    assert [e.wrong for e in equations(f"So ({a}) {operator} {b} = {abs(value) + 1} in all.")] == [True]


@given(st.text(alphabet="0123456789+-*/=()., $%x<>\\frac{}\n", max_size=60))
def test_no_text_raises(text: str) -> None:
    for equation in equations(text):
        assert equation.value is not None


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_take_no_time(text: str) -> None:
    start = time.process_time()
    equations(text)
    assert time.process_time() - start < 2


def test_tools_have_executed_what_they_were_asked() -> None:
    ran = ToolResult(ToolCall("calculator", {"expression": "48/2"}), "24")
    code = ToolResult(ToolCall("python", {"code": "print(12 * 12)"}), "144")
    text = ToolResult(ToolCall("python", {"code": "print('a')"}), "a")
    failed = ToolResult(ToolCall("calculator", {"expression": "1/0"}), "error", error="division_by_zero")
    assert [(e.expression, e.value, e.operands) for e in called([ran, code, text, failed])] == [
        ("48/2", Fraction(24), (Fraction(48), Fraction(2))),
        ("python", Fraction(144), (Fraction(12), Fraction(12))),
    ]
    assert asked(ToolCall("calculator", {"expression": 5})) is None
    assert asked(ToolCall("lookup", {})) is None
