"""Our tools as methods whose schema TRL can read.

TRL describes a tool to the model by a method's type hints and docstring. Both are made from the tool's own JSON schema,
so what a model is told is what our validation accepts.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Union

from trajgym.envs.tools import Tool
from trajgym.errors import ToolDefinitionError

__all__ = ["RESERVED", "tool_method"]

RESERVED = ("episode", "get_reward", "reset")
"""Names that mean something else in an environment of TRL's."""

_BASIC = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}


def tool_method(tool: Tool) -> Callable[..., str]:
    """Return a method that passes a call of ``tool`` on to ``self.episode``.

    Args:
        tool: One of the environment's.

    Raises:
        ToolDefinitionError: When TRL would not show a method of this name to the model, or cannot read its schema.
    """
    name = tool.name
    if name in RESERVED or name.startswith("_"):
        raise ToolDefinitionError(
            f"A tool called {name!r} cannot be a method of an environment of TRL's, where {', '.join(RESERVED)} and "
            "names that begin with `_` are taken. Rename it with @tool(name=...)."
        )

    # The arguments are checked by the tool itself, so a model may pass anything: also one that is called "self".
    def method(self: Any, /, **arguments: Any) -> str:
        return str(self.episode.call(name, arguments))

    properties: Mapping[str, Any] = tool.parameters["properties"]
    hints = {key: _hint(schema, tool.parameters) for key, schema in properties.items()}
    parameters = [
        inspect.Parameter(
            key, inspect.Parameter.KEYWORD_ONLY, annotation=hints[key], default=schema.get("default", inspect._empty)
        )
        for key, schema in properties.items()
    ]
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__name__ = method.__qualname__ = name
    method.__doc__ = _docstring(tool, properties)
    method.__annotations__ = hints
    method.__signature__ = inspect.Signature([receiver, *parameters])  # type: ignore[attr-defined]
    _check_schema(method, name)
    return method


def _docstring(tool: Tool, properties: Mapping[str, Any]) -> str:
    """Write description and arguments in the form that transformers reads, one line for each argument."""
    lines = [tool.description]
    if properties:
        lines += ["", "Args:"]
    for key, schema in properties.items():
        said = " ".join(str(schema.get("description") or f"The {key}.").split())
        for form in _objects(schema, tool.parameters):  # more than a type hint can tell
            said += f" Form: {json.dumps(form, ensure_ascii=False)}"
        lines.append(f"    {key}: {said}")
    return "\n".join(lines)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return schema if reference is None else root["$defs"][str(reference).rsplit("/", 1)[-1]]


def _objects(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of objects with named properties that stand in a schema, but not in one another."""
    schema = _resolved(schema, root)
    if "properties" in schema:
        yield schema
        return
    values = schema.get("additionalProperties")
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), schema.get("items"), values]
    for part in inner:
        if isinstance(part, Mapping):
            yield from _objects(part, root)


def _hint(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Return the type hint from which transformers makes this JSON schema again."""
    schema = _resolved(schema, root)
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices is not None:
        return Literal[tuple(choices)]
    members = schema.get("anyOf", schema.get("oneOf"))
    if members is not None:
        return Union[tuple(_hint(member, root) for member in members)]  # noqa: UP007
    kind = schema.get("type")
    if kind == "array":
        return list[_hint(schema["items"], root)] if schema.get("items") else list  # type: ignore[misc]
    if kind == "object":
        values = schema.get("additionalProperties")
        return dict[str, _hint(values, root)] if isinstance(values, Mapping) and values else dict  # type: ignore[misc]
    return _BASIC.get(str(kind), Any)


def _check_schema(method: Callable[..., str], name: str) -> None:
    from transformers.utils import get_json_schema

    try:
        get_json_schema(method)
    except Exception as error:
        raise ToolDefinitionError(
            f"transformers cannot describe the tool {name!r} to a model: {type(error).__name__}: {error}. Simplify its "
            "types or its docstring."
        ) from error
