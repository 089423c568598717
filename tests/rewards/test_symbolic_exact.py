"""Exact values, and quotients of polynomials."""

from __future__ import annotations

import sys
from fractions import Fraction

import pytest

from trajgym.errors import ConfigError
from trajgym.rewards.expression import read_expression
from trajgym.rewards.expression_tree import Scalar
from trajgym.rewards.symbolic_exact import UndefinedError, constant, same_function

pytest.importorskip("sympy")


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


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("(x+y)^3", "x^3+3x^2y+3xy^2+y^3", True),
        ("(x+y)^3", "x^3+y^3", False),
        (r"\frac{x}{x}", "1", True),
        (r"\frac{1}{x^{-2}}", "x^2", True),
        (r"\frac{1}{1-x}-\frac{1}{1+x}", r"\frac{2x}{1-x^2}", True),
        ("x^{64}", "x^{63}", False),
        ("0.1x", "x/10", True),
        ("x^{65}", "x", None),
        ("(0x)^0", "1", True),
        ("((2x)^{64})^{64}", "x", None),
        ("((-x)^{64})^{64}", "x^{64}", False),
        (r"\sqrt{x}", "x", None),
        ("x^y", "x", None),
        (r"\pi x", "x", None),
        ("(a+b+c+d)^{60}", "a", None),
        ("1" + "0" * 40 + " x", "x", None),
    ],
)
def test_same_function(a: str, b: str, same: bool | None) -> None:
    assert same_function(tree(a), tree(b)) is same
    assert same_function(tree(b), tree(a)) is same


def test_a_denominator_that_is_zero_everywhere() -> None:
    with pytest.raises(UndefinedError):
        same_function(tree(r"\frac{1}{x-x}"), tree("x"))


def test_without_sympy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sympy", None)
    with pytest.raises(ConfigError, match=r"pip install 'trajgym\[math\]'"):
        same_function(tree("x"), tree("y"))
