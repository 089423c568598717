"""What a tool's JSON schema says of its parameters, as far as a written form depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trajgym.types import ToolSpec

__all__ = ["allowed_types", "text_parameter"]

_ALL = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_MAX_DEPTH = 8  # a definition may refer to itself


def text_parameter(tool: ToolSpec) -> str | None:
    """Return the tool's only parameter that takes text and nothing else, or ``None`` if there are none or several."""
    properties = tool.parameters.get("properties", {})
    names = [name for name, schema in properties.items() if allowed_types(schema, tool.parameters) == {"string"}]
    return names[0] if len(names) == 1 else None


def allowed_types(schema: Mapping[str, Any], root: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types a value may have; a schema that does not say allows all.

    Args:
        schema: The schema of one parameter.
        root: The schema it stands in, for references into its ``$defs``.
    """
    return _types(schema, root, 0)


def _types(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> frozenset[str]:
    if depth > _MAX_DEPTH:
        return _ALL
    if "$ref" in schema:
        return _types(root.get("$defs", {}).get(schema["$ref"].rsplit("/", 1)[-1], {}), root, depth + 1)
    if "type" in schema:
        kinds = schema["type"]
        return frozenset([kinds] if isinstance(kinds, str) else kinds)
    if "enum" in schema or "const" in schema:
        return frozenset(_KINDS.get(type(value), "null") for value in schema.get("enum", [schema.get("const")]))
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return frozenset().union(*(_types(option, root, depth + 1) for option in options))
    return _ALL
