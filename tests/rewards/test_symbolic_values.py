"""Values of formulas at points: exact ones, others, and how long they are."""

from __future__ import annotations

from fractions import Fraction

import pytest

from trajgym.rewards.expression import read_expression
from trajgym.rewards.expression_tree import Scalar
from trajgym.rewards.symbolic_exact import UndefinedError
from trajgym.rewards.symbolic_values import Evaluator, Value

pytest.importorskip("mpmath")
HALF = {"x": Fraction(1, 2), "n": Fraction(7)}


def value(text: str, precision: int = 300, *, rough: bool = False) -> Value:
    tree = read_expression(text).tree
    assert isinstance(tree, Scalar), text
    return Evaluator().value(tree, HALF, precision, rough=rough)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("x + 1/3", Fraction(5, 6)),
        ("x^{-3}", 8),
        (r"\sqrt{x/2}", Fraction(1, 2)),
        (r"\sqrt[3]{-x/4}", Fraction(-1, 2)),
        (r"(x/2)^{3/2}", Fraction(1, 8)),
        (r"|x - 1|", Fraction(1, 2)),
        (r"\lfloor x - 1 \rfloor", -1),
        (r"\lfloor \sqrt{2} + \sqrt{8} - 3\sqrt{2} \rfloor", 0),
        (r"\lceil \sin^2 x + \cos^2 x \rceil", 1),
        ("n!", 5040),
        (r"\binom{n}{3}", 35),
        (r"0 \cdot \pi", 0),
        (r"\pi^0", 1),
    ],
)
def test_exact_values(text: str, number: Fraction | int) -> None:
    found = value(text).number
    assert isinstance(found, Fraction)
    assert found == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (r"\sqrt{2}", 2**0.5),
        ("i^3", -1j),
        (r"\sqrt{-2}", 1j * 2**0.5),
        (r"\sqrt[3]{-2}", -(2 ** (1 / 3))),
        (r"|\sqrt{-2} + 1|", 3**0.5),
        ("e^x", 2.718281828459045**0.5),
        ("x^{0.001}", 0.5**0.001),
        (r"\log_2 3", 1.584962500721156),
        (r"\log 5", 0.6989700043360189),
        ("x!", 0.886226925452758),
        (r"\arcsin 1", 1.5707963267948966),
    ],
)
def test_other_values(text: str, number: complex) -> None:
    found = value(text).number
    assert not isinstance(found, Fraction)
    assert complex(found) == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "1/(x - 0.5)",
        r"\ln 0",
        r"\ln(\sqrt{8} - 2\sqrt{2})",
        r"\frac{1}{\sqrt{8} - 2\sqrt{2}}",
        r"(\sqrt{8} - 2\sqrt{2})^{\pi}",
        r"\cot(\sqrt{8} - 2\sqrt{2})",
        r"\sin 10^9",
        r"e^{10^9}",
        r"2^{10^9}",
        r"\lfloor i \rfloor",
        "(-1)!",
        "y",
    ],
)
def test_no_bearable_value(text: str) -> None:
    if text == "y":
        with pytest.raises(KeyError):
            value(text)
        return
    with pytest.raises(UndefinedError):
        value(text)


def test_a_difference_that_is_an_error_of_rounding_is_zero_unless_it_is_a_rough_one() -> None:
    evaluator = Evaluator()
    tree = read_expression(r"\sqrt{8} + \sqrt{3} - 2\sqrt{2} - \sqrt{3}").tree
    assert isinstance(tree, Scalar)
    assert evaluator.vanishes(evaluator.value(tree, {}, 300).number)
    small = evaluator.value(tree, {}, 300, rough=True).number
    assert not small or not evaluator.vanishes(small)
    assert not evaluator.vanishes(Fraction(1, 10**90))


def test_gamma_between_whole_numbers_is_computed_to_few_digits_only() -> None:
    with pytest.raises(UndefinedError):
        value("x!", 1000)


def test_length_covers_how_small_a_sum_of_roots_can_be() -> None:
    # 10^40 - sqrt(10^80 - 1) is about 5e-41; the bound is a proof that it is not smaller than 2^-(bits * 2).
    found = value(r"10^{40} - \sqrt{10^{80} - 1}", 2000)
    assert [index for index, _ in found.roots] == [2]
    assert 2.0 ** -(found.bits * 2) < found.number < 1e-40


def test_the_same_root_counts_once() -> None:
    assert len(value(r"\sqrt{2} + \sqrt{8} + \frac{1}{\sqrt{18}} + \sqrt{3}").roots) == 2


@pytest.mark.parametrize(
    ("text", "smallest"), [(r"\cos 10^{-30} - 1", 200), (r"\sin 10^{-30} - 10^{-30}", 300), (r"\tanh 300 - 1", 860)]
)
def test_length_of_functions_covers_their_near_coincidences(text: str, smallest: int) -> None:
    found = value(text, 4000)
    assert -found.bits < Evaluator().context.mag(found.number) < -0.5 * smallest
