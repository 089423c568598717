"""Stored dialogues: read as the environment would have written them, or refused with their place."""

from __future__ import annotations

from typing import Any

import pytest

from trajgym.envs.arithmetic import ArithmeticEnv
from trajgym.errors import DataError
from trajgym.protocols import get_protocol
from trajgym.trainers.data_messages import as_dialogue, read_messages
from trajgym.types import Message

HERMES = get_protocol("hermes")
USER = {"role": "user", "content": "48 + 24?"}


def described(env: ArithmeticEnv) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in env.tools.values()
    ]


def test_described_tools_read_as_the_environment_describes_them() -> None:
    env = ArithmeticEnv(instructions="schema")
    messages = read_messages([{"role": "system", "content": env.answer_rule}, USER], env.protocol, tools=described(env))
    assert messages[0].content == env.system
    alone = read_messages([USER], env.protocol, tools=described(env))
    assert env.system.startswith(alone[0].content)
    assert [m.role for m in alone] == ["system", "user"]


@pytest.mark.parametrize("arguments", [{"expression": "48+24"}, '{"expression": "48+24"}'])
def test_calls_are_written_as_the_protocol_reads_them(arguments: Any) -> None:
    call = {"type": "function", "id": "c1", "function": {"name": "calculator", "arguments": arguments}}
    turn = {"role": "assistant", "content": "First the sum.", "tool_calls": [call]}
    _, message = read_messages([USER, turn], HERMES)
    env = ArithmeticEnv()
    parsed = env.protocol.parse(message.content, env.tools)
    assert parsed.text == "First the sum."
    assert [(c.name, dict(c.arguments)) for c in parsed.calls] == [("calculator", {"expression": "48+24"})]


def test_columns_that_are_empty_count_as_missing() -> None:
    rows = [{**USER, "name": None, "tool_calls": None}, {"role": "tool", "content": "72", "tool_call_id": "c1"}]
    assert read_messages(rows, HERMES, tools=None) == [
        Message("user", "48 + 24?"),
        Message("tool", "72", call_id="c1"),
    ]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ("a text", "expected a list of messages"),
        ([], "expected a list of messages"),
        ([3], r"m\[0\]: expected a mapping"),
        ([USER, {"role": "bot", "content": "x"}], r"m\[1\]: 'role' must be one of .* got 'bot'"),
        ([{"role": "user"}], "'content' must be a text, got None"),
        ([{**USER, "tool_calls": [{"function": {"name": "f"}}]}], "only an assistant"),
        ([{"role": "assistant", "content": "", "tool_calls": [{"function": {}}]}], "expected {'function'"),
        ([{"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": "{"}]}], "are not JSON"),
        ([{"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": [1]}]}], "must be an object"),
    ],
)
def test_what_is_malformed_is_refused_with_its_place(messages: Any, why: str) -> None:
    with pytest.raises(DataError, match=why):
        read_messages(messages, HERMES, where="m")


@pytest.mark.parametrize("tools", ["calculator", [3], [{"function": {"description": "x"}}]])
def test_tools_that_have_no_name_are_refused(tools: Any) -> None:
    with pytest.raises(DataError, match="'tools' must be a list"):
        read_messages([USER], HERMES, tools=tools)


def test_a_dialogue_is_cut_where_training_begins() -> None:
    messages = [Message("user", "a"), Message("assistant", "b"), Message("tool", "c"), Message("assistant", "d")]
    whole = as_dialogue(messages, "row")
    assert [m.content for m in whole.prompt] == ["a"]
    assert [(s.action.text, s.observation.text) for s in whole.steps] == [("b", "c"), ("d", "")]
    assert whole.messages == tuple(messages)
    late = as_dialogue(messages, "row", trained_from=3)
    assert [m.content for m in late.prompt] == ["a", "b", "c"]
    assert late.messages == tuple(messages)
