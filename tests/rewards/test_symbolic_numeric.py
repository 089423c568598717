"""Values at random points: where they are drawn, what counts as the same, what is refused."""

from __future__ import annotations

import sys
import threading
from fractions import Fraction

import pytest

from trajgym.errors import ConfigError
from trajgym.rewards import symbolic_numeric
from trajgym.rewards.expression import read_expression
from trajgym.rewards.expression_tree import Scalar
from trajgym.rewards.symbolic_exact import UndefinedError
from trajgym.rewards.symbolic_numeric import has_a_value, same_values, sign_of_ratio, values_in_proportion
from trajgym.rewards.symbolic_values import Point

mpmath = pytest.importorskip("mpmath")


def tree(text: str) -> Scalar:
    found = read_expression(text).tree
    assert isinstance(found, Scalar), text
    return found


def points(a: str, b: str) -> list[Point]:
    return [next(tries) for tries in symbolic_numeric._points(tree(a), tree(b))]


def test_points_are_of_every_sign_and_size_and_the_same_each_time() -> None:
    drawn = points(r"\sin x", "y")
    assert drawn == points(r"\sin x", "y")
    assert drawn != points(r"\sin x", "2y")
    for name in ("x", "y"):
        values = [point[name] for point in drawn]
        assert all(isinstance(value, Fraction) and value for value in values)
        assert sum(value > 0 for value in values) == 4
        assert sorted(abs(value) for value in values)[0] <= 1 < 100 < sorted(abs(value) for value in values)[-1]


def test_points_for_formulas_with_kinks_lie_beyond_their_numbers() -> None:
    sizes = sorted(abs(point["x"]) for point in points("|x - 10^{90}|", "10^{-95}"))
    assert len(sizes) == 12
    assert sizes[1] < Fraction(1, 10**95)
    assert sizes[-2] > 10**90


def test_what_a_factorial_is_taken_of_is_a_whole_number() -> None:
    drawn = points("n! + k", "1")
    assert all(point["n"].denominator == 1 <= point["n"] for point in drawn)
    assert any(point["k"].denominator > 1 for point in drawn)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (r"\sin x", r"\cos(x - \pi/2)", True),
        (r"\sin x", r"\cos(x + \pi/2)", False),
        (r"\sin \pi", "0", True),
        (r"\frac{\pi}{10^{60}}", "0", False),
        (r"\frac{\pi}{10^{60}}", r"\frac{\pi + 1}{10^{60}}", False),
        (r"\pi + 10^{-50}", r"\pi", False),
        (r"\pi + 10^{-70}", r"\pi", False),
        (r"\pi + 10^{-900}", r"\pi", False),
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}", True),
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}} + 10^{-300}", False),
        (r"e^{200}", r"e^{200} + e^{-200}", False),
        ("e^{2x}", "(e^x)^2", True),
        (r"\sin x", r"x - x^3/6 + x^5/120 - x^7/5040", False),
        (r"\ln(1 + 10^{-80})", "10^{-80}", False),
        ("n!", "n(n-1)!", True),
        ("n!", "n(n-1)! + 10^{-300}", False),
        (r"\arctan x", r"\arctan(x + 0.001)", False),
        (r"\sqrt{x^2}", "|x|", True),
        (r"\sqrt[3]{x^3}", "x", True),
        (r"x^{2/3}", r"\sqrt[3]{x}^2", True),
        (r"\lfloor \sqrt{4} \rfloor", "2", True),
        (r"\sinh x", r"\frac{e^x - e^{-x}}{2}", True),
        (r"\sec x \csc x \cot x", r"\frac{1}{\sin^2 x}", True),
        (r"\arcsin x + \arccos x", r"\frac{\pi}{2}", True),
    ],
)
def test_same_values(a: str, b: str, same: bool) -> None:
    assert same_values(tree(a), tree(b)) is same


@pytest.mark.parametrize(
    "text", ["1/0", r"\ln 0", r"e^{10^9}", "2^{10^9}", r"\sin 10^9", r"\lfloor i \rfloor", "(-1)!", "e^{e^{e^{e^9}}}"]
)
def test_what_has_no_bearable_value_is_the_same_as_nothing(text: str) -> None:
    assert not same_values(tree(text), tree(text))


def test_what_is_defined_almost_nowhere_is_the_same_as_nothing() -> None:
    assert not same_values(tree(r"\lfloor \sqrt{-x^2} \rfloor"), tree(r"\lfloor \sqrt{-x^2} \rfloor"))


def test_more_functions_than_an_answer_has() -> None:
    long = tree("+".join(rf"\sin({i}x)" for i in range(40)))
    with pytest.raises(UndefinedError):
        same_values(long, long)
    with pytest.raises(UndefinedError):
        values_in_proportion(long, long)


@pytest.mark.parametrize(
    ("a", "b", "sign"),
    [
        ("2x + 2", "x + 1", 1),
        ("1 - x", "x - 1", -1),
        (r"\pi\sin x", r"2\sin x", 1),
        ("x^2", "x", 0),
        ("x", "y", 0),
        ("i x", "x", 0),
        ("0x", "x", 0),
    ],
)
def test_values_in_proportion(a: str, b: str, sign: int) -> None:
    assert values_in_proportion(tree(a), tree(b)) == sign


@pytest.mark.parametrize(("a", "b", "sign"), [("2x", "x", 1), ("-x", "2x", -1), ("ix", "x", 0), ("x", "0x", 0)])
def test_sign_of_ratio(a: str, b: str, sign: int) -> None:
    assert sign_of_ratio(tree(a), tree(b)) == sign


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("x", True),
        (r"\sqrt{-x^2}", True),
        (r"\ln 0", False),
        (r"\frac{1}{\sqrt{8}-2\sqrt{2}}", False),
        (r"\ln(\sin^2 x + \cos^2 x - 1)", False),
        (r"e^{10^9}", False),
    ],
)
def test_has_a_value(text: str, has: bool) -> None:
    assert has_a_value(tree(text)) is has


def test_what_would_take_too_many_digits_is_the_same_as_nothing_but_itself() -> None:
    assert not same_values(tree(r"\pi + \pi^{-99999}"), tree(r"\pi"))


def test_the_precision_that_others_share_is_left_alone() -> None:
    before = mpmath.mp.dps
    assert same_values(tree(r"\sqrt 2"), tree(r"2^{1/2}"))
    assert mpmath.mp.dps == before


def test_each_thread_has_an_evaluator_of_its_own() -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(symbolic_numeric._evaluator()))
    thread.start()
    thread.join()
    assert found[0] is not symbolic_numeric._evaluator() is symbolic_numeric._evaluator()


def test_without_mpmath_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpmath", None)
    monkeypatch.setattr(symbolic_numeric, "_of_this_thread", threading.local())
    with pytest.raises(ConfigError, match=r"pip install 'trajgym\[math\]'"):
        same_values(tree(r"\sqrt 2"), tree(r"\sqrt 2"))
