"""From a name and arguments, however they were written, to a call that a tool accepts."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from trajgym.errors import did_you_mean
from trajgym.types import CallError, ToolCall, ToolSpec

__all__ = ["Findings", "checked_call"]


def checked_call(name: str, arguments: Mapping[str, Any], tools: Mapping[str, ToolSpec]) -> ToolCall | CallError:
    """Return the call if there is such a tool and its arguments fit; names must match to the letter."""
    if not name.strip():
        return CallError("empty_name", f"The tool's name is empty. Known tools: {_listed(tools)}.")
    if name not in tools:
        hint = _hint(name, tuple(tools))
        return CallError("unknown_tool", f"There is no tool {name[:60]!r}.{hint} Known tools: {_listed(tools)}.")
    return tools[name].check(arguments) or ToolCall(name, arguments)


@functools.lru_cache(maxsize=256)
def _hint(name: str, known: tuple[str, ...]) -> str:
    return did_you_mean(name, known)


def _listed(tools: Mapping[str, ToolSpec]) -> str:
    return ", ".join(sorted(tools)) or "none"


class Findings:
    """What was read so far: the calls in order, numbered, and the first error."""

    def __init__(self) -> None:
        self._calls: list[ToolCall] = []
        self.error: CallError | None = None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls so far."""
        return tuple(self._calls)

    def add(self, found: ToolCall | CallError) -> None:
        """Append a call, giving it its id, or keep an error if it is the first."""
        if isinstance(found, ToolCall):
            self._calls.append(ToolCall(found.name, found.arguments, f"call_{len(self._calls)}"))
        else:
            self.error = self.error or found
