"""What is written must read back as the same call: the check of the forms that cannot carry every call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trajgym.errors import ConfigError
from trajgym.protocols.base import Protocol
from trajgym.protocols.strict_json import write_json
from trajgym.types import CallError, ToolCall

__all__ = ["read_back"]


def read_back(protocol: Protocol, call: ToolCall, text: str) -> str:
    """Return ``text`` when ``protocol`` reads ``call`` in it, exactly that, and nothing else.

    Raises:
        ConfigError: When it does not, or when an argument is not a JSON value.
    """
    parsed = protocol.parse(text, {call.name: _AnyArguments(call.name)})
    if parsed.error is None and not parsed.text and len(parsed.calls) == 1:
        read = parsed.calls[0]
        # As JSON, since 1 == True == 1.0 in Python.
        if read.name == call.name and write_json(dict(read.arguments)) == write_json(dict(call.arguments)):
            return text
    raise ConfigError(
        f"The protocol {protocol.name!r} cannot carry this call of {call.name[:60]!r}: what it would write reads back "
        "differently. Change the arguments, or choose another protocol."
    )


class _AnyArguments:
    """A tool that takes whatever it is given.

    Args:
        name: What it is called.
    """

    description = ""
    parameters: Mapping[str, Any] = {"type": "object"}

    def __init__(self, name: str) -> None:
        self.name = name

    def check(self, arguments: Mapping[str, Any]) -> CallError | None:
        return None
