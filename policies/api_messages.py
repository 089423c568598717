"""A dialogue as chat endpoints read it, and their replies as a turn in an environment's protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trajgym.protocols import Protocol
from trajgym.protocols.describe import STYLES
from trajgym.protocols.strict_json import write_json
from trajgym.types import ExpertTurn, Message, ToolCall, ToolSpec

__all__ = ["native_messages", "native_tools", "native_turn", "text_messages"]

UNREADABLE = "unreadable_arguments"
"""Argument that stands for arguments that are no JSON object, so that the environment says what is wrong."""


def text_messages(messages: Sequence[Message], tool_role: str) -> list[dict[str, Any]]:
    r"""Return a dialogue in which calls are text.

    Args:
        messages: The dialogue.
        tool_role: ``"user"`` hands tool messages over as user messages between tags, those of one turn together, which
            every endpoint accepts; ``"tool"`` as they are.

    >>> text_messages([Message("tool", "72", name="calculator", call_id="call_0")], "user")
    [{'role': 'user', 'content': '<tool_response>\n72\n</tool_response>'}]
    """
    out: list[dict[str, Any]] = []
    last = ""
    for message in messages:
        if message.role == "tool" and tool_role == "user":
            content = f"<tool_response>\n{message.content}\n</tool_response>"
            if last == "tool":
                out[-1]["content"] += f"\n{content}"
            else:
                out.append({"role": "user", "content": content})
        else:
            label = {"tool_call_id": message.call_id or "none"} if message.role == "tool" else {}
            out.append({"role": message.role, "content": message.content, **label})
        last = message.role
    return out


def native_messages(
    messages: Sequence[Message], protocol: Protocol, tools: Mapping[str, ToolSpec]
) -> list[dict[str, Any]]:
    """Return a dialogue in which calls are the endpoint's own.

    The protocol's instructions are taken out of the system message, since the endpoint describes the tools itself. A
    tool message that answers no call, such as the error of one that could not be read, becomes a user message.
    """
    out: list[dict[str, Any]] = []
    turn = 0
    open_calls: set[str] = set()
    for message in messages:
        if message.role == "system":
            content = message.content
            for style in STYLES:
                content = content.replace(protocol.instructions(tools, style), "").strip()
            if content:
                out.append({"role": "system", "content": content})
        elif message.role == "assistant":
            turn += 1
            parsed = protocol.parse(message.content, tools)
            calls = [_written(call, f"call_{turn}_{k}") for k, call in enumerate(parsed.calls)]
            open_calls = {call["id"] for call in calls}
            said: dict[str, Any] = {"role": "assistant", "content": parsed.text if calls else message.content}
            out.append({**said, "tool_calls": calls} if calls else said)
        elif message.role == "tool":
            # The environment counts the calls of each turn from 0; in a whole dialogue their ids have to differ.
            name = f"call_{turn}_{(message.call_id or '').removeprefix('call_')}"
            if name in open_calls:
                open_calls.discard(name)
                out.append({"role": "tool", "content": message.content, "tool_call_id": name})
            else:
                out.append({"role": "user", "content": message.content})
        else:
            out.append({"role": message.role, "content": message.content})
    return out


def native_tools(tools: Mapping[str, ToolSpec]) -> list[dict[str, Any]]:
    """Return tools in the form that endpoints take."""
    return [
        {
            "type": "function",
            "function": {"name": t.name, "description": t.description, "parameters": dict(t.parameters)},
        }
        for t in tools.values()
    ]


def native_turn(text: str, calls: Sequence[tuple[str, str]], protocol: Protocol) -> str:
    """Return a reply as a turn in the protocol.

    Args:
        text: What was said.
        calls: Name and arguments, the latter as JSON, of each call.
        protocol: The environment's.

    Raises:
        ConfigError: When the protocol cannot write one of the calls.
    """
    return protocol.render_turn(ExpertTurn(text, tuple(ToolCall(name, _read(written)) for name, written in calls)))


def _read(written: str) -> dict[str, Any]:
    try:
        arguments = json.loads(written or "{}")
    except (ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {UNREADABLE: written}


def _written(call: ToolCall, name: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": write_json(dict(call.arguments))}
    return {"id": name, "type": "function", "function": function}
