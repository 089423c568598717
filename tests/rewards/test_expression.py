r"""Reading mathematical answers into trees."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.rewards.expression import read_expression
from trajgym.rewards.expression_tree import (
    MAX_CHARACTERS,
    MAX_ITEMS,
    MAX_NODES,
    Call,
    Constant,
    Listing,
    Matrix,
    Node,
    Number,
    Power,
    Product,
    Relation,
    Sum,
    Symbol,
    Union,
    Words,
    parts,
)

X, Y = Symbol("x"), Symbol("y")


def number(value: int | str) -> Number:
    return Number(Fraction(value))


ONE, TWO, THREE, MINUS = number(1), number(2), number(3), number(-1)
INFINITY = Constant("infinity")

TREES: list[tuple[str, Node]] = [
    ("2", TWO),
    ("-2", number(-2)),
    ("+2", TWO),
    ("1,234.5", number("1234.5")),
    ("2e-3", number("0.002")),
    ("x + 1", Sum((X, ONE))),
    ("x - y", Sum((X, Product((MINUS, Y))))),
    ("2x", Product((TWO, X))),
    ("d/x", Product((Symbol("d"), Power(X, MINUS)))),
    (r"\frac{dx}{y}", Product((Product((Symbol("d"), X)), Power(Y, MINUS)))),
    ("x / 2", Product((X, Power(TWO, MINUS)))),
    (r"\frac{x}{2}", Product((X, Power(TWO, MINUS)))),
    (r"\frac{1}{2}", number("1/2")),
    (r"\frac12", number("1/2")),
    (r"\frac1x", Product((ONE, Power(X, MINUS)))),
    ("1 2/3", number("5/3")),
    (r"1\frac23", number("5/3")),
    ("1⅔", number("5/3")),
    ("x^2", Power(X, TWO)),
    ("x²", Power(X, TWO)),
    ("-x^2", Product((MINUS, Power(X, TWO)))),
    ("x^-2", Power(X, number(-2))),
    ("x^{-2}", Power(X, number(-2))),
    ("x^2^3", Power(X, Power(TWO, THREE))),
    (r"x^2\frac{1}{3}", Product((Power(X, TWO), number("1/3")))),
    (r"\sqrt{x}", Power(X, Power(TWO, MINUS))),
    (r"\sqrt[3]x", Power(X, Power(THREE, MINUS))),
    ("sqrt(x)", Power(X, Power(TWO, MINUS))),
    (r"\sin x", Call("sin", (X,))),
    ("sin(x)y", Product((Call("sin", (X,)), Y))),
    (r"\sin xy", Call("sin", (Product((X, Y)),))),
    (r"\sin^2 x", Power(Call("sin", (X,)), TWO)),
    (r"\sin^{-1} x", Call("arcsin", (X,))),
    ("exp(x)", Power(Constant("e"), X)),
    (r"\log_2 x", Call("log", (X, TWO))),
    (r"\log x", Call("log", (X,))),
    ("|x|", Call("abs", (X,))),
    ("2|x|y", Product((TWO, Call("abs", (X,)), Y))),
    (r"\lfloor x \rfloor", Call("floor", (X,))),
    ("x!", Call("factorial", (X,))),
    (r"\binom{x}{2}", Call("binomial", (X, TWO))),
    (r"\theta_1", Symbol("theta_1")),
    ("(x)", X),
    ("(1, 2)", Listing("()", (ONE, TWO))),
    ("[1, 2)", Listing("[)", (ONE, TWO))),
    (r"\{1, 2\}", Listing("set", (ONE, TWO))),
    ("{1, 2}", Listing("set", (ONE, TWO))),
    ("1, 2", Listing("list", (ONE, TWO))),
    ("1, 2, and 3", Listing("list", (ONE, TWO, THREE))),
    ("x or y", Listing("list", (X, Y))),
    (r"\pm x", Listing("list", (X, Product((MINUS, X))))),
    (r"\{\pm x\}", Listing("set", (X, Product((MINUS, X))))),
    (r"1 \mp x", Listing("list", (Sum((ONE, Product((MINUS, X)))), Sum((ONE, X))))),
    ("2:1", Listing("ratio", (TWO,))),
    (r"(-\infty, 1)", Listing("()", (Call("negative", (INFINITY,)), ONE))),
    (r"[1,2]\cup[3,3]", Union((Listing("[]", (ONE, TWO)), Listing("[]", (THREE, THREE))))),
    (r"\begin{bmatrix} 1 & 2 \\ x & y \\ \end{bmatrix}", Matrix(((ONE, TWO), (X, Y)))),
    (r"\begin{array}{cc} 1 & 2 \end{array}", Matrix(((ONE, TWO),))),
    ("[[1, 2], [x, y]]", Matrix(((ONE, TWO), (X, Y)))),
    ("x = 2", Relation(("=",), (X, TWO))),
    ("1 < x <= 2", Relation(("<", "<="), (ONE, X, TWO))),
    (r"x \in [1,2]", Relation(("in",), (X, Listing("[]", (ONE, TWO))))),
    ("f(x) = 2", TWO),
    ("2 cm", TWO),
    (r"2\text{ m/s}", TWO),
    (r"2\text{ cm}^3", TWO),
    ("$2$", TWO),
    (r"2\%", TWO),
    (r"2^\circ", TWO),
    ("2.", TWO),
    ("no", Words("no")),
    (r"\text{Tuesday}", Words("tuesday")),
    ("does not exist", Words("does not exist")),
    ("12_3", Words("12_3")),
    ("abc", Product((Symbol("a"), Symbol("b"), Symbol("c")))),
    ("π", Constant("pi")),
    ("ω", Symbol("omega")),
]

REFUSED = [
    ("", "empty"),
    ("2 +", "missing"),
    ("(2", "missing"),
    ("2)", "cannot be read"),
    ("2 3", "behind a value"),
    ("x2", "behind a value"),
    ("1.2.3", "no number"),
    ("1e999", "exponent"),
    ("1" * 999 + "e5", "characters"),
    ("#", "sign"),
    (r"\int x", r"\\int"),
    (r"\frac{d}{dx}x^2", "derivative"),
    (r"\frac{d^{2}y}{dx^{2}}", "derivative"),
    (r"\frac{\mathrm{d}(x+1)}{\mathrm{d}x}", "derivative"),
    ("3 dy/dx", "derivative"),
    ("d/dx x^2", "derivative"),
    ("d^2y/dx^2", "derivative"),
    ("(dy)/(dx)", "derivative"),
    (r"\infty + 1", "no number"),
    ("[1,2] + 1", "no number"),
    ("[1,2)[3,4)", "no number"),
    (r"1 \cup 2", "no set"),
    ("(1,2,3]", "two ends"),
    ("5!!", "double"),
    (r"\min(1,2)", "worked out"),
    (r"\begin{vmatrix}1\end{vmatrix}", "determinant"),
    (r"\begin{pmatrix}1&2\\3\end{pmatrix}", "differ in length"),
    ("(" * 60 + "x", "deep"),
    ("x^" * 60 + "x", "deep"),
    ("x" * 3 + "+x" * MAX_NODES, "parts"),
    (",".join("1" * (MAX_ITEMS + 1)), "values"),
    ("x+" * MAX_CHARACTERS, "characters"),
]


@pytest.mark.parametrize(("text", "tree"), TREES)
def test_tree(text: str, tree: Node) -> None:
    assert read_expression(text) == (tree, "")


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_refused(text: str, reason: str) -> None:
    tree, why = read_expression(text)
    assert tree is None
    assert reason in why.replace("\\", r"\\") if "\\" in reason else reason in why


def test_degrees_count_where_an_angle_is_wanted() -> None:
    tree = read_expression(r"\sin 30^\circ").tree
    assert tree is not None
    assert Constant("pi") in set(parts(tree))
    tree = read_expression(r"\ln 30^\circ").tree
    assert tree is not None
    assert Constant("pi") not in set(parts(tree))


PIECES = r"""
x y 0 5 72 .5 - + * / ^ = < > ( ) [ ] { } \{ \} , . $ \frac \sqrt \pm \cup \infty \pi \text{ | ! % ° ² ½ _ & \\ sin log
\begin{pmatrix} \end{pmatrix} \left \right or and cm the \left| \right| : ; √ \binom \lfloor \rfloor 1,000 e i \overline
"""


@given(st.lists(st.sampled_from([*PIECES.split(), " "]), max_size=60).map("".join) | st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    tree, reason = read_expression(text)
    assert (tree is None) is bool(reason)
    if tree is not None:
        assert sum(1 for _ in itertools.islice(parts(tree), 10 * MAX_NODES)) < 10 * MAX_NODES


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**9))
def test_fractions_are_read_exactly(top: int, low: int) -> None:
    assert read_expression(rf"\frac{{{top}}}{{{low}}}").tree == Number(Fraction(top, low))
