"""Calls written as JSON objects, ``{"name": …, "arguments": {…}}``, whatever stands around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trajgym.protocols.checking import checked_call
from trajgym.protocols.strict_json import Json, read_json, skip_blanks
from trajgym.types import CallError, ToolCall, ToolSpec

__all__ = ["call_of", "read_arguments"]


def call_of(found: Json, tools: Mapping[str, ToolSpec], *, arguments_key: str = "arguments") -> ToolCall | CallError:
    """Turn a JSON value into a call.

    Args:
        found: What was read where a call has to stand.
        tools: The tools on offer.
        arguments_key: The key of the arguments; other keys beside it and ``"name"`` are ignored.

    Returns:
        The call without an id, or the first thing wrong with it.
    """
    if found.error is not None:
        return found.error
    value = found.value
    if not isinstance(value, dict):
        return _bad_shape(f"a call is one JSON object, got {_kind(value)}", arguments_key)
    if "name" not in value:
        return _bad_shape('the key "name" is missing', arguments_key)
    name = value["name"]
    if not isinstance(name, str):
        return _bad_shape(f'"name" must be a string, got {_kind(name)}', arguments_key)
    arguments = read_arguments(value.get(arguments_key), arguments_key)
    if isinstance(arguments, CallError):
        return arguments
    return checked_call(name, arguments, tools)


def read_arguments(value: Any, key: str = "arguments", form: str | None = None) -> dict[str, Any] | CallError:
    """Return arguments as an object: ``None`` is empty, and a string may hold one, one layer deep.

    Args:
        value: What was written.
        key: Where it stood, for messages.
        form: How a call is written, for messages, where it is not one JSON object with name and arguments.
    """
    if value is None:
        return {}
    if isinstance(value, str):
        inner = read_json(value)
        whole = inner.complete and skip_blanks(value, inner.end) == len(value)
        if not whole or not isinstance(inner.value, dict):
            return _bad_shape(f'"{key}" is a string that holds no JSON object', key, form)
        if inner.error is not None:
            return inner.error
        value = inner.value
    if not isinstance(value, dict):
        return _bad_shape(f'"{key}" must be an object, got {_kind(value)}', key, form)
    return value


def _bad_shape(problem: str, key: str, form: str | None = None) -> CallError:
    form = form or f'{{"name": "...", "{key}": {{...}}}}'
    return CallError("bad_call_shape", f"Wrong shape: {problem}. Write {form}.")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}.get(type(value), "a number")
