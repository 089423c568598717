"""The tools that the tests of all written forms call, and texts to try them with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from trajgym.envs.tools import Tool, tool
from trajgym.protocols import Parsed, Protocol
from trajgym.types import ToolSpec


@tool
def calculator(expression: str) -> str:
    """Compute."""
    return expression


@tool
def python(code: str) -> str:
    """Run."""
    return code


@tool
def lookup(table: str, row: int, exact: bool = False, tags: list[str] = []) -> str:  # noqa: B006
    """Look up a row."""
    return f"{table} {row} {exact} {tags}"


@tool
def reset() -> str:
    """Begin anew."""
    return "done"


@pytest.fixture(scope="session")
def tools() -> dict[str, Tool]:
    return {one.name: one for one in (calculator, python, lookup, reset)}


Found = tuple[list[tuple[str, dict[str, object]]], str | None]


@pytest.fixture(scope="session")
def read(tools: Mapping[str, ToolSpec]) -> Callable[[Protocol, str], Found]:
    """Read a turn and return names and arguments of its calls, and the kind of error."""

    def read(protocol: Protocol, text: str) -> Found:
        parsed: Parsed = protocol.parse(text, tools)
        calls = [(call.name, dict(call.arguments)) for call in parsed.calls]
        return calls, parsed.error.kind if parsed.error else None

    return read
