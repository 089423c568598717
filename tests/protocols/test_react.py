from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.protocols import get_protocol
from trajgym.protocols.react import React
from trajgym.types import ExpertTurn, ToolCall, ToolSpec

REACT = React()
ACT = "Action: calculator\nAction Input: 48/2"
HALF = ("calculator", {"expression": "48/2"})


def run(code: str) -> tuple[str, dict[str, str]]:
    return ("python", {"code": code})


T3 = ("lookup", {"table": "t", "row": 3})
RESET = ("reset", {})

ROWS: list[tuple[str, list[Any], str | None]] = [
    # which action
    (f"{ACT}\nFinal Answer: 24", [HALF], None),
    (f"Final Answer: 24\n{ACT}", [HALF], None),
    (f"#### 24\n{ACT}", [HALF], None),
    (f"{ACT}\nAction: reset", [HALF], None),
    (f"{ACT}\nObservation: 24\nAction: reset", [HALF], None),
    (f"Observation: it is even.\n{ACT}", [HALF], None),
    (f"{ACT}<|im_end|>\nObservation: 24", [HALF], None),
    (f"{ACT}\n<tool_response>24</tool_response>", [HALF], None),
    ("#### 72", [], None),
    ("Observation: 24\nFinal Answer: 24", [], None),
    ("I do not need an Action: reset.", [], None),
    ("action: reset", [], None),
    # how far the input goes
    ("Action: python\nAction Input: x = 1\n\nprint(x)\n\nThought: done", [run("x = 1\n\nprint(x)")], None),
    (
        "Action: python\nAction Input:\n    if x:\n        y\n\nObservation: 1",
        [run("    if x:\n        y")],
        None,
    ),
    ("Action: python\nAction Input: x = 1\n#### a comment", [run("x = 1\n#### a comment")], None),
    ("Action: calculator\nSo I halve it.\nAction Input: 48/2", [HALF], None),
    # no input
    ("Action: reset", [RESET], None),
    ("Action: reset\nThought: fresh start", [RESET], None),
    ("Action: reset\nAction Input:\n", [RESET], None),
    ("Action: reset\nAction Input: {}", [RESET], None),
    ("Action: reset\nAction Input: None", [], "bad_call_shape"),
    ("Action: calculator\nAction Input:", [], "missing_argument"),
    ("Action: calculator\nThought: hm\nAction Input: 48/2", [], "missing_argument"),
    ("Action Input: 48/2", [], "bad_call_shape"),
    # names
    ("Action:\nAction Input: 48/2", [], "empty_name"),
    ("Action: Calculator\nAction Input: 48/2", [], "unknown_tool"),
    ("Action: calculator(48/2)", [], "unknown_tool"),
    ("Action: `reset`", [RESET], None),
    ("Action: ``", [], "unknown_tool"),
    # plain text as input
    ("Action: lookup\nAction Input: t", [], "missing_argument"),
    ("Action: calculator\nAction Input: [48]", [("calculator", {"expression": "[48]"})], None),
    ('Action: calculator\nAction Input: "48/2"', [("calculator", {"expression": '"48/2"'})], None),
    ("Action: calculator\nAction Input: `1` + `2`", [("calculator", {"expression": "`1` + `2`"})], None),
    ("Action: calculator\nAction Input: ``48/2``", [HALF], None),
    # JSON as input
    ('Action: lookup\nAction Input: {"table": "t", "row": 3}', [T3], None),
    ('Action: lookup\nAction Input:\n{\n "table": "t",\n "row": 3\n}\n', [T3], None),
    ('Action: lookup\nAction Input: `{"table": "t", "row": 3}`', [T3], None),
    ('Action: lookup\nAction Input: ```json\n{"table": "t", "row": 3}\n```', [T3], None),
    ('Action: lookup\nAction Input: {"table": "t", "row": "3"}', [], "wrong_type"),
    ('Action: lookup\nAction Input: {"table": "t", "row": 3} now', [], "malformed_json"),
    ('Action: lookup\nAction Input: {"table": "t", "row": 3,}', [], "malformed_json"),
    ("Action: lookup\nAction Input: {'table': 't', 'row': 3}", [], "malformed_json"),
    ('Action: lookup\nAction Input: {"table": "t", "ro', [], "truncated_call"),
    ('Action: lookup\nAction Input: {"table": "t"<|im_end|>, "row": 3}', [], "truncated_call"),
    ('Action: python\nAction Input: {"code": "</think><|im_end|>"}', [run("</think><|im_end|>")], None),
    ('Action: python\nAction Input: {"code": "a", "code": "b"}', [], "duplicate_key"),
    ('Action: nope\nAction Input: {"a": 1}', [], "unknown_tool"),
    # fences around the input
    ("Action: python\nAction Input: ```python\nprint(1)\n```", [run("print(1)")], None),
    ("Action: python\nAction Input:\n```\nprint(1)\n```\nObservation: 1", [run("print(1)")], None),
    ("Action: python\nAction Input: ```py\ns = '''\nThought: a\n'''\n```\n", [run("s = '''\nThought: a\n'''")], None),
    ("Action: python\nAction Input: ````\n```\n````", [run("```")], None),
    ("Action: python\nAction Input: ```\ns = '```'\n````\n", [run("s = '```'")], None),
    ("Action: python\nAction Input: ```python\nprint(1)", [], "truncated_call"),
    ("Action: python\nAction Input: ```\nprint(1)\n```\nThat prints 1.", [], "malformed_call"),
    # examples and reasoning
    ("`Action: reset`", [], None),
    (f"```\n{ACT}\n```\nAction: reset", [RESET], None),
    (f"<think>\n{ACT}\n</think>\nAction: reset", [RESET], None),
    (f"{ACT}\n</think>\nFinal Answer: 24", [], None),
    (f"<think>hm</think>{ACT}", [HALF], None),
    (f"hm</THINK> {ACT}", [HALF], None),
    (f"So.<think>hm</think>{ACT}", [HALF], None),
    ("Action: reset<think>hm</think>", [RESET], None),
    ("Action: calculator<think>hm</think>\nAction Input: 48/2", [HALF], None),
    ("Action: calculator\n<think>hm</think>Action Input: 48/2", [HALF], None),
    ('Action: python\n<think>hm</think>Action Input: {"code": "</think>"}', [run("</think>")], None),
    (f"{ACT}\n<think>hm</think>Thought: so", [HALF], None),
    ("Action: reset\n<think>hm</think>Observation: done\nAction Input: 3", [RESET], None),
    (f"- ```\n  {ACT}\n  ```\n{ACT}", [HALF], None),
    (f"<think>\n{ACT}", [], "unclosed_reasoning"),
    (f"{ACT}\n<think>hm</think>", [HALF], None),
    (f"{ACT}\n<think>hm", [HALF], "unclosed_reasoning"),
    (f"{ACT}<think>hm</think>", [], "malformed_call"),
    (f"{ACT}<think>hm", [], "unclosed_reasoning"),
    ("Action: nope\n<think>hm", [], "unknown_tool"),
]


