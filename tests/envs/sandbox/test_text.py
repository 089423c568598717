"""Output as clean text: nothing but text is left, in the length that was asked for, with a right count of the rest."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trajgym.envs.sandbox.text import clean, halves, join, shorten, shorten_more

MARKER = re.compile(r"\n\[… (\d+) characters dropped …\]\n")
# Lone surrogates, controls and the beginnings of escapes turn up often.
WILD = st.text(st.one_of(st.characters(), st.sampled_from("\x00\x1b[]m\r\n\ud800\x07\x9b\\")), max_size=300)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("", ""),
        ("plain text\n\tand a tab", "plain text\n\tand a tab"),
        ("ünïcödé 終 🙂 \u2028", "ünïcödé 終 🙂 \u2028"),
        ("\x1b[31mred\x1b[0m \x1b[1;2;3Hplace", "red place"),
        ("\x1b]0;title\x07x \x1b]8;;http://x\x1b\\link", "x link"),
        ("\x1bMup", "up"),
        ("\x1b", r"\x1b"),
        ("\x1b[", r"\x1b["),
        ("a\x00b\x7f\x9b", r"a\x00b\x7f\x9b"),
        ("half \ud800 of a pair", r"half \ud800 of a pair"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("10%\r20%\r\n", "10%\n20%\n"),
        # Taking one escape away must not make another.
        ("\x1b\x1b[31m[31mred", r"\x1b[31mred"),
    ],
)
def test_clean(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


@given(WILD)
@example("\x1b\x1b[0m[0m")
@example("\x1b\r\n[0m")
def test_what_is_clean_can_be_stored_and_stays(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", cleaned)
    assert clean(cleaned) == cleaned


@given(WILD, st.integers(0, 400))
def test_halves_keep_both_ends_and_count_the_rest(text: str, limit: int) -> None:
    head, tail, dropped = halves(text, limit)
    assert len(head) + dropped + len(tail) == len(text)
    assert len(head) + len(tail) == min(limit, len(text))
    assert text.startswith(head)
    assert text.endswith(tail)
    assert 0 <= len(head) - len(tail) <= 1 or not dropped


@given(st.text(alphabet="ab\n", max_size=500), st.integers(50, 400))
def test_shorten_keeps_to_its_limit(text: str, limit: int) -> None:
    short = shorten(text, limit)
    assert len(short) <= limit
    if len(text) <= limit:
        assert short == text
    else:
        head, dropped, tail = MARKER.split(short)
        assert len(head) + int(dropped) + len(tail) == len(text)
        assert text.startswith(head)
        assert text.endswith(tail)


@given(st.text(alphabet="ab\n", max_size=800), st.integers(0, 600), st.integers(60, 500))
def test_shortened_twice_it_counts_all_that_is_missing(text: str, first: int, limit: int) -> None:
    head, tail, dropped = halves(text, first)
    short = shorten_more(join(head, tail, dropped), dropped, limit)
    assert len(short) <= limit
    if not MARKER.search(short):
        assert short == text
        return
    head, count, tail = MARKER.split(short)
    assert len(head) + int(count) + len(tail) == len(text)
    assert text.startswith(head)
    assert text.endswith(tail)


def test_a_limit_shorter_than_the_marker_leaves_the_marker() -> None:
    assert shorten("x" * 100, 5) == join("", "", 100)
    assert shorten_more(join("x" * 50, "y" * 50, 7), 7, 0) == join("", "", 107)
