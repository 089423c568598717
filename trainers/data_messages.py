"""Dialogues as other libraries store them: messages as mappings, calls as JSON, tools as schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trajgym.errors import DataError
from trajgym.protocols import Protocol
from trajgym.types import Action, CallError, ExpertTurn, Message, Observation, Step, Task, ToolCall, Trajectory

__all__ = ["as_dialogue", "read_messages"]

_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class _Described:
    """A tool of which only the description is known; see :class:`trajgym.types.ToolSpec`."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def check(self, arguments: Mapping[str, Any]) -> CallError | None:
        return None


def read_messages(values: Any, protocol: Protocol, *, tools: Any = None, where: str = "messages") -> list[Message]:
    """Return a stored dialogue as messages.

    A message is a mapping with ``role`` and ``content``; an assistant's may have ``tool_calls`` in the form of chat
    templates, which are written behind its content in ``protocol``, and a tool's ``name`` and ``tool_call_id``.

    Args:
        values: A list of such mappings, or of :class:`~trajgym.types.Message`.
        protocol: The written form of a call.
        tools: Descriptions of tools in the form of chat templates. They go to the front of the system message, as an
            environment puts them there.
        where: Where the dialogue stands, for messages of errors.

    Raises:
        DataError: When something of this is malformed.
    """
    if isinstance(values, (str, Mapping)) or not isinstance(values, Sequence) or not values:
        raise DataError(f"{where}: expected a list of messages such as {{'role': 'user', …}}, got {values!r:.80}.")
    messages = [_message(value, protocol, f"{where}[{i}]") for i, value in enumerate(values)]
    if not tools:
        return messages
    told = protocol.instructions(_described(tools, where))
    if messages[0].role == "system":
        return [Message("system", f"{told}\n\n{messages[0].content}"), *messages[1:]]
    return [Message("system", told), *messages]


def as_dialogue(messages: Sequence[Message], where: str, *, trained_from: int = 0) -> Trajectory:
    """Return messages as the trajectory whose prompt and steps they are; nothing in it was paid.

    Args:
        messages: The dialogue.
        where: Where it stands, for messages of errors.
        trained_from: The assistant's messages before this one are part of the prompt.

    Raises:
        DataError: When no assistant's message is left to be a step, or the dialogue begins with one.
    """
    turns = [i for i in range(trained_from, len(messages)) if messages[i].role == "assistant"]
    if not turns or turns[0] == 0:
        raise DataError(f"{where}: needs a prompt and then a message of the assistant, got {_roles(messages)}.")
    ends = [*turns[1:], len(messages)]
    steps = [
        Step(Action(messages[turn].content), Observation(tuple(messages[turn + 1 : end])))
        for turn, end in zip(turns, ends, strict=True)
    ]
    return Trajectory(Task(where, "", ""), tuple(messages[: turns[0]]), tuple(steps))


def _message(value: Any, protocol: Protocol, where: str) -> Message:
    if isinstance(value, Message):
        return value
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: expected a mapping with role and content, got {value!r:.80}.")
    role, content = value.get("role"), value.get("content")
    if role not in _ROLES:
        raise DataError(f"{where}: 'role' must be one of {', '.join(_ROLES)}, got {role!r:.80}.")
    calls = value.get("tool_calls") or ()
    if calls and role != "assistant":
        raise DataError(f"{where}: only an assistant's message has 'tool_calls', this one is of the {role}.")
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        raise DataError(f"{where}: 'content' must be a text, got {content!r:.80}.")
    if calls:
        turn = ExpertTurn(content, tuple(_call(call, f"{where}.tool_calls") for call in calls))
        return Message(role, protocol.render_turn(turn))
    labels = {key: value.get(key) for key in ("name", "tool_call_id", "call_id")} if role == "tool" else {}
    return Message(role, content, name=labels.get("name"), call_id=labels.get("tool_call_id") or labels.get("call_id"))


def _call(value: Any, where: str) -> ToolCall:
    function = value.get("function", value) if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise DataError(f"{where}: expected {{'function': {{'name': …, 'arguments': …}}}}, got {value!r:.80}.")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: the arguments of {name!r:.60} are not JSON: {error}") from error
    if not isinstance(arguments, Mapping):
        raise DataError(f"{where}: the arguments of {name!r:.60} must be an object, got {arguments!r:.80}.")
    return ToolCall(name, dict(arguments))


def _described(tools: Any, where: str) -> dict[str, _Described]:
    described = {}
    for tool in tools if isinstance(tools, Sequence) and not isinstance(tools, str) else [tools]:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str):
            raise DataError(f"{where}: 'tools' must be a list of {{'function': {{'name': …}}}}, got {tool!r:.80}.")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        described[name] = _Described(name, str(function.get("description") or ""), parameters)
    return described


def _roles(messages: Sequence[Message]) -> str:
    shown = ", ".join(message.role for message in messages[:8])
    return f"{shown}, …" if len(messages) > 8 else shown or "nothing"
