"""How tools are shown to a policy: full JSON schemas, or one short line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trajgym.errors import ConfigError, did_you_mean
from trajgym.protocols.strict_json import write_json
from trajgym.types import ToolSpec

__all__ = ["STYLES", "check_style", "example_call", "introduce", "schema_line", "signature"]

STYLES = ("schema", "signature")

_PLACEHOLDERS = {"integer": 0, "number": 0, "boolean": True, "object": {}, "null": None}


def check_style(style: str) -> None:
    """Raise when there is no such style of instructions.

    Raises:
        ConfigError: Listing the styles.
    """
    if style not in STYLES:
        raise ConfigError(f"Unknown style {style!r}.{did_you_mean(style, STYLES)} Known: {', '.join(STYLES)}.")


def schema_line(tool: ToolSpec) -> str:
    """Return a tool as one line of JSON, in the form chat templates use."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return write_json({"type": "function", "function": function})


def signature(tool: ToolSpec) -> str:
    """Return a tool as ``name(argument: type, optional?: type)``."""
    required = tool.parameters.get("required", ())
    arguments = [
        f"{name}{'' if name in required else '?'}: {_type_of(schema)}"
        for name, schema in tool.parameters.get("properties", {}).items()
    ]
    return f"{tool.name}({', '.join(arguments)})"


def example_call(tool: ToolSpec) -> dict[str, Any]:
    """Return a call of the tool with its required arguments, as a JSON value; the values are placeholders."""
    properties = tool.parameters.get("properties", {})
    arguments = {
        name: _PLACEHOLDERS.get(_type_of(properties[name]), "...") for name in tool.parameters.get("required", ())
    }
    return {"name": tool.name, "arguments": arguments}


def introduce(tools: Mapping[str, ToolSpec], style: str, how: Sequence[str], example: str) -> str:
    """Return the tools in that style and how to call them; nothing when there are none.

    Args:
        tools: The tools on offer.
        style: One of :data:`STYLES`.
        how: Lines that say how a call is written, for the style that has room for them.
        example: A call, for the style that has not.

    Raises:
        ConfigError: For an unknown style.
    """
    check_style(style)
    if not tools:
        return ""
    if style == "signature":
        return "\n".join(["Tools:", *(signature(tool) for tool in tools.values()), f"Call: {example}"])
    lines = [schema_line(tool) for tool in tools.values()]
    head = "You can use tools while you work on the task. Each line below describes one tool in JSON:"
    return "\n".join([head, "<tools>", *lines, "</tools>", "", *how])


def _type_of(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(write_json(value) for value in schema["enum"])
    if "const" in schema:
        return write_json(schema["const"])
    if "anyOf" in schema:
        return " | ".join(_type_of(option) for option in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "array" and "items" in schema:
        return f"array of {_type_of(schema['items'])}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)
