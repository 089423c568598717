r"""Comparing mathematical answers: pairs that are the same, and pairs that are not."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.rewards.expression_tree import Number, Power, Product, Scalar, Sum, Symbol
from trajgym.rewards.symbolic import equal_expressions, equal_trees
from trajgym.rewards.symbolic_modular import same_function
from trajgym.rewards.symbolic_numeric import same_values

sympy = pytest.importorskip("sympy")

EQUAL = [
    # numbers
    ("0.5", r"\frac{1}{2}"),
    ("1/2", "½"),
    (r"\frac12", r"\dfrac{2}{4}"),
    ("1 1/2", "1.5"),
    (r"2\frac{1}{3}", r"\frac{7}{3}"),
    (r"-1\frac12", "-3/2"),
    (r"0.\overline{3}", "1/3"),
    (r"0.1\overline{6}", r"\frac{1}{6}"),
    ("1,000", "1000"),
    (r"1{,}000", r"1\,000"),
    ("1e3", r"10^3"),
    (r"1.5 \times 10^6", "1500000"),
    ("-2^2", "-4"),
    ("(-2)^2", "4"),
    ("2^3^2", "512"),
    ("2^{-3}", "1/8"),
    ("5!", "120"),
    (r"\binom{5}{2}", "10"),
    (r"\lfloor 3.7 \rfloor", "3"),
    (r"\left\lceil 3.2 \right\rceil", "4"),
    ("|-3|", "3"),
    ("71.99999999999999", "72"),
    ("0.33333333", "1/3"),
    ("١٢", "12"),
    ("3 * -2", "-6"),
    # roots and constants
    (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\sqrt2", "2^{1/2}"),
    ("√12", "2√3"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
    (r"\sqrt[3]{8}", "2"),
    (r"\sqrt[3]{-8}", "-2"),
    ("(-8)^{1/3}", "-2"),
    (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
    (r"\frac{1}{2-\sqrt{3}}", r"2+\sqrt{3}"),
    (r"\sqrt{-4}", "2i"),
    ("i^2", "-1"),
    ("(1+i)^2", "2i"),
    (r"2\pi", "π * 2"),
    (r"\frac{\pi}{4}", "0.25 pi"),
    (r"e^{i\pi}", "-1"),
    (r"\ln e^2", "2"),
    (r"\log_2 8", "3"),
    (r"\log 100", "2"),
    (r"\sin 30^\circ", r"\frac{1}{2}"),
    (r"\sin\frac{\pi}{6}", "0.5"),
    (r"\cos \pi", "-1"),
    (r"\sin \pi", "0"),
    (r"\arctan 1", r"\frac{\pi}{4}"),
    (r"\tan^{-1}(1)", r"\arctan(1)"),
    (r"\frac{\sqrt{5}+1}{2}", r"\frac{2}{\sqrt{5}-1}"),
    # formulas
    (r"\frac{1}{2}x", "x/2"),
    (r"\frac{1}{2}x", "0.5x"),
    ("1/2x", r"\frac{x}{2}"),
    ("x^2+1", "1+x^2"),
    ("x**2 + 1", "x²+1"),
    ("(x+1)^2", "x^2+2x+1"),
    ("(x-1)(x+1)", "x^2-1"),
    (r"\frac{x^2-1}{x-1}", "x+1"),
    (r"\frac{1}{x}+\frac{1}{y}", r"\frac{x+y}{xy}"),
    ("2xy", "y*x*2"),
    ("-(x - y)", "y - x"),
    ("a(b+c)", "ab+ac"),
    (r"\alpha\beta", r"\beta \alpha"),
    (r"\Delta - \theta", "-θ + Δ"),
    ("x_1 + x_{2}", "x_2+x_1"),
    (r"\sin^2 x + \cos^2 x", "1"),
    (r"\sin 2x", r"2\sin x\cos x"),
    (r"\cos(2x)", r"1 - 2\sin^2(x)"),
    (r"\tan x", r"\frac{\sin x}{\cos x}"),
    ("e^{2x}", "(e^x)^2"),
    ("exp(x)", "e^x"),
    ("2^{n+1}", r"2 \cdot 2^n"),
    ("n!", "n (n-1)!"),
    (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
    (r"\sqrt{x}\cdot\sqrt{x}", "x"),
    ("|x-1|", "|1-x|"),
    ("|xy|", "|x| |y|"),
    ("x^{1/3}", r"\sqrt[3]{x}"),
    (r"\log_a b", r"\frac{\ln b}{\ln a}"),
    ("((x+1)^{1000})^2", "(x^2+2x+1)^{1000}"),
    (r"\sqrt{10^{80}+1}-10^{40}", r"\frac{1}{\sqrt{10^{80}+1}+10^{40}}"),
    (r"y = \sqrt{x} + 1", r"2y - 2\sqrt{x} = 2"),
    ("ix + 1", "1 + x i"),
    ("(x+y)^5 - (x-y)^5", "10x^4y+20x^2y^3+2y^5"),
    (r"\mathbf{x}+\overline{AB}", "BA+x"),
    # layout
    ("$x+1$", r"\( x + 1 \)"),
    (r"\left( x+1 \right)\!", "x+1"),
    (r"\displaystyle \frac{1}{2}", "1/2"),
    ("72.", "72"),
    # sets, lists, tuples, intervals
    (r"\{1,2\}", r"\{2,1\}"),
    (r"\{1,2\}", r"\{1, 2, 2\}"),
    (r"\left\{\frac12, 3\right\}", "{3, 0.5}"),
    ("1, 2", "2, 1"),
    ("1 and 2", "2,1"),
    ("1, 2", r"\{1,2\}"),
    (r"\pm 2", "2, -2"),
    (r"1 \pm \sqrt{2}", r"1-\sqrt{2}, 1+\sqrt{2}"),
    (r"\emptyset", r"\{\}"),
    ("(1, 2)", "(1.0, 4/2)"),
    ("[0,1)", r"[0, 2/2)"),
    (r"(-\infty, 2]", r"\left(-∞, 2\right]"),
    (r"(-\infty,1)\cup(2,3]", r"(2,3] ∪ (-\infty,1)"),
    (r"\langle 1, 2\rangle", "(1,2)"),
    ("3:4", "6:8"),
    ("A, C, D", "D, A, C"),
    # matrices
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,2],[3,4]]"),
    (r"\begin{pmatrix} 1 \\ x+x \end{pmatrix}", r"\begin{bmatrix}1\\2x\end{bmatrix}"),
    # equations and inequalities
    ("x=3", "3"),
    ("3 = x", "x = 6/2"),
    ("x = 3", "2x = 6"),
    ("y = 2x+1", "2x - y + 1 = 0"),
    ("y = 2x+1", "2x+1"),
    ("f(x) = x^2", "x^2"),
    ("x = 1, x = 2", "2, 1"),
    (r"x = \pm 3", "x = 3 or x = -3"),
    ("48 + 24 = 72", "72"),
    ("x = 2 + 1 = 3", "3"),
    (r"\text{Area} = 5", "5"),
    ("x > 3", "3 < x"),
    ("x > 3", r"(3, \infty)"),
    (r"1 < x \le 2", "(1, 2]"),
    (r"x \in [0, 1]", "[0,1]"),
    (r"2 \ge x > 1", r"1 < x \leq 2"),
    ("2x + y < 4", "4 > y + 2x"),
    # units and signs that are dropped
    (r"5\text{ cm}", "5"),
    ("5 cm^2", r"5\text{ cm}^2"),
    (r"50\%", "50"),
    (r"\$5", "5"),
    (r"90^\circ", "90"),
    ("90 degrees", "90°"),
    ("12 apples", "12"),
    # words
    (r"\text{east}", "East"),
    (r"\text{(A)}", "A"),
    ("no solution", r"\text{No solution}"),
    (r"\text{red}", "red"),
    ("1011_2", "1011_{2}"),
]

UNEQUAL = [
    ("0.5", "50%"),
    ("50%", "0.5"),
    ("1/3", "0.333"),
    ("10^{-7}", r"2 \cdot 10^{-7}"),
    ("10^{-9}", "0"),
    (r"\pi", "3.1415926535"),
    (r"\sqrt{2}", "1.41421356"),
    (r"\frac{22}{7}", r"\pi"),
    ("e^{π√163}", "262537412640768744"),
    (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5}"),
    ("-2^2", "4"),
    ("2^{3^2}", "64"),
    ("1/2x", "1/(2x)"),
    (r"2\frac{1}{3}", r"\frac{2}{3}"),
    ("7^2", "72"),
    (r"\frac{\pi}{10^{50}}", r"\frac{e}{10^{50}}"),
    ("i", "-i"),
    (r"\ln 2", r"\log 2"),
    ("x+1", "x+2"),
    ("x", "y"),
    ("x", "X"),
    ("x_1", "x_2"),
    ("x", "1"),
    ("x^2", "x^3"),
    ("(x+1)^2", "x^2+1"),
    (r"\frac{x^2-1}{x-1}", "x-1"),
    (r"\sqrt{x^2}", "x"),
    (r"\sqrt{x^2}", "|x|+1"),
    ("|x|", "x"),
    # however small the difference is beside the rest
    ("x + 10^{-70}", "x"),
    ("x^{99}y^{99}z^{99}", "x^{99}y^{99}z^{99} + 1"),
    ("(x+y+z+w)^{60}", "(x+y+z+w)^{60} + 1"),
    ("(x+1)^{1000000}", "(x+1)^{1000000} + 10^{-900}"),
    ("x^{10^{15}}", "x^{10^{15}} + x"),
    (r"\sin x + 10^{-70}", r"\sin x"),
    (r"\sin x + \pi^{-1000}", r"\sin x"),
    (r"\pi + 10^{-900}", r"\pi"),
    (r"\sqrt{x}(1+10^{-40})(1-10^{-40})", r"\sqrt{x}"),
    (r"\cos 10^{-70}", "1"),
    (r"\tanh 500", "1"),
    (r"\arctan 10^{80}", r"\pi/2"),
    (r"e^{200} + 1", "e^{200}"),
    (r"\sqrt{10^{80}+1}", "10^{40}"),
    ("x = 10^{-70}y", "x = 2y/10^{70}"),
    ("y = x + 10^{-70}", "x - y = 0"),
    (r"y = \sqrt{x} + 10^{-70}", r"y - \sqrt{x} = 0"),
    # kinks far away
    ("|x - 10^{90}|", "10^{90} - x"),
    ("||x| - 10^{-90}|", "|x| - 10^{-90}"),
    (r"\lfloor |x|/10^{90} \rfloor", "0"),
    (r"\sqrt{(x - 10^{90})^2}", "10^{90} - x"),
    ("|x-5000|", "5000-x"),
    ("|x-5000|", "x-5000"),
    (r"\ln x^2", r"2\ln x"),
    (r"\sqrt{x}\sqrt{y}", r"\sqrt{xy}"),
    (r"\sin x", "x"),
    (r"\sin x", r"\cos x"),
    (r"\sin^2 x", r"\sin x^2"),
    (r"\sin(x+y)", r"\sin x + \sin y"),
    (r"\lfloor x \rfloor", "x"),
    (r"\lfloor x \rfloor", r"\lceil x \rceil"),
    ("n!", "n^n"),
    ("2^n", "n^2"),
    ("ab", "a+b"),
    (r"\frac{a}{b}", r"\frac{b}{a}"),
    # intervals, tuples, sets
    ("[0,1]", "(0,1)"),
    ("[0,1)", "(0,1]"),
    ("(0,1)", "[0,1)"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", r"\{1,2\}"),
    (r"\{1,2\}", r"\{1,2,3\}"),
    (r"\{1,2\}", r"\{1\}"),
    (r"\{5\}", "5"),
    ("1, 2", "1"),
    ("1 or 2", "2"),
    ("70 or 72", "72"),
    (r"\pm 2", "2"),
    ("1,2", "(1,2)"),
    ("(1,2)", "(1,2,3)"),
    (r"(-\infty, 2]", r"(\infty, 2]"),
    (r"(-\infty, 2]", r"(-\infty, 2)"),
    (r"(-\infty,1)\cup(2,3)", r"(-\infty,1)"),
    (r"\emptyset", "0"),
    ("3:4", "3/4"),
    ("3:4", "4:3"),
    # matrices
    ("[[1,2],[3,4]]", "[[1,3],[2,4]]"),
    ("[[1,2],[3,4]]", "[1,2,3,4]"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&5\end{pmatrix}"),
    # equations
    ("x = 3", "y = 3"),
    ("x = 3", "x = -3"),
    ("x = 3", "x = 3, y = 2"),
    ("x = 3", "x^2 = 3x"),
    ("x = x + 1", "1"),
    ("x > 3", "x < 3"),
    ("x > 3", r"x \ge 3"),
    ("x > 3", "y > 3"),
    ("x > 3", "x = 3"),
    (r"x \ne 3", "x = 3"),
    ("x + y < 1", "x + y > 1"),
    (r"1 < x < 2", r"1 < x \le 2"),
    # units are not converted
    (r"90^\circ", r"\frac{\pi}{2}"),
    (r"\$0.25", "25"),
    # words
    (r"\text{east}", r"\text{west}"),
    ("east", "seat"),
    (r"\text{yes}", "no"),
    ("1011_2", "1011"),
    ("1011_2", "1011_3"),
    ("A", "B"),
    (r"\text{five}", "5"),
]

NOTHING = [
    "",
    " ",
    "$",
    "+",
    "9 +",
    "= 3",
    "x =",
    "(",
    "()",
    "(1,",
    "[1, 2, 3)",
    r"\frac{1}{0}",
    r"\frac{1}{x-x}",
    "1/(2-2)",
    "0^{-1}",
    r"\ln 0",
    r"\frac{1}{\sqrt{2}-\sqrt{2}}",
    r"\infty + 1",
    r"\infty - \infty",
    "1.2.3",
    "1..2",
    r"1 + 2 + \ldots + 10",
    "1, 2, ...",
    "2 3",
    "x2",
    r"\int_0^1 x",
    r"\frac{d}{dx} x^2",
    "dy/dx",
    r"\sum n",
    r"\max(1,2)",
    r"\begin{vmatrix}1&2\\3&4\end{vmatrix}",
    r"\begin{pmatrix}1&2\\3\end{pmatrix}",
    r"\{x | x > 0\}",
    "9!!",
    "__import__('os').system('true')",
    "eval(1)",
    "x'",
    "5 ? 6",
    "\x00",
    "\ud800",
]


@pytest.mark.parametrize(("a", "b"), EQUAL)
def test_equal(a: str, b: str) -> None:
    assert equal_expressions(a, b)
    assert equal_expressions(b, a)
    assert equal_expressions(a, a)


@pytest.mark.parametrize(("a", "b"), UNEQUAL)
def test_unequal(a: str, b: str) -> None:
    assert not equal_expressions(a, b)
    assert not equal_expressions(b, a)
    assert equal_expressions(a, a)
    assert equal_expressions(b, b)


@pytest.mark.parametrize("text", NOTHING)
def test_what_has_no_value_equals_nothing_not_even_itself(text: str) -> None:
    assert not equal_expressions(text, text)
    assert not equal_expressions(text, "1")


VALUES = st.one_of(st.fractions(-9, 9, max_denominator=9).map(Number), st.sampled_from("xyz").map(Symbol))
FORMULAS = st.recursive(
    VALUES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda terms: Sum(tuple(terms))),
        st.lists(inner, min_size=2, max_size=3).map(lambda factors: Product(tuple(factors))),
        st.tuples(inner, st.integers(0, 3)).map(lambda pair: Power(pair[0], Number(Fraction(pair[1])))),
    ),
    max_leaves=8,
)


def expanded(tree: Scalar) -> Any:
    """The polynomial, as sympy writes it out."""
    match tree:
        case Number(value):
            return sympy.Rational(value.numerator, value.denominator)
        case Symbol(name):
            return sympy.Symbol(name)
        case Sum(terms):
            return sympy.Add(*map(expanded, terms))
        case Product(factors):
            return sympy.expand(sympy.Mul(*map(expanded, factors)))
        case Power(base, Number(exponent)):
            return sympy.expand(sympy.Pow(expanded(base), int(exponent)))
    raise AssertionError(tree)


@settings(max_examples=50)
@given(FORMULAS, FORMULAS)
def test_polynomials_are_the_same_when_they_expand_to_the_same(a: Scalar, b: Scalar) -> None:
    assert equal_trees(a, b) is bool(sympy.expand(expanded(a) - expanded(b)) == 0)


@given(FORMULAS, st.randoms())
def test_order_does_not_matter_and_one_more_does(tree: Scalar, random: Random) -> None:
    assert equal_trees(tree, shuffled(tree, random))
    assert not equal_trees(tree, Sum((tree, Number(Fraction(1)))))


def shuffled(tree: Scalar, random: Random) -> Scalar:
    match tree:
        case Sum(terms):
            return Sum(tuple(random.sample([shuffled(term, random) for term in terms], len(terms))))
        case Product(factors):
            return Product(tuple(random.sample([shuffled(factor, random) for factor in factors], len(factors))))
        case Power(base, exponent):
            return Power(shuffled(base, random), exponent)
    return tree


@settings(max_examples=50)
@given(FORMULAS, FORMULAS)
def test_values_agree_with_the_exact_comparison(a: Scalar, b: Scalar) -> None:
    exactly = same_function(a, b)
    assert exactly is None or same_values(a, b) is exactly


def test_there_are_many_pairs() -> None:
    assert len({*EQUAL, *UNEQUAL}) == len(EQUAL) + len(UNEQUAL) > 120
