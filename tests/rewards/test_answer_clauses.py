"""What the words around a number say of it."""

from __future__ import annotations

import pytest

from trajgym.rewards.answer_clauses import correction, denied, disclaimed, left_undone, offers, unfinished, withdrawn
from trajgym.rewards.answer_tokens import Token, tokenize


def tokens(text: str) -> list[Token]:
    return tokenize(text, 0, len(text))


def last_number(found: list[Token]) -> int:
    return max(i for i, token in enumerate(found) if token.kind == "number")


@pytest.mark.parametrize(
    ("text", "no"),
    [
        ("not 5", True),
        ("is not the 5", True),
        ("won’t be exactly 5", True),
        ("instead of 5", True),
        ("5 isn't right", True),
        ("5 was wrong", True),
        ("no. 5", False),
        ("not, 5", False),
        ("not enough: 5", False),
        ("none other than 5", False),
        ("5 is not enough", False),
        ("5", False),
    ],
)
def test_denied(text: str, no: bool) -> None:
    found = tokens(text)
    assert denied(found, last_number(found)) is no


@pytest.mark.parametrize(
    ("before", "no"),
    [
        ("The wrong ", True),
        ("The **incorrect** ", True),
        ("I do not believe that the final ", True),
        ("It isn't true that my ", True),
        ("We doubt the ", True),
        ("If I am not wrong the ", False),
        ("The wrong one is gone. The ", False),
        ("The ", False),
        ("", False),
    ],
)
def test_disclaimed(before: str, no: bool) -> None:
    assert disclaimed(f"{before}answer is 5", len(before)) is no


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("5. No, wait: 6", "6"),
        ("5... actually it's 6", "6"),
        ("5 — sorry, I meant **$6**", "$6**"),
        ("5. No other steps, 6", ""),
        ("5 and 6", ""),
        ("5", ""),
    ],
)
def test_withdrawn(text: str, again: str) -> None:
    start = withdrawn(text, 1, len(text))
    assert ("" if start is None else text[start:]) == again
    assert withdrawn(text, 1, 2) is None


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("twice the 5", True),
        ("half of 5", True),
        ("2/3 of 5", True),
        ("3 eggs more than 5", True),
        ("of 5", False),
        ("2 of 5", False),
        ("more than 5", False),
        ("half: 5", False),
        ("5", False),
    ],
)
def test_unfinished(text: str, more: bool) -> None:
    found = tokens(text)
    assert unfinished(found, last_number(found)) is more


@pytest.mark.parametrize(
    ("gap", "more", "undone"),
    [
        ("divided by", True, True),
        ("squared", False, True),
        ("reduced by", True, True),
        ("reduced", False, False),
        ("x", False, True),
        ("over", True, True),
        ("over", False, False),
        ("eggs fewer than", True, True),
        ("eggs in", True, False),
        ("/", False, True),
        ("/", True, False),
    ],
)
def test_left_undone(gap: str, more: bool, undone: bool) -> None:
    assert left_undone(tokens(gap), more=more) is undone


@pytest.mark.parametrize(
    ("gap", "offered"),
    [
        ("or", True),
        ("eggs, or maybe it's", True),
        ("or, rather, 3 hens sold", False),
        ("or she sold", False),
        (". Or", False),
        ("and", False),
    ],
)
def test_offers(gap: str, offered: bool) -> None:
    assert offers(tokens(gap)) is offered


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("5, it is 6", ["it", "is", "6"]),
        ("5; rather 6 eggs", ["rather", "6", "eggs"]),
        ("5, 6", []),
        ("5, it is", []),
        ("5 or it is 6", []),
        ("5, so she sold 6", []),
    ],
)
def test_correction(text: str, instead: list[str]) -> None:
    assert [token.text for token in correction(tokens(text), 0)] == instead
