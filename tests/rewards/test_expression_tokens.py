"""LaTeX and plain text as the same tokens."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.rewards.expression_signs import COMMANDS, FUNCTIONS, NAMES, SIGNS
from trajgym.rewards.expression_tokens import RefusedError, tokens


def kinds(text: str) -> list[str]:
    return [token.kind for token in tokens(text)]


@pytest.mark.parametrize(
    ("latex", "plain"),
    [
        (r"2 \cdot x", "2*x"),
        (r"2 \times x", "2 × x"),
        (r"x^{2}", "x^{2}"),
        (r"a \le b", "a <= b"),
        (r"a \neq b", "a != b"),
        (r"\left( x \right)", "(x)"),
        (r"\big[ x \big]", "[x]"),
        (r"\sqrt x", "√x"),
        (r"\pi", "π"),
        (r"\infty", "∞"),
        (r"x \cup y", "x∪y"),
        (r"1\,000", "1000"),
        (r"\displaystyle x \quad", "x"),
        (r"\sin x", "sin x"),
        (r"\operatorname{sin} x", "sin x"),
        (r"\alpha", "α"),
        (r"\Omega", "Ω"),
        (r"\{x\}", r"\lbrace x \rbrace"),
        ("x**2", "x^2"),
        ("90^{\\circ}", "90°"),
        (r"x \text{ or } y", "x or y"),
    ],
)
def test_both_ways_of_writing_give_the_same_tokens(latex: str, plain: str) -> None:
    def meaning(text: str) -> list[tuple[str, str]]:
        return [(t.kind, t.text if t.kind in ("symbol", "constant", "function") else "") for t in tokens(text)]

    assert meaning(latex) == meaning(plain)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("12", [12]),
        ("1.50", ["1.5"]),
        (".5", ["0.5"]),
        ("1,234,567", [1234567]),
        ("12,345,67", [12345, 67]),
        ("1,23", [1, 23]),
        ("(1,234)", [1, 234]),
        ("(1,000)", [1000]),
        ("(1{,}234)", [1234]),
        (r"\frac{1,234}{5}", [1234, 5]),
        ("1e2", [100]),
        ("0.1\\overline{6}", ["1/6"]),
        ("٣", [3]),
        ("½", ["1/2"]),
        ("x⁻²", [-2]),
    ],
)
def test_numbers(text: str, values: list[int | str]) -> None:
    assert [token.value for token in tokens(text) if token.kind == "number"] == [Fraction(value) for value in values]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("xyz", ["symbol"] * 3),
        ("pie", ["symbol", "constant", "constant"]),
        ("sinx", ["function", "symbol"]),
        ("5 cm", ["number", "words"]),
        ("cm", ["symbol", "symbol"]),
        ("apples", ["words"]),
        ("no", ["words"]),
        ("theta", ["symbol"]),
        ("x_{12}", ["symbol", "subscript"]),
        (r"\text{A}", ["symbol"]),
        (r"\text{5 apples}", ["words"]),
        (r"\text{}", []),
        ("5 degrees", ["number", "degree"]),
    ],
)
def test_letters(text: str, expected: list[str]) -> None:
    assert kinds(text) == expected


@pytest.mark.parametrize("text", ["#", "a'b", '"', r"\foo", "…", r"\ldots", "1.2.3", "1e101", "9" * 1001, "\ud800"])
def test_what_cannot_be_read_exactly_is_refused(text: str) -> None:
    with pytest.raises(RefusedError):
        tokens(text)


@given(st.text(max_size=60))
def test_every_text_ends(text: str) -> None:
    try:
        found = tokens(text)
    except RefusedError:
        return
    assert len(found) <= 2 * len(text) + 1


def test_the_tables_agree() -> None:
    assert set(NAMES) <= {*COMMANDS, *SIGNS, *FUNCTIONS, "inf"}
    assert FUNCTIONS.items() <= COMMANDS.items()
