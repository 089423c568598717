"""OpenAI's messages as the dialogue of an environment, and back."""

from __future__ import annotations

from typing import Any

import pytest

from trajgym.envs.make import make
from trajgym.errors import ConfigError
from trajgym.protocols import get_protocol
from trajgym.serving.dialogue import RemoteTool, call_prefix, dialogue_of, tools_of, written_calls
from trajgym.serving.schemas import ChatMessage, ChatRequest
from trajgym.types import Message, ToolCall

HERMES = get_protocol("hermes")
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}


def request(**values: Any) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "q"}], **values})


def messages(*values: dict[str, Any]) -> list[ChatMessage]:
    return [ChatMessage.model_validate(value) for value in values]


def test_a_dialogue_is_written_as_in_training() -> None:
    """The very messages that an environment shows a policy, rebuilt from what a client sends."""
    env: Any = make("ArithmeticTool-v0").unwrapped
    _, info = env.reset(seed=0)
    system, user = info["messages"]
    tools = {name: RemoteTool(name, tool.description, tool.parameters) for name, tool in env.tools.items()}
    call = env.protocol.render(ToolCall("calculator", {"expression": "1+2"}))
    rebuilt = dialogue_of(
        messages(
            {"role": "system", "content": env.answer_rule},
            {"role": "user", "content": user.content},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "x", "function": {"name": "calculator", "arguments": '{"expression": "1+2"}'}}],
            },
            {"role": "tool", "tool_call_id": "x", "content": "3"},
        ),
        tools,
        env.protocol,
        "signature",
    )
    assert rebuilt[:3] == [system, user, Message("assistant", call)]
    assert rebuilt[3] == Message("tool", "3", name="calculator", call_id="x")


def test_system_messages_are_gathered_in_front() -> None:
    found = dialogue_of(
        messages(
            {"role": "user", "content": "q"},
            {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        ),
        {},
        HERMES,
    )
    assert found == [Message("system", "be brief"), Message("user", "q")]


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"', "NaN("])
def test_earlier_calls_must_hold_an_object(arguments: str) -> None:
    call = {"id": "x", "function": {"name": "add", "arguments": arguments}}
    with pytest.raises(ConfigError, match="arguments of the call 'x'"):
        dialogue_of(messages({"role": "assistant", "tool_calls": [call]}), {}, HERMES)


def test_tools_are_on_offer_unless_no_call_is_wanted() -> None:
    assert set(tools_of(request(tools=[ADD]))) == {"add"}
    assert tools_of(request(tools=[ADD], tool_choice="none")) == {}
    assert tools_of(request()) == {}


@pytest.mark.parametrize("name", ["hermes", "react", "llama3_json", "mistral", "deepseek", "qwen3_coder", "pythonic"])
def test_a_prefix_begins_every_call(name: str) -> None:
    protocol = get_protocol(name)
    tools = {name: RemoteTool(name) for name in ("add", "search")}
    prefix = call_prefix(protocol, tools)
    assert prefix
    for tool in tools:
        assert protocol.render(ToolCall(tool, {"b": 1})).startswith(prefix)
    chosen = call_prefix(protocol, tools, "add")
    assert len(chosen) > len(prefix)
    assert "add" in chosen


def test_calls_get_ids_of_their_own() -> None:
    written = written_calls([ToolCall("add", {"a": "ü"}), ToolCall("add", {"a": 2})], "call_1_")
    assert [call["id"] for call in written] == ["call_1_0", "call_1_1"]
    assert written[0]["function"] == {"name": "add", "arguments": '{"a": "ü"}'}
