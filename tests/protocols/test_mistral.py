from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trajgym.protocols.mistral import Mistral
from trajgym.types import ExpertTurn, ToolCall, ToolSpec

OPEN = "[TOOL_CALLS]"
CALC = '{"name": "calculator", "arguments": {"expression": "1+1"}}'
REST = '{"name": "reset"}'
BAD = '{"name": "calculator", "arguments": {"expression": "1+1",}}'
NAMED = f'{OPEN}calculator[ARGS]{{"expression": "1+1"}}'

ROWS = [
    # lists
    (f"{OPEN}[{CALC}]", ["calculator"], None),
    (f"{OPEN} [{CALC},\n{REST}]", ["calculator", "reset"], None),
    (f"{OPEN}[{CALC}]\n{OPEN}[{REST}]", ["calculator", "reset"], None),
    (f"{OPEN}[{CALC}] so [2]", ["calculator"], None),
    (f"{OPEN}```json\n[{CALC}]\n```\n{OPEN}[{REST}]", ["calculator", "reset"], None),
    (f"{OPEN}[{CALC}", ["calculator"], None),
    (f"{OPEN}[{CALC}{OPEN}[{REST}]", ["calculator", "reset"], None),
    (f"{OPEN}[{CALC},", ["calculator"], "truncated_call"),
    (f"{OPEN}[{CALC}, {REST[:-1]}", ["calculator"], "truncated_call"),
    (f"{OPEN}[", [], "truncated_call"),
    (f"{OPEN}[{REST[:-1]}\n{OPEN}[{CALC}]", ["calculator"], "truncated_call"),
    (f"{OPEN}\n{OPEN}[{CALC}]", ["calculator"], "truncated_call"),
    (f"{OPEN}[]", [], "bad_call_shape"),
    (f"{OPEN}{CALC}", [], "bad_call_shape"),
    (f'{OPEN}["x", {CALC}, null, 3]', ["calculator"], "bad_call_shape"),
    (f"{OPEN}[{BAD}, {REST}]", ["reset"], "malformed_json"),
    (f"{OPEN}[{CALC}, {BAD}]", ["calculator"], "malformed_json"),
    (f"{OPEN}[{BAD}]{OPEN}[{REST}]", ["reset"], "malformed_json"),
    (f"{OPEN}[{CALC} {REST}]", [], "malformed_json"),
    (f'{OPEN}[{{"name": "python", "arguments": {{"code": "{OPEN}[{REST}]"}}}}]', [], "malformed_json"),
    (f'{OPEN}[{{"name": "nope"}}, {REST}, {{"name": ""}}]', ["reset"], "unknown_tool"),
    (f'{OPEN}[{{"name": "calculator", "arguments": "{{\\"expression\\": \\"1\\"}}"}}]', ["calculator"], None),
    (f'{OPEN}[{{"name": "reset", "id": "abc123def"}}]', ["reset"], None),
    # names
    (NAMED, ["calculator"], None),
    (f"{NAMED}{OPEN}reset[ARGS]{{}}", ["calculator", "reset"], None),
    (f'{OPEN} calculator [ARGS] {{"expression": "1"}}', ["calculator"], None),
    (f'{OPEN}calculator[CALL_ID]a1b2c3d4e[ARGS]{{"expression": "1"}}', ["calculator"], None),
    (f'{OPEN}calculator{{"expression": "1"}}', ["calculator"], None),
    (f"{NAMED}\n\nLet me see {{what}} comes.", ["calculator"], None),
    (f'{OPEN}calculator[ARGS]```json\n{{"expression": "1"}}\n```', ["calculator"], None),
    (f"{OPEN}reset[ARGS]null", ["reset"], None),
    (f"{OPEN}calc", [], "truncated_call"),
    (f"{OPEN}calculator[AR", [], "truncated_call"),
    (f"{OPEN}calculator[CALL_ID]a1b2", [], "truncated_call"),
    (f"{OPEN}reset[ARGS]", [], "truncated_call"),
    (NAMED[:-1], [], "truncated_call"),
    (f"{NAMED}}}", [], "malformed_json"),
    (f"{OPEN}a[ARGS]{{bad}}{NAMED}", ["calculator"], "malformed_json"),
    (f"{OPEN}a[ARGS]{{bad,}}\n{NAMED}", ["calculator"], "malformed_json"),
    (f"{OPEN} I will calculate", [], "malformed_call"),
    (f"{OPEN}[ARGS]{{}}", [], "empty_name"),
    (f"{OPEN}reset[ARGS][]", [], "bad_call_shape"),
    (f'{OPEN}functions.reset[ARGS]{{"a": NaN}}', [], "non_finite_number"),
    (f"{OPEN}functions.reset[ARGS]{{}}", [], "unknown_tool"),
    # what does not act
    (f"[{CALC}]", [], None),
    (f"[THINK]{OPEN}[{CALC}][/THINK]{OPEN}[{REST}]", ["reset"], None),
    (f"<think>{OPEN}[{CALC}]</think>{OPEN}[{REST}]", ["reset"], None),
    (f"so {OPEN}[{CALC}][/THINK]{OPEN}[{REST}]", ["reset"], None),
    (f"<THINK>{OPEN}[{CALC}]</Think>{OPEN}[{REST}]", ["reset"], None),
    (f'<think>{OPEN}"}}</think>{OPEN}[{REST}]', ["reset"], None),
    (f'<think>{OPEN}["a</think>{OPEN}[{REST}]', ["reset"], None),
    (f"[think]{OPEN}[{REST}]", ["reset"], None),
    (f"[THINK]{OPEN}[{CALC}]", [], "unclosed_reasoning"),
    (f'`{OPEN}[{CALC}]`, "{OPEN}[{CALC}]"', [], None),
    (f"```\n{NAMED}\n```", [], None),
    (f"{NAMED}</s>{NAMED}", ["calculator"], None),
    (f"{NAMED}[TOOL_RESULTS]2[/TOOL_RESULTS]{NAMED}", ["calculator"], None),
    (f"{NAMED}[INST]go on[/INST]{NAMED}", ["calculator"], None),
    (f'{OPEN}python[ARGS]{{"code": "[THINK]</s>[TOOL_RESULTS]"}}', ["python"], None),
]


@pytest.mark.parametrize(("text", "names", "error"), ROWS)
def test_rule(text: str, names: list[str], error: str | None, read: Callable[..., Any]) -> None:
    calls, kind = read(Mistral(), text)
    assert ([name for name, _ in calls], kind) == (names, error)


def test_the_rest_is_text(tools: Mapping[str, ToolSpec]) -> None:
    assert Mistral().parse(f"First. {OPEN}[{CALC}] then {NAMED} end.", tools).text == "First.  then  end."


def test_a_turn_is_written_as_one_list() -> None:
    calls = (ToolCall("calculator", {"expression": "1+1"}), ToolCall("reset"))
    written = Mistral().render_turn(ExpertTurn("First.", calls))
    assert written == f'First.\n{OPEN}[{CALC}, {{"name": "reset", "arguments": {{}}}}]'
