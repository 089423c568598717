"""Arguments written as plain text instead of an object."""

from __future__ import annotations

from collections.abc import Mapping

from trajgym.protocols.checking import checked_call
from trajgym.protocols.schemas import text_parameter
from trajgym.types import CallError, ToolCall, ToolSpec

__all__ = ["raw_call"]


def raw_call(name: str, text: str, tools: Mapping[str, ToolSpec]) -> ToolCall | CallError:
    """Return the call of a tool whose only string argument is ``text``; blanks alone mean no arguments.

    Args:
        name: The tool.
        text: The argument as it stands.
        tools: The tools on offer.

    Returns:
        The call without an id, or the first thing wrong with it.
    """
    if name not in tools or not text.strip():
        return checked_call(name, {}, tools)
    parameter = text_parameter(tools[name])
    if parameter is None:
        problem = f"{name} has not exactly one argument that is text, so plain text cannot be its input"
        return CallError("bad_call_shape", f"Wrong shape: {problem}. Write the arguments as a JSON object.")
    return checked_call(name, {parameter: text}, tools)
