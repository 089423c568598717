"""Every row of the case file, whichever form it names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trajgym.envs.base import ToolEnv
from trajgym.envs.tools import Tool, tool
from trajgym.protocols import Parsed, Protocol, Stream, get_protocol
from trajgym.types import Task, ToolCall, ToolSpec

CASES = Path(os.environ.get("TRAJGYM_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")


def case_rows(*roles: str) -> list[Any]:
    path = CASES / "toolcalls.jsonl"
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [pytest.param(row, id=row["id"]) for row in rows if row["role"] in roles]


def found(parsed: Parsed) -> dict[str, Any]:
    # As JSON: 1, 1.0 and True are equal in Python.
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in parsed.calls]
    return {"calls": json.dumps(calls, sort_keys=True), "error": parsed.error.kind if parsed.error else None}


@pytest.mark.cases
@pytest.mark.skipif(not CASES.is_dir(), reason=f"there are no cases in {CASES}")
@pytest.mark.parametrize("row", case_rows("assistant"))
def test_what_the_assistant_wrote(row: dict[str, Any], tools: Mapping[str, ToolSpec]) -> None:
    protocol = get_protocol(row["format"])
    expected = {"calls": json.dumps(row["expected"]["calls"], sort_keys=True), "error": row["expected"]["error"]}
    assert found(protocol.parse(row["text"], tools)) == expected
    for pieces in ([row["text"]], list(row["text"]), row.get("chunks", [])):
        stream = Stream(protocol, tools)
        for piece in pieces:
            stream.feed(piece)
        if pieces:
            assert found(stream.parsed) == expected


def first_call(protocol: Protocol) -> ToolCall:
    only = getattr(protocol, "only_tool", None)
    return ToolCall("python", {"code": "1"}) if only == "python" else ToolCall("calculator", {"expression": "1"})


@pytest.mark.cases
@pytest.mark.skipif(not CASES.is_dir(), reason=f"there are no cases in {CASES}")
@pytest.mark.parametrize("row", case_rows("tool", "user"))
def test_what_others_wrote_is_never_a_call(row: dict[str, Any]) -> None:
    protocol, seen = get_protocol(row["format"]), []
    call = first_call(protocol)

    def answer(**arguments: str) -> str:
        seen.append(arguments)
        return str(row["text"])

    assert row["expected"] == {"calls": [], "error": None}
    env = ToolEnv(
        [Task("t", row["text"] if row["role"] == "user" else "?", "72")],
        tools=[answering(call.name, answer)],
        protocol=protocol,
    )
    env.reset(seed=0)
    text, _, terminated, truncated, info = env.step(protocol.render(call))
    assert (text, terminated, truncated, len(seen)) == (row["text"], False, False, 1)
    assert info["messages"][-1].content == row["text"]
    _, _, terminated, _, _ = env.step("#### 72")
    assert (terminated, len(seen)) == (True, 1)


def answering(name: str, answer: Any) -> Tool:
    """A tool with the signature of ``calculator`` or ``python``."""
    if name == "python":

        @tool
        def python(code: str) -> str:
            """Run."""
            return str(answer(code=code))

        return python

    @tool
    def calculator(expression: str) -> str:
        """Compute."""
        return str(answer(expression=expression))

    return calculator
