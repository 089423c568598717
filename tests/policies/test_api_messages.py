"""Dialogues as chat endpoints read them, and back."""

from __future__ import annotations

import json

import pytest

from trajgym.policies.api_messages import UNREADABLE, native_messages, native_tools, native_turn, text_messages
from trajgym.protocols import get_protocol
from trajgym.serving.dialogue import RemoteTool
from trajgym.types import Message, ToolCall

SCHEMA = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOLS = {"calculator": RemoteTool("calculator", "Works it out.", SCHEMA)}
HERMES = get_protocol("hermes")
CALL = ToolCall("calculator", {"expression": "1+2"})


def test_tool_messages_of_one_turn_stand_in_one_user_message() -> None:
    found = text_messages(
        [Message("user", "q"), Message("tool", "3"), Message("tool", "4"), Message("user", "r")], "user"
    )
    assert [message["role"] for message in found] == ["user", "user", "user"]
    assert found[1]["content"] == "<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response>"


def test_tool_messages_can_stay_what_they_are() -> None:
    found = text_messages([Message("tool", "3", call_id="call_0"), Message("tool", "Error")], "tool")
    assert [message["tool_call_id"] for message in found] == ["call_0", "none"]


@pytest.mark.parametrize("name", ["hermes", "react", "llama3_json", "qwen3_coder"])
def test_calls_go_to_the_endpoints_form_and_come_back(name: str) -> None:
    protocol = get_protocol(name)
    text = native_turn("Let me see.", [("calculator", '{"expression": "1+2"}')], protocol)
    (call,) = protocol.parse(text, TOOLS).calls
    assert (call.name, call.arguments) == ("calculator", {"expression": "1+2"})
    (message,) = native_messages([Message("assistant", text)], protocol, TOOLS)
    (written,) = message["tool_calls"]
    assert written["function"]["name"] == "calculator"
    assert json.loads(written["function"]["arguments"]) == {"expression": "1+2"}


def test_ids_differ_over_the_dialogue_and_match_their_answers() -> None:
    turn = HERMES.render(CALL)
    dialogue = [
        *(Message("user", "q"), Message("assistant", f"{turn}\n{turn}")),
        *(Message("tool", "3", call_id="call_0"), Message("tool", "4", call_id="call_1")),
        *(Message("assistant", turn), Message("tool", "5", call_id="call_0")),
    ]
    found = native_messages(dialogue, HERMES, TOOLS)
    asked = [call["id"] for message in found for call in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in found if message["role"] == "tool"]
    assert asked == answered
    assert len(set(asked)) == 3


def test_an_error_that_answers_no_call_is_a_user_message() -> None:
    found = native_messages([Message("assistant", "<tool_call>{"), Message("tool", "Error (x)")], HERMES, TOOLS)
    assert found == [{"role": "assistant", "content": "<tool_call>{"}, {"role": "user", "content": "Error (x)"}]


@pytest.mark.parametrize("style", ["schema", "signature"])
def test_instructions_are_left_to_the_endpoint(style: str) -> None:
    system = f"{HERMES.instructions(TOOLS, style)}\n\nEnd with ####."
    assert native_messages([Message("system", system)], HERMES, TOOLS) == [
        {"role": "system", "content": "End with ####."}
    ]
    assert native_messages([Message("system", HERMES.instructions(TOOLS, style))], HERMES, TOOLS) == []


@pytest.mark.parametrize("arguments", ["{", "[1]", "7", "[" * 100_000])
def test_arguments_that_are_no_object_reach_the_environment_as_an_error(arguments: str) -> None:
    (call,) = HERMES.parse(native_turn("", [("calculator", arguments)], HERMES), TOOLS).calls
    assert call.arguments == {UNREADABLE: arguments}


def test_tools_are_described() -> None:
    function = {"name": "calculator", "description": "Works it out.", "parameters": SCHEMA}
    assert native_tools(TOOLS) == [{"type": "function", "function": function}]
