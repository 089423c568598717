from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trajgym.errors import ConfigError
from trajgym.protocols import get_protocol
from trajgym.protocols.annotation import GSM8KAnnotation
from trajgym.types import ToolCall, ToolSpec

ANNOTATION = GSM8KAnnotation()


def value_of(expression: str) -> list[Any]:
    return [("calculator", {"expression": expression})]


ROWS: list[tuple[str, list[Any], str | None]] = [
    ("48/2 = <<48/2=", value_of("48/2"), None),
    ("<<48/2=24>>24 and <<24+48=", value_of("24+48"), None),
    ("<<48/2=24>>24, and 24+48 is 72\n#### 72", [], None),
    ("#### 72 <<48/2=", value_of("48/2"), None),
    ("<<1,000*(2-.5)//3=", value_of("1,000*(2-.5)//3"), None),
    ("<<48/2= \n", value_of("48/2"), None),
    ("<<48/2=<|im_end|>\nmore", value_of("48/2"), None),
    ("<<48/2=\nObservation: 24\n<<1+1=", value_of("48/2"), None),
    ("<<48/2=\n<tool_response>24</tool_response>", value_of("48/2"), None),
    # not at the very end, not open, or not a calculation
    ("<<48/2=24", [], None),
    ("<<48/2= is what I need", [], None),
    ("<<48/2", [], None),
    ("<<48/2=2+22=", [], None),
    ("<<48/2==", [], None),
    ("<48/2=", [], None),
    ("<<<48/2=", [], None),
    ("<<48 / 2=", [], None),
    ("<<48%2=", [], None),
    ("<<n+3=", [], None),
    ("<<٤٨/2=", [], None),
    ("<<48\n/2=", [], None),
    ("x <<=", [], None),
    ("<<()=", [], None),
    ("48/2=", [], None),
    # examples and reasoning
    ("Like `<<48/2=`", [], None),
    ("```\n<<48/2=", [], None),
    ("<think>I need <<48/2=", [], "unclosed_reasoning"),
    ("<think>Half</think> <<48/2=", value_of("48/2"), None),
    ("<<48/2=<think>", [], "unclosed_reasoning"),
]


@pytest.mark.parametrize(("text", "calls", "error"), ROWS)
def test_rule(read: Callable[..., Any], text: str, calls: list[Any], error: str | None) -> None:
    assert read(ANNOTATION, text) == (calls, error)


def test_without_a_calculator_the_policy_is_told(tools: Mapping[str, ToolSpec]) -> None:
    parsed = ANNOTATION.parse("So <<48/2=", {"python": tools["python"]})
    assert parsed.error is not None
    assert (parsed.error.kind, parsed.calls, parsed.text) == ("unknown_tool", (), "So")


def test_render() -> None:
    assert ANNOTATION.render(ToolCall("calculator", {"expression": "48/2"})) == "<<48/2="


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("python", {"code": "1"}),
        ToolCall("calculator"),
        ToolCall("calculator", {"expression": 3}),
        ToolCall("calculator", {"expression": "1", "x": "2"}),
        ToolCall("calculator", {"expression": "48 / 2"}),
        ToolCall("calculator", {"expression": "sqrt(4)"}),
        ToolCall("calculator", {"expression": ""}),
        ToolCall("calculator", {"expression": "1=24>>24 <<2"}),
    ],
)
def test_what_it_cannot_carry_is_refused(call: ToolCall) -> None:
    with pytest.raises(ConfigError, match="gsm8k_annotation"):
        ANNOTATION.render(call)


@pytest.mark.parametrize(
    ("text", "finished"),
    [("a <<48/2", False), ("a <<48/2=", True), ("a <<48/2=2", False), ("a=", False), ("<think><<1=", False)],
)
def test_when_nothing_more_has_to_be_written(text: str, finished: bool) -> None:
    assert ANNOTATION.finished(text) is finished


def test_only_the_calculator_is_described(tools: Mapping[str, ToolSpec]) -> None:
    short = ANNOTATION.instructions(tools, "signature")
    assert short == "Tools:\ncalculator(expression: string)\nCall: stop behind <<expression="
    assert "lookup" not in ANNOTATION.instructions(tools)
    assert ANNOTATION.instructions({"reset": tools["reset"]}) == ""


def test_it_is_registered() -> None:
    assert isinstance(get_protocol("gsm8k_annotation"), GSM8KAnnotation)
