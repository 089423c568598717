from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trajgym.envs.tools import Tool, tool
from trajgym.protocols.llama3 import Llama3
from trajgym.types import ExpertTurn, ToolCall, ToolSpec

TAG = "<|python_tag|>"
CALC = '{"name": "calculator", "parameters": {"expression": "1+1"}}'
REST = '{"name": "reset"}'
BAD = '{"name": "calculator", "parameters": {"expression": "1+1",}}'

ROWS = [
    # the whole reply
    (CALC, ["calculator"], None),
    (f"\n {CALC}\n", ["calculator"], None),
    (f"{CALC}\n{REST}", ["calculator", "reset"], None),
    (f"{CALC}{REST}", ["calculator", "reset"], None),
    (f"{CALC} ;\n{REST};", ["calculator", "reset"], None),
    (f"```json\n{CALC}\n```", ["calculator"], None),
    (f"```json\n{CALC}\n```\nis how one calls it.", [], None),
    (f"I think.\n{CALC}", [], None),
    (f"{CALC} I used {{calculator}} and " + '{"expression": "1+1"}', ["calculator"], None),
    ('{"type": "function", "name": "reset", "parameters": {}}', ["reset"], None),
    ('{"answer": 72}', [], None),
    ("{48, 24} is the set.", [], None),
    (f"[{CALC}]", [], None),
    # behind the tag
    (f"I think.\n{TAG}{CALC}", ["calculator"], None),
    (f"{TAG} {CALC}; {REST}<|eom_id|>", ["calculator", "reset"], None),
    (f"{TAG}{CALC}\n{TAG}{REST}", ["calculator", "reset"], None),
    (f"{TAG}```json\n{CALC}\n```", ["calculator"], None),
    (f"{TAG}[{CALC}]", [], "bad_call_shape"),
    (f"{TAG}{CALC} and so on", ["calculator"], None),
    # cut or wrong
    (TAG, [], "truncated_call"),
    (f"{TAG}\n{TAG}{REST}", ["reset"], "truncated_call"),
    (CALC[:-1], [], "truncated_call"),
    ('{"na', [], "truncated_call"),
    (f"{TAG}{CALC}; {REST[:-1]}", ["calculator"], "truncated_call"),
    (f"{TAG}{REST[:-1]}\n{TAG}{CALC}", ["calculator"], "truncated_call"),
    (f"{TAG}```json\n{CALC}", [], "truncated_call"),
    (f"{CALC}}}", [], "malformed_json"),
    (f"{CALC}, {REST}", [], "malformed_json"),
    (f"{BAD}; {REST}", ["reset"], "malformed_json"),
    (f"{TAG}{BAD}\n{TAG}{REST}", ["reset"], "malformed_json"),
    ("{'name': 'reset'}", [], "malformed_json"),
    ("{name: 'reset'}", [], "malformed_json"),
    (f'{TAG}{{"name": "python", "parameters": {{"code": "{TAG}{REST}"}}}}', [], "malformed_json"),
    # the shape of a call
    ('{"name": "calculator", "arguments": {"expression": "1"}}', ["calculator"], None),
    ('{"name": "calculator", "parameters": "{\\"expression\\": \\"1\\"}"}', ["calculator"], None),
    ('{"name": "calculator", "parameters": "1"}', [], "bad_call_shape"),
    ('{"parameters": {}}', [], "bad_call_shape"),
    ('{"type": "function", "function": {"name": "reset"}}', [], "bad_call_shape"),
    ('{"name": "nope"}; {"name": "reset"}', ["reset"], "unknown_tool"),
    ('{"name": "lookup", "parameters": {"table": "t", "row": "3"}}', [], "wrong_type"),
    # built-in tools and programs
    (f'{TAG}lookup.call(table="t", row=3, exact=True)', ["lookup"], None),
    (f'{TAG}calculator.call(expression="1', [], "truncated_call"),
    (f'{TAG}calculator.call(expression="1"', [], "truncated_call"),
    (f"{TAG}calculator.call(expression=1+1)", [], "malformed_call"),
    (f"{TAG}calculator.call(expression=open('x').read())", [], "malformed_call"),
    (f"{TAG}subprocess.call('ls')", ["python"], None),
    (f"{TAG}print(1)\n{TAG}{REST}", ["python", "reset"], None),
    # what does not act
    (f"<think>{CALC}</think>\n{REST}", ["reset"], None),
    (f"<think>{TAG}{CALC}</think>\n{TAG}{REST}", ["reset"], None),
    (f"so {TAG}print(1)</think>\n\n{REST}", ["reset"], None),
    (f"<THINK>{CALC}</THINK>{REST}", ["reset"], None),
    (f"<think>hm</think>```json\n{REST}\n```<think>hm</think>", ["reset"], None),
    (f"{TAG}{BAD}\n<think>hm</think>{TAG}{REST}", ["reset"], "malformed_json"),
    (f"<think>\n{CALC}", [], "unclosed_reasoning"),
    (f'{TAG}{{"name": "python", "parameters": {{"code": "</think><|eot_id|>"}}}}', ["python"], None),
    (f"`{TAG}{CALC}` is a call", [], None),
    (f'Write "{TAG}{CALC}" or "{TAG}print(1)".', [], None),
    (f"```\n{TAG}{CALC}\n```", [], None),
    (f"{CALC}<|eot_id|>{TAG}{REST}", ["calculator"], None),
    (f"{CALC}\nObservation: 2\n{TAG}{REST}", ["calculator"], None),
    (f"{TAG}{CALC}<|start_header_id|>ipython<|end_header_id|>2{TAG}{REST}", ["calculator"], None),
]


@pytest.mark.parametrize(("text", "names", "error"), ROWS)
def test_rule(text: str, names: list[str], error: str | None, read: Callable[..., Any]) -> None:
    calls, kind = read(Llama3(), text)
    assert ([name for name, _ in calls], kind) == (names, error)


@pytest.mark.parametrize("code", ["print(48+24)", "x = 1\nprint(x)", "x = '`a`'  # ```", "a = [{}][0]"])
def test_a_program_goes_to_the_interpreter(code: str, read: Callable[..., Any]) -> None:
    expected = [("python", {"code": code})], None
    assert read(Llama3(), f"{TAG}{code}") == expected
    assert read(Llama3(), f"{TAG}```python\n{code}\n```<|eom_id|>") == expected


def test_a_program_needs_an_interpreter_that_takes_text(tools: Mapping[str, ToolSpec]) -> None:
    error = Llama3().parse(f"{TAG}print(1)", {"calculator": tools["calculator"]}).error
    assert error is not None
    assert error.kind == "unknown_tool"

    @tool(name="python")
    def interpreter(script: str, seconds: int = 5) -> str:
        """Run."""
        return script + str(seconds)

    assert isinstance(interpreter, Tool)
    calls = Llama3().parse(f"{TAG}print(1)", {"python": interpreter}).calls
    assert [call.arguments for call in calls] == [{"script": "print(1)"}]


def test_the_rest_is_text(tools: Mapping[str, ToolSpec]) -> None:
    assert Llama3().parse(f"<think>a</think>First.\n{TAG}{CALC}; {REST} then", tools).text == "First.\nthen"
    assert Llama3().parse('{"answer": 72}', tools).text == '{"answer": 72}'


def test_a_turn_is_written_with_one_tag() -> None:
    calls = (ToolCall("calculator", {"expression": "1+1"}), ToolCall("reset"))
    written = Llama3().render_turn(ExpertTurn("First.", calls))
    assert written == f'First.\n{TAG}{CALC}; {{"name": "reset", "parameters": {{}}}}'
