"""Worked solutions taken apart and put together again."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.envs.tools.expression import CalculatorError, evaluate
from trajgym.errors import DataError
from trajgym.trainers.data_working import read_working

TEXT = "Tim has 3*4 = $<<3*4=12>>12 and 5.\nThen (12+5)/2 = <<(12+5)/2=8.5>>8.5 of 20%\n#### 1,000"


def test_places() -> None:
    working = read_working(TEXT)
    slots = [(TEXT[s.start : s.end], s.place, s.step, s.shown) for s in working.slots]
    assert slots == [
        *[("3", "text", 0, False), ("4", "text", 0, False)],
        *[("3", "literal", 0, False), ("4", "literal", 0, False), ("12", "result", 0, False)],
        *[("12", "text", 0, True), ("5", "text", 0, False)],
        *[("12", "text", 1, False), ("5", "text", 1, False), ("2", "text", 1, False)],
        *[("12", "literal", 1, False), ("5", "literal", 1, False), ("2", "literal", 1, False)],
        *[("8.5", "result", 1, False), ("8.5", "text", 1, True), ("20", "text", 1, False)],
        ("1,000", "final", 1, False),
    ]
    assert [s.value for s in working.slots if not s.plain] == [Fraction(17, 2)] * 2 + [20]
    assert [c.result for c in working.calculations] == [12, Fraction(17, 2)]


@st.composite
def expressions(draw: Any, depth: int = 3) -> str:
    if not depth or draw(st.booleans()):
        return str(draw(st.integers(1, 60)))
    left, right = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    text = f"{left}{draw(st.sampled_from('+-*/'))}{right}"
    return f"({text})" if draw(st.booleans()) else text


@given(expressions())
def test_calculations_come_to_what_the_calculator_says(expression: str) -> None:
    (calculation,) = read_working(f"<<{expression}=1>>1\n#### 1").calculations
    try:
        expected = Fraction(evaluate(expression))
    except CalculatorError:  # nothing but a division by zero can go wrong
        with pytest.raises(ZeroDivisionError):
            calculation.run(calculation.literals)
    else:
        assert calculation.run(calculation.literals)[-1] == expected


def test_what_a_wrong_annotation_says_is_not_what_it_comes_to() -> None:
    right, wrong = read_working("He sells 48/2=<<48/2=24>>24 and 48/2=<<48/2=25>>25.\n#### 49").calculations
    assert right.run(right.literals)[-1] == right.result == 24
    assert wrong.run(wrong.literals)[-1] == 24 != wrong.result == 25


@pytest.mark.parametrize("bad", ["1+", "+1", "(1", "1)", "1 2", "20%*5", "x*2", "1//2", "()", "2(3)", "1..2"])
def test_other_annotations_are_refused(bad: str) -> None:
    with pytest.raises(DataError, match="is not arithmetic of plain numbers"):
        read_working(f"<<{bad}=1>>1\n#### 1")


def test_results_that_are_none_are_refused_and_answers_may_be_missing() -> None:
    with pytest.raises(DataError, match="not arithmetic"):
        read_working("<<1+1=two>>2\n#### 2")
    assert [s.place for s in read_working("<<1+1=2>>2").slots] == ["literal", "literal", "result", "text"]


def test_gsm8k_is_put_together_as_it_was(gsm8k_data: Path) -> None:
    lines = (gsm8k_data / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    refused = 0
    for line in lines:
        text = json.loads(line)["answer"]
        try:
            working = read_working(text)
        except DataError:
            refused += 1
            continue
        slots = {slot: text[slot.start : slot.end] for slot in working.slots}
        assert working.filled(slots) == working.filled({}) == text
        starts = [slot.start for slot in working.slots]
        assert starts == sorted(set(starts))
        assert all(Fraction(shown.replace(",", "")) == slot.value for slot, shown in slots.items())
    assert (len(lines), refused) == (7473, 19)
