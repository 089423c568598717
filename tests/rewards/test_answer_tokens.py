from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.rewards.answer_tokens import line_start, tokenize


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("about 5 eggs", "word number word"),
        ("**$5$**", "number"),
        (r"\text{5}", "number"),
        ("5 or 6", "number join number"),
        ("5, 6", "number join number"),
        ("5 - 6", "number dash number"),
        ("x = -5", "word equals number"),
        ("- 5", "number"),
        ("* 5", "number"),
        ("so - 5", "word dash number"),
        ("5 * 6", "number operator number"),
        ("5 x 6", "number operator number"),
        ("5 plus 6", "number operator number"),
        ("7 minus 6", "number operator number"),
        ("minus 6", "number"),
        ("5 million", "number"),
        ("5 km^2", "number word"),
        ("5 m²", "number word"),
        ("5^2", "number"),
        ("f(5).", "word open number close stop"),
        ("5 km/h", "number word slash word"),
        ("<b>5</b>", "number"),
        ("H2O", "word"),
    ],
)
def test_kinds(text: str, kinds: str) -> None:
    assert [token.kind for token in tokenize(text, 0, len(text))] == kinds.split()


@pytest.mark.parametrize(
    ("text", "value"),
    [("-$5", -5), ("$-5", -5), ("−5", -5), ("–5", -5), ("negative 5", -5), ("—5", 5), ("- 5", 5), ("+5", 5)],
)
def test_signs(text: str, value: int) -> None:
    assert tokenize(text, 0, len(text))[-1].value == value


@pytest.mark.parametrize("text", ["5^2", "5**2", "5²", "5h20m", "5 and a half", "1.2.3"])
def test_a_spoiled_number_has_no_value(text: str) -> None:
    assert [(t.kind, t.value) for t in tokenize(text, 0, len(text))] == [("number", None)]


def test_line_start() -> None:
    assert line_start("  x", 2)
    assert line_start("a\n x", 3)
    assert not line_start("a x", 2)


@settings(deadline=None)
@given(st.text(st.sampled_from("0123456789 ab.,-+*/^()=\\$²½x%\n"), max_size=60))
def test_tokens_stand_in_order(text: str) -> None:
    tokens = tokenize(text, 0, len(text))
    assert all(0 <= t.start < t.end <= len(text) for t in tokens)
    assert all(a.end <= b.start for a, b in pairwise(tokens))
