r"""Formulas made to cost time: none does."""

from __future__ import annotations

import time

import pytest

from trajgym.rewards.symbolic import equal_expressions

pytest.importorskip("sympy")

HOSTILE = {
    "a tower of powers": "9^{9^{9^9}}",
    "a long tower": "9^" * 30 + "9",
    "a tower of letters": "x^" * 30 + "x",
    "a large power": "9^{999999999}",
    "powers of powers": "(((((2x)^{64})^{64})^{64})^{64})^{64}",
    "a large root": r"\sqrt[999999999]{2}^{999999999999}",
    "large digits": "1" * 990,
    "a factorial of a factorial": "((9!)!)!",
    "a large factorial": "99999999!",
    "a factorial of a letter": "((x!)!)!",
    "a large binomial": r"\binom{999999999}{499999999}",
    "a binomial of a letter": r"\binom{x^{99}}{x^{98}}",
    "nested roots": r"\sqrt{2+" * 38 + "2" + "}" * 38,
    "deep roots": r"\sqrt{" * 300 + "2" + "}" * 300,
    "deep brackets": "(" * 50_000 + "x" + ")" * 50_000,
    "brackets as deep as allowed": "(" * 38 + "x" + ")" * 38,
    "many terms": "+".join(f"x^{{{i}}}" for i in range(70)),
    "very many terms": "+".join("x" for _ in range(100_000)),
    "many variables": "(" + "+".join("abcdefghjklmnopqrstuvwxyz") + ")^{60}",
    "many binomials": "(x+y+z+w)^{64}(a+b+c+d)^{64}",
    "a product of sums": "".join(f"(x_{i}+y_{i})" for i in range(40)),
    "a sum of quotients": "+".join(rf"\frac{{1}}{{x+{i}}}" for i in range(40)),
    "large coefficients": "(10^{90}x+1)^{64}",
    "exponentials": "e^{e^{e^{e^{x}}}}",
    "an exponential of a large number": "e^{10^{300}}",
    "a sine of a large number": r"\sin(10^{900})",
    "sines of sines": r"\sin(" * 18 + "x" + ")" * 18,
    "many sines": "+".join(rf"\sin({i}x)" for i in range(28)),
    "many gammas": "+".join(f"(x+{i})!" for i in range(40)),
    "powers of letters": "+".join(f"x^{{y+{i}}}" for i in range(40)),
    "a high power of a long sum": "(x+y+z+w)^{99999999}",
    "a tower of high powers": "((x^{999999})^{999999})^{999999}",
    "powers of powers of letters": "+".join(f"(x^{{y+{i}}})^z" for i in range(20)),
    "a large set": r"\{" + ",".join(map(str, range(100_000))) + r"\}",
    "a set of formulas": r"\{" + ",".join(rf"\sin {i}x" for i in range(20)) + r"\}",
    "a set of one formula in many forms": r"\{" + ",".join(rf"a^m a^n + {i} - {i}" for i in range(1, 20)) + r"\}",
    "nested sets": r"\{" * 30 + "x" + r"\}" * 30,
    "nested pairs of sets": r"\{0,\{1,\{2,\{3,\{4,\{5,\{6,\{7,x\},x\},x\},x\},x\},x\},x\},x\}",
    "nested lists": "[x," * 18 + "x" + "]" * 18,
    "a continued fraction": r"\frac{1}{1+" * 19 + "x" + "}" * 19,
    "mixed numbers": r"2\frac{2" * 18 + "}{3}" * 18,
    "a large matrix": "[" + ",".join("[" + ",".join(["x"] * 12) + "]" for _ in range(12)) + "]",
    "signs": "-" * 100_000 + "1",
    "signs of choice": "1" + r"\pm x" * 80,
    "bars": "|" * 900,
    "commas": "," * 900,
    "powers without an end": "^" * 900,
    "braces": "{" * 100_000,
    "commands": "\\frac" * 190,
    "backslashes": "\\" * 100_000,
    "functions": r"\sin" * 200 + "x",
    "blanks": "x" + " " * 100_000 + "+ 1",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_long(name: str) -> None:
    # The guard is far above what a bounded comparison takes (some milliseconds) and far below one that is not.
    started = time.process_time()
    assert not equal_expressions(HOSTILE[name], "x+1")
    assert not equal_expressions(HOSTILE[name], "3")
    equal_expressions(HOSTILE[name], HOSTILE[name])
    assert time.process_time() - started < 5


def test_many_pairs_of_formulas_that_are_the_same_are_not_all_worked_out() -> None:
    many = (
        ",".join(f"a^{{m+n}} + {i} - {i}" for i in range(1, 20)),
        ",".join(f"a^m a^n + {i} - {i}" for i in range(1, 20)),
    )
    started = time.process_time()
    assert not equal_expressions(*many)
    assert time.process_time() - started < 5
    assert equal_expressions("a^{m+n}, 2^m", "2^m, a^m a^n")