@pytest.mark.parametrize(("text", "calls", "error"), ROWS)
def test_rule(read: Callable[..., Any], text: str, calls: list[Any], error: str | None) -> None:
    assert read(REACT, text) == (calls, error)


def test_the_action_leaves_the_text(tools: Mapping[str, ToolSpec]) -> None:
    parsed = REACT.parse(f"<think>a</think>Thought: half\n{ACT}\nObservation: 24\nmore", tools)
    assert parsed.text == "Thought: half"
    assert REACT.parse(f"{ACT}\nFinal Answer: 24", tools).text == "Final Answer: 24"


def test_render_writes_json() -> None:
    call = ToolCall("calculator", {"expression": "48/2"})
    assert REACT.render(call) == 'Action: calculator\nAction Input: {"expression": "48/2"}'
    assert REACT.render_turn(ExpertTurn("Thought: half", (call,))).startswith("Thought: half\nAction: calculator\n")


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        (ACT, False),
        (f"{ACT}\n", False),
        (f"{ACT}\nObservation", False),
        (f"{ACT}\nObservation:", True),
        (f"{ACT}\nFinal Answer:", True),
        (f"{ACT}<|im_end|>", True),
        ('Action: lookup\nAction Input: {"table": "}', False),
        ('Action: lookup\nAction Input: {"table": "t"}', True),
        ("Action: python\nAction Input: ```\nx", False),
        ("Action: python\nAction Input: ```\nx\n```", True),
        ("Action: reset", False),
        ("Action: reset\nThought:", True),
        ("Thought: a\nFinal Answer: 3", False),
        ("<think>\nAction: reset\nThought:", False),
    ],
)
def test_when_nothing_more_has_to_be_written(text: str, finished: bool) -> None:
    assert REACT.finished(text) is finished


LABELS = st.sampled_from(["Action:", "Action Input:", "Thought:", "Observation:", "Final Answer:"])
LINES = st.lists(st.one_of(LABELS, st.sampled_from([" reset", " {", "}", "\n", "\n", "`", "```", "3"])), max_size=20)


@given(LINES.map("".join))
def test_without_an_action_there_is_no_call(tools: Mapping[str, ToolSpec], text: str) -> None:
    parsed = REACT.parse(text.replace("Action:", "action:"), tools)
    assert parsed.calls == ()
    assert parsed.error is None or parsed.error.kind == "bad_call_shape"


def test_it_is_registered() -> None:
    assert isinstance(get_protocol("react"), React)
