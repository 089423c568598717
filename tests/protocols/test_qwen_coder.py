from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trajgym.errors import ConfigError
from trajgym.protocols.qwen_coder import QwenCoder
from trajgym.types import CallError, ToolCall, ToolSpec


def call(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


CALC, REST = call("calculator", expression="1+1"), call("reset")

ROWS = [
    # where a call ends
    (CALC, ["calculator"], None),
    (f"I see.\n\n{CALC}\n{REST}<|im_end|>", ["calculator", "reset"], None),
    (CALC.replace("\n", ""), ["calculator"], None),
    (CALC.removesuffix("</tool_call>"), ["calculator"], None),
    (CALC.removesuffix("_call>"), ["calculator"], None),
    (CALC.removesuffix("</tool_call>") + REST, ["calculator", "reset"], None),
    (CALC.replace("\n</tool_call>", " so</tool_call>") + REST, ["reset"], "malformed_call"),
    # cut or wrong
    ("<tool_call>\n", [], "truncated_call"),
    ("<tool_call>\n<func", [], "truncated_call"),
    ("<tool_call>\n<function=calc", [], "truncated_call"),
    (CALC[: CALC.index("expression")], [], "truncated_call"),
    (CALC[: CALC.index("</function>")], [], "truncated_call"),
    (CALC[: CALC.index("</function>") + 5], [], "truncated_call"),
    (CALC[: CALC.index("</parameter>")] + REST, ["reset"], "truncated_call"),
    (f"<tool_call>\n{CALC}", ["calculator"], "truncated_call"),
    (CALC.replace("</parameter>\n", "") + REST, ["reset"], "malformed_call"),
    (CALC.replace("</function>\n", "") + REST, ["reset"], "malformed_call"),
    (CALC.replace("<parameter=", "so <parameter="), [], "malformed_call"),
    ('<tool_call>\n{"name": "reset"}\n</tool_call>', [], "malformed_call"),
    ("<tool_call></tool_call>", [], "malformed_call"),
    # names and arguments
    (call("Reset"), [], "unknown_tool"),
    (call("reset "), [], "unknown_tool"),
    (call(""), [], "empty_name"),
    (call("reset", a="1"), [], "unexpected_argument"),
    (call("lookup", table="t"), [], "missing_argument"),
    (CALC.replace("</function>", "<parameter=expression>2</parameter></function>"), [], "duplicate_key"),
    (call("nope") + CALC, ["calculator"], "unknown_tool"),
    (call("lookup", table="t", row="3.0"), [], "wrong_type"),
    (call("lookup", table="t", row='"3"'), [], "wrong_type"),
    (call("lookup", table="t", row=""), [], "wrong_type"),
    (call("lookup", table="t", row="true"), [], "wrong_type"),
    (call("lookup", table="t", row="3", exact="yes"), [], "wrong_type"),
    (call("lookup", table="t", row="3", tags="['a']"), [], "wrong_type"),
    (call("lookup", table="t", row="3", tags='["a", 1]'), [], "wrong_type"),
    (call("lookup", table="t", row="3", tags='["a"'), [], "wrong_type"),
    (call("lookup", table="t", row="9" * 5000), [], "number_too_large"),
    (call("lookup", table="t", row="NaN"), [], "non_finite_number"),
    (call("lookup", table="t", row="3", tags="[" * 100), [], "too_deep"),
    # what does not act
    (CALC.replace("<tool_call>\n", ""), [], None),
    (f"<think>{CALC}</think>{REST}", ["reset"], None),
    (f"<think>I try <tool_call><function=python><parameter=code> so</think>{REST}", ["reset"], None),
    (f"I try <tool_call><function=python><parameter=code> so</think>{REST}", ["reset"], None),
    (f"<think>{CALC}", [], "unclosed_reasoning"),
    (
        f"Write <tool_call>\n<function=python>\n<parameter=code>\n</think></parameter></function> {REST}",
        ["reset"],
        None,
    ),
    (f"`{CALC}`".replace("\n", ""), [], None),
    (f'"{CALC}"', [], None),
    (f"```xml\n{CALC}\n```\n{REST}", ["reset"], None),
    (f"{CALC}<|im_end|>{REST}", ["calculator"], None),
    (f"{CALC}\n<tool_response>2</tool_response>{REST}", ["calculator"], None),
    (f"{CALC}\nObservation: 2\n{REST}", ["calculator"], None),
    (call("python", code="print(1)<|im_end|>\n<|im_start|>user"), [], "truncated_call"),
]


@pytest.mark.parametrize(("text", "names", "error"), ROWS)
def test_rule(text: str, names: list[str], error: str | None, read: Callable[..., Any]) -> None:
    calls, kind = read(QwenCoder(), text)
    assert ([name for name, _ in calls], kind) == (names, error)


@pytest.mark.parametrize(
    "code",
    [
        "",
        "\n",
        " \n  x\n\n",
        "3",
        "null",
        "if a < b and b > c:\n\tprint('x & y')",
        "print('</parameter>', '</function>', '</tool_call>')",
        "s = '<tool_call>{}</tool_call>'\n```\n`x`\nObservation: 1\n<tool_response>",
        "# `<think>` is a tag",
    ],
)
def test_text_stands_as_it_is(code: str, read: Callable[..., Any]) -> None:
    expected = [("python", {"code": code})], None
    assert read(QwenCoder(), QwenCoder().render(ToolCall("python", {"code": code}))) == expected
    assert read(QwenCoder(), call("python", code=code)) == expected


def test_other_values_are_json(read: Callable[..., Any]) -> None:
    expected = [("lookup", {"table": "3", "row": 3, "exact": True, "tags": ["a", "<b>"]})], None
    assert read(QwenCoder(), call("lookup", table="3", row=" 3 ", exact="true", tags='["a", "<b>"]')) == expected
    # As the model's own template writes a boolean.
    assert read(QwenCoder(), call("lookup", table="3", row="3", exact="True", tags='["a",\n"<b>"]')) == expected


class Choose:
    """A tool that takes anything; its schema has what schemas have."""

    name = "choose"
    description = ""
    parameters: Mapping[str, Any] = {
        "properties": {
            "text": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "either": {"type": ["integer", "string"]},
            "number": {"type": "number"},
            "level": {"enum": ["1", "2"]},
            "flag": {"$ref": "#/$defs/Flag"},
            "tree": {"$ref": "#/$defs/Tree"},
            "anything": {},
        },
        "$defs": {"Flag": {"const": True}, "Tree": {"anyOf": [{"$ref": "#/$defs/Tree"}]}},
    }

    def check(self, arguments: Mapping[str, Any]) -> CallError | None:
        return None


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("text", "null", None),
        ("text", "None", None),
        ("text", "3", "3"),
        ("text", '"a"', '"a"'),
        ("either", "3", 3),
        ("either", "three", "three"),
        ("either", "[1]", "[1]"),
        ("number", "1e3", 1000.0),
        ("level", "2", "2"),
        ("flag", "True", True),
        ("tree", "[1]", [1]),
        ("anything", '{"a": [1]}', {"a": [1]}),
        ("anything", "so", "so"),
        ("unheard_of", "3", "3"),
    ],
)
def test_the_schema_says_what_a_text_stands_for(key: str, written: str, value: Any) -> None:
    parsed = QwenCoder().parse(call("choose", **{key: written}), {"choose": Choose()})
    assert [dict(one.arguments) for one in parsed.calls] == [{key: value}]
    assert type(parsed.calls[0].arguments[key]) is type(value)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("a\nb", {}),
        ("a>b", {}),
        ("python", {"a<b": "x"}),
        ("python", {"code": "</parameter>\n</function>"}),
        ("python", {"code": "</parameter><parameter=x>"}),
        ("python", {"code": "<tool_call>\n<function=reset>"}),
        ("python", {"code": "a</think>b"}),
        ("python", {"code": "print('<|im_end|>')"}),
        ("python", {"code": "\ud800"}),
        ("python", {"code": float("nan")}),
    ],
)
def test_what_the_form_cannot_carry_is_refused(name: str, arguments: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"Choose another protocol|JSON values"):
        QwenCoder().render(ToolCall(name, arguments))


def test_it_is_written_as_the_template_does() -> None:
    written = QwenCoder().render(ToolCall("lookup", {"table": "t", "row": 3, "exact": True}))
    assert written == call("lookup", table="t", row="3", exact="true")


def test_the_rest_is_text(tools: Mapping[str, ToolSpec]) -> None:
    assert QwenCoder().parse(f"<think>a</think> First.\n{CALC}\n{REST} then", tools).text == "First.\n\n then"
