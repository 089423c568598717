from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trajgym.errors import ConfigError
from trajgym.protocols.xml_tool import XmlTool
from trajgym.types import ToolCall, ToolSpec


def element(name: str, body: str) -> str:
    return f'<tool name="{name}">{body}</tool>'


def argument(name: str, text: str) -> str:
    return f'<argument name="{name}">{text}</argument>'


CALC, REST = element("calculator", "1+1"), '<tool name="reset"/>'
ROW = '{"table": "t", "row": 3}'

ROWS = [
    # the tag
    (f"I see. {CALC} and {REST}.", ["calculator", "reset"], None),
    ("<tool id='1'\n name = 'reset' ></tool>", ["reset"], None),
    ('<tool name="reset" />', ["reset"], None),
    (element("Calculator", "1"), [], "unknown_tool"),
    (element("calculator ", "1"), [], "unknown_tool"),
    (element("", "1"), [], "empty_name"),
    ('<tool id="reset"/>', [], "bad_call_shape"),
    (f"<tool>1</tool>{REST}", ["reset"], "bad_call_shape"),
    (f"<tool name=calculator>1</tool>{REST}", ["reset"], "malformed_call"),
    ('<tool name="calc', [], "truncated_call"),
    ("I see. <tool", [], "truncated_call"),
    ('<Tool name="reset"/><tools name="reset"/><tool_call name="reset"/>', [], None),
    # text
    (element("reset", "now"), [], "bad_call_shape"),
    (element("python", " \n "), [], "missing_argument"),
    (element("lookup", "t"), [], "missing_argument"),
    ('<tool name="calculator">1', [], "truncated_call"),
    (f'<tool name="calculator">1\n{REST}', ["reset"], "truncated_call"),
    # JSON
    (element("lookup", ROW), ["lookup"], None),
    (element("lookup", f"\n```json\n{ROW}\n```\n"), ["lookup"], None),
    (element("reset", "{}"), ["reset"], None),
    (f'<tool name="lookup">{ROW}', ["lookup"], None),
    (f'<tool name="lookup">{ROW}</to', ["lookup"], None),
    (f'<tool name="lookup">{ROW}\n{REST}', ["lookup", "reset"], None),
    (f'<tool name="lookup">{ROW[:-1]}', [], "truncated_call"),
    (element("lookup", ROW[:-1] + ",}") + REST, ["reset"], "malformed_json"),
    (element("lookup", f"{ROW} so") + REST, ["reset"], "malformed_json"),
    (element("lookup", f"```json\n{ROW}"), [], "malformed_json"),
    (element("lookup", ROW.replace("3", '"3"')), [], "wrong_type"),
    (element("lookup", ROW.replace("row", "table")), [], "duplicate_key"),
    (element("lookup", ROW.replace("}", ', "raw": 3}')), [], "unexpected_argument"),
    (element("calculator", '{"expression": 2}'), [], "wrong_type"),
    # elements
    (element("calculator", argument("expression", "2")), ["calculator"], None),
    (element("lookup", f"\n{argument('table', 't')}\n{argument('row', '3')}\n"), [], "wrong_type"),
    (element("calculator", argument("expression", "2") * 2), [], "duplicate_key"),
    (element("calculator", argument("expression", "2") + " so") + REST, ["reset"], "malformed_call"),
    (element("calculator", '<argument name="expression">2') + REST, ["reset"], "malformed_call"),
    ('<tool name="calculator"><argument name="expression">2', [], "truncated_call"),
    (f'<tool name="calculator">{argument("expression", "2")}', [], "truncated_call"),
    # what does not act
    (f"<think>{CALC}</think>{REST}", ["reset"], None),
    (f'<think>or <tool name="calculator">1 </think>{REST}', ["reset"], None),
    ('or <tool name="calculator">1 </think> so</tool>', [], None),
    (f"<think>{CALC}", [], "unclosed_reasoning"),
    (f"`{CALC}` “{CALC}”", [], None),
    (f"```\n{CALC}\n```\n{REST}", ["reset"], None),
    (f"{CALC}<|im_end|>{REST}", ["calculator"], None),
    (f"{CALC}\n<tool_response>2</tool_response>{REST}", ["calculator"], None),
    (f"{CALC}\nObservation: 2\n{REST}", ["calculator"], None),
    (element("python", "print(1)<|im_end|>"), [], "truncated_call"),
]


@pytest.mark.parametrize(("text", "names", "error"), ROWS)
def test_rule(text: str, names: list[str], error: str | None, read: Callable[..., Any]) -> None:
    calls, kind = read(XmlTool(), text)
    assert ([name for name, _ in calls], kind) == (names, error)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (" print(1) ", "print(1)"),
        ("\n\n  if a < b:\n    x &= 1\n\n", "  if a < b:\n    x &= 1"),
        ('{"a": 1}', '{"a": 1}'),
        ("{'code': 1}", "{'code': 1}"),
        ("{1, 2", "{1, 2"),
        ('{"code": "print(\'</tool>\')"}', "print('</tool>')"),
        ("\n```python\nprint(1)\n```\n", "print(1)"),
        ("x = '`a`'\n```\nObservation: 1", "x = '`a`'\n```\nObservation: 1"),
        ("&lt;", "&lt;"),
        (argument("code", "\n\n  x\n\n"), "\n  x\n"),
        (argument("code", "print('</argument>')"), "print('</argument>')"),
        ("\n<argument name='code'>3</argument>\n", "3"),
    ],
)
def test_the_only_text_argument(body: str, code: str, read: Callable[..., Any]) -> None:
    assert read(XmlTool(), element("python", body)) == ([("python", {"code": code})], None)


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ({}, '<tool name="t"/>'),
        ({"a": "1 < 2 & x"}, '<tool name="t">\n<argument name="a">1 < 2 & x</argument>\n</tool>'),
        (
            {"a": "x\n", "b": "y"},
            '<tool name="t">\n<argument name="a">\nx\n\n</argument>\n<argument name="b">y</argument>\n</tool>',
        ),
        ({"a": "x", "b": 3}, '<tool name="t">{"a": "x", "b": 3}</tool>'),
        ({"a": "</tool>"}, '<tool name="t">{"a": "\\u003c/tool>"}</tool>'),
        ({"a": " "}, '<tool name="t">{"a": " "}</tool>'),
    ],
)
def test_text_is_written_as_it_is_where_it_can_be(arguments: Mapping[str, Any], written: str) -> None:
    assert XmlTool().render(ToolCall("t", arguments)) == written


@pytest.mark.parametrize("name", ['a"b', "a<b", "a&b", "a\nb", "\ud800"])
def test_a_name_that_an_attribute_cannot_carry_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"Rename the tool|cannot be written"):
        XmlTool().render(ToolCall(name))


def test_the_rest_is_text(tools: Mapping[str, ToolSpec]) -> None:
    assert XmlTool().parse(f"<think>a</think> First.\n{CALC}\n{REST} then", tools).text == "First.\n\n then"
