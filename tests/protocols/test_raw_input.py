from __future__ import annotations

from collections.abc import Mapping

import pytest

from trajgym.envs.tools import Tool, tool
from trajgym.protocols.raw_input import raw_call
from trajgym.types import ToolCall, ToolSpec


@tool
def translate(text: str, target: str) -> str:
    """Take two texts."""
    return text + target


@tool
def note(text: str, lines: list[str] | None = None) -> str:
    """Take one text."""
    return text


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("calculator", " 48/2", ToolCall("calculator", {"expression": " 48/2"})),
        ("note", "a\nb", ToolCall("note", {"text": "a\nb"})),
        ("reset", "", ToolCall("reset")),
        ("reset", " \n", ToolCall("reset")),
        ("reset", "now", "bad_call_shape"),
        ("translate", "a", "bad_call_shape"),
        ("calculator", "", "missing_argument"),
        ("lookup", "t", "missing_argument"),
        ("nope", "x", "unknown_tool"),
        ("", "x", "empty_name"),
    ],
)
def test_text_is_the_only_string_argument(
    tools: Mapping[str, Tool], name: str, text: str, expected: ToolCall | str
) -> None:
    offered: dict[str, ToolSpec] = {**tools, "translate": translate, "note": note}
    found = raw_call(name, text, offered)
    assert (found if isinstance(found, ToolCall) else found.kind) == expected
