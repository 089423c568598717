"""What may act in a turn, for every written form: not what stands in reasoning, in examples or behind the end."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.protocols import PROTOCOLS, Protocol, SingleCall, reading
from trajgym.protocols.reading import TURN_MARK, read_turn
from trajgym.types import ToolCall, ToolSpec

HIDDEN = "\0"
every_form = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=list(PROTOCOLS))

# Without backticks, ends of turn and tags of reasoning: the tests put those where they belong.
PIECES = [
    *("<tool_call>", "</tool_call>", "<tool_call>\n<function=", "python>", "</function>", "<parameter=code>"),
    *("</parameter>", "<|python_tag|>", "calculator.call(", "[TOOL_CALLS]", "[TOOL_CALLS][", "[ARGS]"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>reset\n", "<｜tool▁call▁end｜>"),
    *('<tool name="reset"/>', '<tool name="python">', "</tool>", '<argument name="code">', "</argument>"),
    *("\nAction: reset", "\nAction Input: {}", "[reset()]\n", "<<1=", "<tool_response>", "\nObservation:"),
    *('{"name": "reset"}', '{"name": "python", "parameters": {"code": "', '"}}', "\n", " ", *'"\\{}[];,', "x", "1"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def a_call(protocol: Protocol) -> ToolCall:
    if isinstance(protocol, SingleCall) and protocol.only_tool == "python":
        return ToolCall("python", {"code": "7"})
    return ToolCall("calculator", {"expression": "7"})


@every_form
@given(text=TEXTS)
def test_nothing_in_reasoning_runs(protocol: Protocol, tools: Mapping[str, ToolSpec], text: str) -> None:
    for turn in (f"<think>{text}</think>", f"{text}</think> so", f"<THINK>{text}</Think>", f"<think>{text}"):
        assert protocol.parse(turn, tools).calls == ()


@every_form
@given(text=TEXTS)
def test_a_call_behind_reasoning_runs(protocol: Protocol, tools: Mapping[str, ToolSpec], text: str) -> None:
    call = a_call(protocol)
    for turn in (f"<think>{text}</think>\n", f"{text}</think>\n", f"<think>{text}</think>", f"{text}</THINKING> "):
        parsed = protocol.parse(turn + protocol.render(call), tools)
        assert [(one.name, dict(one.arguments)) for one in parsed.calls] == [(call.name, dict(call.arguments))]


@every_form
@given(text=TEXTS)
def test_nothing_in_an_example_runs(protocol: Protocol, tools: Mapping[str, ToolSpec], text: str) -> None:
    assert protocol.parse(f"See:\n```\n{text}\n```\nso it is.", tools).calls == ()
    quoted = "".join(f"> {line}\n" for line in ["~~~", *text.split("\n"), "~~~"])
    assert protocol.parse(quoted, tools).calls == ()


@every_form
@given(text=TEXTS)
def test_nothing_behind_the_end_of_the_turn_matters(
    protocol: Protocol, tools: Mapping[str, ToolSpec], text: str
) -> None:
    turn = protocol.render(a_call(protocol))
    assert protocol.parse(f"{turn}<|im_end|>{text}", tools) == protocol.parse(turn, tools)


@pytest.mark.parametrize(
    ("text", "live"),
    [
        ("a <think>b</think> c", f"a \n{HIDDEN * 14}\n c"),
        ("the tag `<think>` is", "the tag \0\0\0\0\0\0\0\0\0 is"),
        ("```\nx\n```</think>c", f"\n{HIDDEN * 15}\nc"),
        ("<think>b</think>```\nx\n```", f"\n{HIDDEN * 14}\n{HIDDEN * 9}"),
        ("```\nx\n```<think>b</think>c", f"{HIDDEN * 9}\n{HIDDEN * 14}\nc"),
        ("- ```\n  x\n  ```\nc", f"- {HIDDEN * 13}\nc"),
        ("a STOP b", "a "),
        ("a `STOP` b", "a \0\0\0\0\0\0 b"),
    ],
)
def test_what_is_live(text: str, live: str) -> None:
    turn = read_turn(text, "<tool_call>", stops=("STOP", "HALT"))
    assert (turn.live, turn.unclosed) == (live, False)


@pytest.mark.parametrize(
    ("text", "mark"), [("a</s>b", "</s>"), ("a</think>b", "</think>"), ("`<think>` </thinking>", "</thinking>")]
)
def test_marks(text: str, mark: str) -> None:
    found = TURN_MARK.search(text)
    assert found is not None
    assert found[0] == mark


@given(text=st.lists(st.sampled_from([*PIECES, "`", "~~~", "</s>", "<think>", "</think>"]), max_size=14).map("".join))
def test_text_without_markup_is_read_as_all_other(text: str) -> None:
    quick = read_turn(text, "<tool_call>")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_MARKUP", re.compile(""))
        assert read_turn(text, "<tool_call>") == quick
