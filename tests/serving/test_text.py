"""Tokens to text while they come."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.policies.render import Renderer
from trajgym.serving.text import TextStream, held_back


@pytest.fixture(scope="module")
def renderer(tiny: tuple[Any, Any]) -> Renderer:
    return Renderer(tiny[1])


@given(text=st.text(max_size=60))
def test_the_pieces_are_the_text(renderer: Renderer, text: str) -> None:
    ids = renderer.turn(text)
    stream = TextStream(renderer.decode)
    pieces = [stream.feed(token) for token in ids] + [stream.end()]
    assert "".join(pieces) == stream.text == renderer.decode(ids)
    assert not any(piece.endswith("\ufffd") for piece in pieces[:-1] if "\ufffd" not in text)


@given(text=st.text("ab<x", max_size=40), stop=st.text("ab<", min_size=1, max_size=4))
def test_nothing_comes_from_a_stop_string_on(renderer: Renderer, text: str, stop: str) -> None:
    stream = TextStream(renderer.decode, [stop])
    given_out = ""
    for token in renderer.turn(text):
        given_out += stream.feed(token)
        assert stop not in given_out
    given_out += stream.end()
    assert given_out == text.split(stop)[0]
    assert stream.stopped == (stop in text)


def test_half_a_character_waits(renderer: Renderer) -> None:
    ids = renderer.turn("é漢")
    assert len(ids) > 2
    stream = TextStream(renderer.decode)
    pieces = [stream.feed(token) for token in ids]
    assert [piece for piece in pieces if piece] == ["é", "漢"]


def test_an_answer_that_ends_in_half_a_character_says_so(renderer: Renderer) -> None:
    ids = renderer.turn("漢")
    stream = TextStream(renderer.decode)
    assert stream.feed(ids[0]) == ""
    assert stream.end() == "\ufffd"


def test_the_earliest_stop_string_counts() -> None:
    stream = TextStream(lambda ids: "".join(map(chr, ids)), ["cd", "bc"])
    assert "".join(map(stream.feed, map(ord, "abcd"))) == "a"
    assert stream.stopped


@pytest.mark.parametrize(("text", "length"), [("a<", 1), ("a<t", 2), ("a<t>", 0), ("a", 0), ("", 0), ("<t", 2)])
def test_what_is_held_back(text: str, length: int) -> None:
    assert held_back(text, ["<tag>"]) == length
