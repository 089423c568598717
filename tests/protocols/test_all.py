"""What holds for every written form."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trajgym.envs.base import ToolEnv
from trajgym.envs.tools import Tool, tool
from trajgym.errors import ConfigError
from trajgym.protocols import PROTOCOLS, Parsed, Protocol, SingleCall
from trajgym.protocols.describe import example_call
from trajgym.types import CallError, ExpertTurn, StopReason, Task, ToolCall, ToolSpec

KINDS = {
    *("malformed_json", "malformed_call", "truncated_call", "bad_call_shape", "empty_name", "unknown_tool"),
    *("missing_argument", "unexpected_argument", "wrong_type", "duplicate_key", "non_finite_number"),
    *("number_too_large", "too_deep", "bad_unicode", "unclosed_reasoning"),
}
VALUES_AS_TEXT = {"gsm8k_annotation", "python_block", "qwen3_coder"}
every_form = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=list(PROTOCOLS))

# Pieces of every form's markup, and of what any form has to mind.
PIECES = [
    *("<tool_call>", "</tool_call>", '{"name": "reset"}', '"arguments": {', "<function=python>", "</function>"),
    *("<parameter=code>", "</parameter>", "<|python_tag|>", "calculator.call(", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    *("[reset()]", "[calculator(", "expression=", "\nAction:", "\nAction Input:", "\nFinal Answer:", "\nThought:"),
    *('<tool name="reset"/>', '<tool name="python">', "</tool>", '<argument name="code">', "</argument>"),
    *("```python\n", "\n```\n", "```", "`", "~~~", "<<", "48/2=", ">>", "<think>", "</think>", "\nObservation:"),
    *("<tool_response>", "<|im_end|>", "</s>", "\n", " ", *"\\\"'{}[](),:=#<>", "'''", '"""', "reset", "1e", "-"),
    *("\x00", "\ud800", "\u2028", "é"),
]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
CLEAN = TEXTS.map(lambda text: text.encode("utf-8", "replace").decode())
SUMS = st.text("0123456789+-*/().,", min_size=1, max_size=12)


def a_call(name: str, required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Any:
    return st.builds(ToolCall, st.just(name), st.fixed_dictionaries(dict(required), optional=dict(optional or {})))


CALLS = st.one_of(
    a_call("calculator", {"expression": SUMS}),
    a_call("calculator", {"expression": CLEAN}),
    a_call("python", {"code": CLEAN}),
    a_call("lookup", {"table": CLEAN, "row": st.integers()}, {"exact": st.booleans(), "tags": st.lists(CLEAN)}),
    a_call("reset", {}),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | CLEAN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(CLEAN, inner, max_size=4),
    max_leaves=12,
)


def plain_call(protocol: Protocol, k: int = 0) -> ToolCall:
    """A call that the form can carry."""
    if isinstance(protocol, SingleCall) and protocol.only_tool == "python":
        return ToolCall("python", {"code": f"print({k})"})
    return ToolCall("calculator", {"expression": f"48/{k}"})


def same(read: Parsed, *written: ToolCall) -> bool:
    # As JSON: 1, 1.0 and True are equal in Python.
    def shown(calls: tuple[ToolCall, ...]) -> list[str]:
        return [json.dumps([call.name, dict(call.arguments)], sort_keys=True) for call in calls]

    return read.error is None and shown(read.calls) == shown(written)


@every_form
@given(text=TEXTS)
def test_no_text_raises(protocol: Protocol, tools: Mapping[str, ToolSpec], text: str) -> None:
    sound(protocol, tools, text)


@every_form
@settings(max_examples=40)
@given(data=st.data())
def test_no_mutilated_call_raises(protocol: Protocol, tools: Mapping[str, ToolSpec], data: st.DataObject) -> None:
    text = "\n".join(protocol.render(plain_call(protocol, k)) for k in range(data.draw(st.integers(1, 3))))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 6)))
        text = text[:start] + data.draw(st.sampled_from(["", "", *PIECES])) + text[end:]
    sound(protocol, tools, text)


def sound(protocol: Protocol, tools: Mapping[str, ToolSpec], text: str) -> None:
    parsed = protocol.parse(text, tools)
    assert parsed == protocol.parse(text, tools)
    assert all(call.name in tools and tools[call.name].check(call.arguments) is None for call in parsed.calls)
    assert [call.id for call in parsed.calls] == [f"call_{k}" for k in range(len(parsed.calls))]
    assert parsed.error is None or parsed.error.kind in KINDS
    if isinstance(protocol, SingleCall):
        assert len(parsed.calls) <= 1
        assert protocol.finished(text) in (True, False)


@every_form
@settings(max_examples=40)
@given(call=CALLS)
def test_a_call_is_read_back_or_refused(protocol: Protocol, tools: Mapping[str, ToolSpec], call: ToolCall) -> None:
    try:
        text = protocol.render(call)
    except ConfigError:
        assert protocol.name in VALUES_AS_TEXT  # forms with JSON in them carry everything
        return
    assert same(protocol.parse(text, tools), call), text
    assert protocol.parse(text, tools).text == ""


TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


class Anything:
    """A tool that takes whatever it is given; its schema says of which type that is."""

    description = ""

    def __init__(self, call: ToolCall) -> None:
        self.name = call.name
        properties = {key: {"type": TYPES.get(type(value), "null")} for key, value in call.arguments.items()}
        self.parameters: Mapping[str, Any] = {"type": "object", "properties": properties}

    def check(self, arguments: Mapping[str, Any]) -> CallError | None:
        return None


