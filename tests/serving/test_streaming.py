"""What of a turn may be shown while it is still being written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.protocols import PROTOCOLS, get_protocol
from trajgym.serving.dialogue import RemoteTool, call_prefix
from trajgym.serving.streaming import Visible, call_marker
from trajgym.types import ExpertTurn, ToolCall

CALL = ToolCall("calculator", {"expression": "1+2"})
SCHEMA = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOLS = {"calculator": RemoteTool("calculator", "", SCHEMA)}


def shown(markers: list[str], text: str, size: int) -> str:
    visible = Visible(markers)
    return "".join(visible.feed(text[i : i + size]) for i in range(0, len(text), size))


@pytest.mark.parametrize("name", [n for n in PROTOCOLS if n != "python_block"])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_no_character_of_a_call_is_shown(name: str, size: int) -> None:
    protocol = get_protocol(name)
    text = protocol.render_turn(ExpertTurn("Let me see", (CALL,)))
    markers = [call_marker(call_prefix(protocol, TOOLS))]
    assert protocol.parse(text, TOOLS).calls
    assert shown(markers, text, size) == "Let me see"


@given(text=st.text("a <tool_call>\n", max_size=50), size=st.integers(1, 5))
def test_what_is_shown_and_the_rest_are_the_content(text: str, size: int) -> None:
    visible = Visible(["<tool_call>", "<think>"])
    begun = "".join(visible.feed(text[i : i + size]) for i in range(0, len(text), size))
    content = text.strip()
    assert content.startswith(begun)
    assert "<tool_call>" not in begun
    assert begun + visible.rest(content) == content == visible.shown


def test_text_without_markers_is_shown_at_once() -> None:
    visible = Visible(["<tool_call>"])
    assert visible.feed("The answer") == "The answer"
    assert visible.feed(" is < 3") == " is < 3"
    assert visible.feed(" or <tool") == " or"


def test_an_empty_marker_waits_for_the_end() -> None:
    visible = Visible([""])
    assert visible.feed("anything") == ""
    assert visible.rest("anything") == "anything"
