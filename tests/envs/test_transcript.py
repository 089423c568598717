"""A dialogue for the eye: who said what, what it paid, and nothing that upsets a terminal."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from trajgym.envs.transcript import transcript
from trajgym.types import Action, Message, Observation, Step, StopReason

ANYTHING = st.text(st.characters(exclude_categories=()))  # half surrogates too


def paid(reward: float, reason: StopReason | None = None, **terms: float) -> Step:
    return Step(Action(""), Observation(), reward, terms, stop_reason=reason)


def test_one_block_per_message_and_the_reward_behind_each_turn() -> None:
    messages = [
        Message("user", "48 + 24?"),
        Message("assistant", "I call.\n=48+24"),
        Message("tool", "72", name="calculator_of_mine"),
        Message("tool", "Error (unknown_tool)"),
        Message("assistant", ""),
    ]
    steps = [paid(0.1, tool_success=0.1, accuracy=0.0), paid(-1.5, StopReason.ANSWERED, accuracy=0.0, brief=-1.5)]
    assert transcript(messages, steps).split("\n") == [
        "user      │ 48 + 24?",
        "assistant │ I call.",
        "          │ =48+24",
        "          │ reward 0.1 (tool_success +0.1)",
        "calculator│ 72",
        "tool      │ Error (unknown_tool)",
        "assistant │ ",
        "          │ reward -1.5 (brief -1.5)  [answered]",
    ]


def test_turns_without_a_step_have_no_reward() -> None:
    turns = [Message("assistant", "a"), Message("assistant", "b")]
    assert transcript(turns) == "assistant │ a\nassistant │ b"
    assert transcript(turns, [paid(0.0)]).count("reward 0") == 1
    assert transcript([]) == ""


def test_what_would_move_the_cursor_is_spelled_out() -> None:
    found = transcript([Message("user", "a\rb\x1b[2Jc\x85d\u2028e\ud800f\tg\x00")])
    assert found == "user      │ a\\rb\\x1b[2Jc\\x85d\\u2028e\\ud800f\tg\\x00"
    assert transcript([Message("tool", "1", name="a\nb\x1b")]) == "a b\\x1b   │ 1"


@given(ANYTHING, ANYTHING, st.none() | st.integers(1, 100))
def test_every_text_can_be_printed_line_by_line(name: str, text: str, width: int | None) -> None:
    found = transcript([Message("tool", text, name=name), Message("user", text)], width=width)
    found.encode()
    assert not any(
        unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in found.replace("\n", "").replace("\t", "")
    )
    lines = found.splitlines()
    assert lines == found.split("\n")
    assert all(line[10:12] == "│ " for line in lines)
    assert len(lines) >= 2 * (text.count("\n") + 1)


@given(st.lists(st.text("ab ", max_size=60), max_size=4).map("\n".join), st.integers(32, 80))
def test_long_lines_are_broken_to_fit_and_no_word_is_lost(text: str, width: int) -> None:
    lines = transcript([Message("user", text)], width=width).split("\n")
    assert max(map(len, lines)) <= width
    assert "".join(line[12:] for line in lines).replace(" ", "") == text.replace("\n", "").replace(" ", "")


def test_lines_break_between_words_or_at_the_last_column() -> None:
    assert [len(line) for line in transcript([Message("user", "x" * 50)], width=40).split("\n")] == [40, 34]
    found = transcript([Message("user", "the quick brown fox jumps over it\n\n  again")], width=32)
    assert [line[12:] for line in found.split("\n")] == ["the quick brown fox", "jumps over it", "", "  again"]
