from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.protocols.reasoning import LINE_START, reasoning_spans
from trajgym.rewards.answer_reply import reply

ROWS = [
    ("a", [], False),
    ("<think>a</think>b", ["<think>a</think>"], False),
    ("<think>a<think>b</think>c</think>d", ["<think>a<think>b</think>c</think>"], False),
    ("<thinking>a</thinking>b<think>c</think>", ["<thinking>a</thinking>", "<think>c</think>"], False),
    ("<THINK>a</Think>b", ["<THINK>a</Think>"], False),
    ("a</think>b", ["a</think>"], False),
    ("<think>a</think>b</think>c", ["<think>a</think>b</think>"], False),
    ("a<think>b", ["<think>b"], True),
    ("<think>a</think><think>b", ["<think>a</think>", "<think>b"], True),
    ("`<think>` a", [], False),
    ("`<think> a", [], False),
    ("<think>` a", [], False),
    ("<think>a `</think>` b</think>c", ["<think>a `</think>` b</think>"], False),
    ("```<think>```a```</think>```", ["<think>```a```</think>"], False),
    ("``<think>`` <thin k> <think/> < think>", [], False),
    ("<thin\u212a>", [], False),  # the sign of kelvins, which is a k in lower case
]


@pytest.mark.parametrize(("text", "spans", "unclosed"), ROWS)
def test_spans(text: str, spans: list[str], unclosed: bool) -> None:
    found, is_open = reasoning_spans(text)
    assert ([text[start:end] for start, end in found], is_open) == (spans, unclosed)


PIECES = ["<think>", "</think>", "<THINK>", "</thinking>", "`", "``", "a", " ", "\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join).filter(lambda text: "```" not in text))
def test_the_reader_of_answers_leaves_out_the_same(text: str) -> None:
    spans, _ = reasoning_spans(text)
    left = "".join(" " if any(start <= i < end for start, end in spans) else sign for i, sign in enumerate(text))
    assert reply(text).split() == left.split()


def test_a_line_begins_behind_reasoning() -> None:
    text = "a</think>b\nc</THINKING>d<think>e"
    starts = [found.end() for found in re.finditer(LINE_START, text, re.MULTILINE)]
    assert [text[start] for start in starts] == ["a", "b", "c", "d"]