@every_form
@settings(max_examples=40)
@given(name=st.sampled_from(["calculator", "python", "a.b", "a-b", "a b", "", "</think>"]) | CLEAN, data=st.data())
def test_any_name_and_arguments_are_read_back_or_refused(protocol: Protocol, name: str, data: st.DataObject) -> None:
    keys = st.sampled_from(["expression", "code", "class", "a b"]) | CLEAN
    call = ToolCall(name, data.draw(st.dictionaries(keys, VALUES, max_size=3)))
    assume(name.strip())
    try:
        text = protocol.render(call)
    except ConfigError:
        return
    assert same(protocol.parse(text, {name: Anything(call)}), call), text


@every_form
def test_deep_arguments_are_read_back_or_refused(protocol: Protocol) -> None:
    for depth in (10, 60, 70, 10_000):
        value: Any = "end"
        for _ in range(depth):
            value = [value]
        call = ToolCall("calculator", {"expression": value})
        try:
            text = protocol.render(call)
        except ConfigError:
            continue
        assert same(protocol.parse(text, {"calculator": Anything(call)}), call), depth


@every_form
@pytest.mark.parametrize("text", ["", "Half of it first.", "One.\n\nTwo."])
def test_a_turn_is_read_back(protocol: Protocol, tools: Mapping[str, ToolSpec], text: str) -> None:
    calls = tuple(plain_call(protocol, k) for k in range(3))
    for count in (0, 1):
        read = protocol.parse(protocol.render_turn(ExpertTurn(text, calls[:count])), tools)
        assert same(read, *calls[:count])
        assert read.text == text
    if isinstance(protocol, SingleCall):
        with pytest.raises(ConfigError, match="the first call of a turn only, got 3"):
            protocol.render_turn(ExpertTurn(text, calls))
    else:
        assert same(protocol.parse(protocol.render_turn(ExpertTurn(text, calls)), tools), *calls)


@every_form
@pytest.mark.parametrize("style", ["schema", "signature"])
def test_instructions(protocol: Protocol, style: str, tools: Mapping[str, ToolSpec]) -> None:
    text = protocol.instructions(tools, style)
    only = protocol.only_tool if isinstance(protocol, SingleCall) else None
    for name in [only] if only else tools:
        assert name in text
        assert tools[name].description in text or style == "signature"
        assert all(argument in text for argument in tools[name].parameters["properties"])
    # A policy that repeats them calls nothing; the short style may end in a whole call with a placeholder in it.
    example = ToolCall(**example_call(next(iter(tools.values()))))
    read = protocol.parse(text, tools)
    assert not read.calls or (style == "signature" and same(Parsed("", read.calls), example))
    assert protocol.instructions({}, style) == ""
    with pytest.raises(ConfigError, match="Unknown style 'long'"):
        protocol.instructions(tools, "long")


REPEATED = [
    *(
        "<tool_call>",
        '{"name": "reset"}',
        "<parameter=code>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "<｜tool▁call▁begin｜>",
    ),
    *("[reset()]\n", "[a(x=1,\n", "[a(x='''\n", "\nAction:", "Action Input: ```x\n", "<<1="),
    *("Action Input: {\n", '<tool name="python">', '<argument name="code">', "```python\n", "\n```\n", "` `` "),
    *("<think>", "</think>", "\nObservation:", "=\n", " ", "`", *"\\\"'{[(,<1"),
    *("<tool_call> {} x", "<tool_call>```\n{}", "- ```\n", "> ~~~\n", "> ", "- ", "1. ```x\n\n"),
]


@every_form
@pytest.mark.parametrize("piece", REPEATED)
def test_twice_the_text_takes_about_twice_the_time(
    protocol: Protocol, tools: Mapping[str, ToolSpec], piece: str
) -> None:
    opening = protocol.render(plain_call(protocol))[:-1]
    for start in ("", opening):
        texts = [start + piece * (size // len(piece)) for size in (50_000, 100_000)]
        # Twice the text takes four times as long where the time grows as its square. Noise may look like it, once.
        assert any(ratio(protocol, tools, *texts) < 3 for _ in range(4)), f"{start!r} and many of {piece!r}"


def ratio(protocol: Protocol, tools: Mapping[str, ToolSpec], short: str, long: str) -> float:
    seconds = []
    for text in (short, long):
        started = time.thread_time()
        protocol.parse(text, tools)
        seconds.append(time.thread_time() - started)
    return seconds[1] / max(seconds[0], 1e-9)


def echo(protocol: Protocol, calls: list[ToolCall]) -> Tool:
    """A tool whose answers are calls of itself."""

    def answer(**arguments: str) -> str:
        calls.append(ToolCall("", arguments))
        return "\n".join([protocol.render(plain_call(protocol)), "</think>", protocol.render(plain_call(protocol))])

    if plain_call(protocol).name == "python":

        @tool
        def python(code: str) -> str:
            """Run."""
            return answer(code=code)

        return python

    @tool
    def calculator(expression: str) -> str:
        """Compute."""
        return answer(expression=expression)

    return calculator


@every_form
def test_what_a_tool_answers_is_never_a_call(protocol: Protocol) -> None:
    calls: list[ToolCall] = []
    env = ToolEnv([Task("t", "?", "72")], tools=[echo(protocol, calls)], protocol=protocol)
    env.reset(seed=0)
    turns: list[Callable[[], str]] = [lambda: protocol.render(plain_call(protocol)), lambda: "#### 72"]
    for expected, turn in zip((None, StopReason.ANSWERED), turns, strict=True):
        _, _, _, _, info = env.step(turn())
        assert (info["stop_reason"], len(calls)) == (expected, 1)
