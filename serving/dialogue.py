"""Between OpenAI's messages and the dialogue a model was trained on: calls in its own written form, tools as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trajgym.errors import ConfigError
from trajgym.protocols import Protocol
from trajgym.protocols.describe import example_call
from trajgym.protocols.strict_json import write_json
from trajgym.serving.schemas import ChatMessage, ChatRequest, ToolItem
from trajgym.types import CallError, ExpertTurn, Message, ToolCall

__all__ = ["RemoteTool", "call_prefix", "dialogue_of", "tools_of", "written_calls"]


@dataclass(frozen=True)
class RemoteTool:
    """A tool that the client runs. Whether the arguments fit is the client's to say."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def check(self, arguments: Mapping[str, Any]) -> CallError | None:
        """Accept everything: the client has the tool, and tells the model what was wrong with a call."""
        return None


def tools_of(request: ChatRequest) -> dict[str, RemoteTool]:
    """Return the tools on offer, by name; none where the client wants no call."""
    if request.tool_choice == "none":
        return {}
    return {tool.function.name: _tool(tool) for tool in request.tools or ()}


def dialogue_of(
    messages: Sequence[ChatMessage], tools: Mapping[str, RemoteTool], protocol: Protocol, style: str = "schema"
) -> list[Message]:
    """Return the dialogue as our environments hold it: one system message that describes the tools, then the rest.

    Args:
        messages: As the client sent them.
        tools: The tools on offer.
        protocol: The form in which the model writes calls.
        style: How tools are described, as in training: ``"schema"`` or ``"signature"``.

    Raises:
        ConfigError: When an earlier call cannot be written in the model's form.
    """
    system = [m.text for m in messages if m.role in ("system", "developer")]
    head = "\n\n".join(part for part in (protocol.instructions(tools, style) if tools else "", *system) if part)
    dialogue = [Message("system", head)] if head else []
    names = {call.id: call.function.name for m in messages for call in m.tool_calls or () if call.id}
    for message in messages:
        if message.role in ("system", "developer"):
            continue
        if message.role == "assistant":
            dialogue.append(Message("assistant", _assistant(message, protocol)))
        elif message.role == "tool":
            name = message.name or names.get(message.tool_call_id or "")
            dialogue.append(Message("tool", message.text, name=name, call_id=message.tool_call_id))
        else:
            dialogue.append(Message("user", message.text))
    return dialogue


def call_prefix(protocol: Protocol, tools: Mapping[str, RemoteTool], chosen: str | None = None) -> str:
    r"""Return what every call in this form begins with, or every call of one tool.

    Args:
        protocol: The written form.
        tools: The tools on offer.
        chosen: The tool to call; any of them when ``None``.

    >>> from trajgym.protocols import get_protocol
    >>> call_prefix(get_protocol("hermes"), {"add": RemoteTool("add"), "sub": RemoteTool("sub")})
    '<tool_call>\n{"name": "'
    """
    written = []
    for name in [chosen] if chosen else ["a", "z", *tools]:
        required = list(example_call(tools[name])["arguments"]) if name in tools else []
        for arguments in ({}, {"00": "0"}, {"xx": "x"}, dict.fromkeys(required, "0"), dict.fromkeys(required, "1")):
            try:
                written.append(protocol.render(ToolCall(name, arguments)))
            except ConfigError:  # some forms call one tool alone, and with one argument
                continue
    # What the first and the last in order begin with, all begin with.
    first, last = min(written, default=""), max(written, default="")
    return first[: next((k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def written_calls(calls: Sequence[ToolCall], prefix: str) -> list[dict[str, Any]]:
    """Return calls as OpenAI's interface writes them.

    Args:
        calls: What the model called.
        prefix: Makes their ids unique in the whole dialogue.
    """
    return [
        {
            "id": f"{prefix}{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": write_json(dict(call.arguments))},
        }
        for number, call in enumerate(calls)
    ]


def _tool(item: ToolItem) -> RemoteTool:
    function = item.function
    return RemoteTool(function.name, function.description, {"type": "object", **function.parameters})


def _assistant(message: ChatMessage, protocol: Protocol) -> str:
    calls = []
    for item in message.tool_calls or ():
        try:
            arguments = json.loads(item.function.arguments or "{}")
        except ValueError as error:
            raise ConfigError(f"The arguments of the call {item.id!r} are not JSON: {error}.") from error
        if not isinstance(arguments, dict):
            raise ConfigError(f"The arguments of the call {item.id!r} must be a JSON object.")
        calls.append(ToolCall(item.function.name, arguments, item.id))
    return protocol.render_turn(ExpertTurn(message.text, tuple(calls)))
