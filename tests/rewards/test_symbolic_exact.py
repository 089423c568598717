"""Exact values of formulas that are rational numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from trajgym.rewards.expression import read_expression
from trajgym.rewards.expression_tree import Scalar
from trajgym.rewards.symbolic_exact import UndefinedError, constant, power


def tree(text: str) -> Scalar:
    found = read_expression(text).tree
    assert isinstance(found, Scalar), text
    return found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/2 + 1/3", Fraction(5, 6)),
        ("2 * 3 - 10", -4),
        ("(2/3)^{-2}", Fraction(9, 4)),
        ("0^0", 1),
        ("0^5", 0),
        ("(-1)^{10^{90}}", 1),
        ("(-1)^{10^{90}+1}", -1),
        ("1^{-10^{90}}", 1),
        ("2^{3000}", 2**3000),
        ("10!", 3628800),
        (r"\binom{40}{20}", 137846528820),
        ("|-3/2|", Fraction(3, 2)),
        (r"\lfloor -3/2 \rfloor", -2),
        (r"\lceil -3/2 \rceil", -1),
        ("x", None),
        ("x - x", None),
        (r"\sqrt{4}", None),
        (r"\pi", None),
        ("(1/2)!", None),
        (r"\binom{1/2}{2}", None),
    ],
)
def test_constant(text: str, value: Fraction | int | None) -> None:
    assert constant(tree(text)) == value


@pytest.mark.parametrize(
    "text",
    [
        "1/0",
        "0^{-1}",
        "2^{4000}",
        "9^{9^{9^9}}",
        "10^{900}*10^{900}",
        "(1/2)^{4000}",
        "401!",
        "(-1)!",
        r"\binom{9999}{2}",
    ],
)
def test_no_value_or_too_large(text: str) -> None:
    with pytest.raises(UndefinedError):
        constant(tree(text))


def test_power_has_a_bound_of_its_own() -> None:
    assert power(Fraction(2), Fraction(4000), 4001) == 2**4000
    with pytest.raises(UndefinedError):
        power(Fraction(2), Fraction(4000))
    assert power(Fraction(4), Fraction(1, 2)) is None
