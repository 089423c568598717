"""Quotients of polynomials, and formulas made of other things, by their remainders."""

from __future__ import annotations

import sys

import pytest

from trajgym.errors import ConfigError
from trajgym.rewards import symbolic_modular
from trajgym.rewards.expression import read_expression
from trajgym.rewards.expression_tree import Scalar
from trajgym.rewards.symbolic_exact import UndefinedError
from trajgym.rewards.symbolic_modular import proportional, same_function

pytest.importorskip("sympy")


def tree(text: str) -> Scalar:
    found = read_expression(text).tree
    assert isinstance(found, Scalar), text
    return found


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
        ("(0x)^0", "1", True),
        ("((-x)^{64})^{64}", "x^{64}", False),
        ("((2x)^{64})^{64}", "2^{4096}x^{4096}", True),
        ("1" + "0" * 40 + " x", "x", False),
        ("(a+b+c+d)^{99999}", "(d+c+b+a)^{99999}", True),
        ("(a+b+c+d)^{99999}", "(d+c+b+a)^{99999}+10^{-300}", False),
        ("(x + i)(x - i)", "x^2 + 1", True),
        ("i", "-i", False),
        # beyond quotients of polynomials
        (r"\sin(x + y)", r"\sin(y + x)", True),
        (r"2^{2n} + \pi", r"\pi + 2^{n + n}", True),
        ("x^{10^{100}}", "x^{10^{100}}", True),
        ("x^{10^{100}}", "x^{10^{100}} + 1", None),
        (r"\sqrt{x}", "x", None),
        (r"\sqrt{x}\sqrt{x}", "x", None),
        ("x^y", "x^z", None),
        (r"\pi x", "x", None),
    ],
)
def test_same_function(a: str, b: str, same: bool | None) -> None:
    assert same_function(tree(a), tree(b)) is same
    assert same_function(tree(b), tree(a)) is same


@pytest.mark.parametrize(
    ("a", "b", "proportion"),
    [
        ("2x + 2", "x + 1", True),
        ("1 - x", "x - 1", True),
        ("x^2", "x", False),
        ("x^{99}y^{99}", "x^{99}y^{99} + 1", False),
        ("0x", "x", False),
        ("0x", "0y", False),
        (r"2\sin x", r"\sin x", True),
        (r"\sin x", r"\cos x", None),
    ],
)
def test_proportional(a: str, b: str, proportion: bool | None) -> None:
    assert proportional(tree(a), tree(b)) is proportion
    assert proportional(tree(b), tree(a)) is proportion


def test_a_denominator_that_is_zero_everywhere() -> None:
    with pytest.raises(UndefinedError):
        same_function(tree(r"\frac{1}{x-x}"), tree("x"))
    with pytest.raises(UndefinedError):
        proportional(tree("x"), tree(r"\frac{1}{(x+1)^2-x^2-2x-1}"))


def test_a_number_that_vanishes_in_the_field_is_no_denominator() -> None:
    prime = symbolic_modular._field().prime
    assert same_function(tree(f"{prime} x"), tree("0")) is True  # as likely as to guess the prime
    with pytest.raises(UndefinedError):
        same_function(tree(f"0.5x/{prime}"), tree("x"))


def test_the_field_has_a_root_of_minus_one() -> None:
    sympy = pytest.importorskip("sympy")
    field = symbolic_modular._field()
    assert sympy.isprime(field.prime)
    assert field.prime.bit_length() == 127
    assert field.root**2 % field.prime == field.prime - 1


def test_without_sympy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sympy", None)
    symbolic_modular._field.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'trajgym\[math\]'"):
        same_function(tree("x"), tree("y"))
