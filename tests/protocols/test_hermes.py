from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError
from trajgym.protocols import Parsed, get_protocol
from trajgym.protocols.hermes import Hermes
from trajgym.types import CallError, ExpertTurn, ToolCall

TYPES = {"string": str, "integer": int, "boolean": bool, "array": list}


@dataclass(frozen=True)
class Tool:
    """The least a tool can be: a schema that is followed to the letter."""

    name: str
    properties: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...] = ()
    description: str = "Does something."

    @property
    def parameters(self) -> dict[str, Any]:
        return {"type": "object", "properties": dict(self.properties), "required": list(self.required)}

    def check(self, arguments: Mapping[str, Any]) -> CallError | None:
        for name, value in arguments.items():
            if name not in self.properties:
                return CallError("unexpected_argument", name)
            if not self._fits(value, self.properties[name]):
                return CallError("wrong_type", name)
        missing = [name for name in self.required if name not in arguments]
        return CallError("missing_argument", missing[0]) if missing else None

    def _fits(self, value: Any, schema: Mapping[str, Any]) -> bool:
        if type(value) is not TYPES[schema["type"]]:
            return False
        return not isinstance(value, list) or all(self._fits(item, schema["items"]) for item in value)


STRING, INTEGER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "boolean"))
STRINGS = {"type": "array", "items": STRING}
TOOLS = {
    tool.name: tool
    for tool in (
        Tool("calculator", {"expression": STRING}, ("expression",)),
        Tool("python", {"code": STRING}, ("code",)),
        Tool("lookup", {"table": STRING, "row": INTEGER, "exact": BOOLEAN, "tags": STRINGS}, ("table", "row")),
        Tool("reset", {}),
    )
}

HERMES = Hermes()
RESET = '<tool_call>{"name": "reset"}</tool_call>'
REST = '{"name": "reset"}'


def parse(text: str) -> Parsed:
    return HERMES.parse(text, TOOLS)


def found(text: str) -> tuple[list[str], str | None]:
    """Return the names that were called, and the kind of error."""
    parsed = parse(text)
    return [call.name for call in parsed.calls], parsed.error.kind if parsed.error else None


CALC = '{"name": "calculator", "arguments": {"expression": "1+1"}}'
ROWS = [
    # where a call ends
    (f"<tool_call>{CALC}", ["calculator"], None),
    (f"<tool_call>{CALC}\n  ", ["calculator"], None),
    (f"<tool_call>{CALC}</tool_c", ["calculator"], None),
    (f"<tool_call>{CALC}\n<tool_call>{REST}</tool_call>", ["calculator", "reset"], None),
    (f"<tool_call>{CALC}<|endoftext|>{RESET}", ["calculator"], None),
    (f"<tool_call>{CALC} done</tool_call>{RESET}", ["reset"], "malformed_json"),
    (f"<tool_call>{CALC}}}</tool_call>", [], "malformed_json"),
    (f"<tool_call>{CALC}\n{CALC}</tool_call>", [], "malformed_json"),
    (f"<tool_call>{CALC} and then I go on.", [], "malformed_json"),
    (f"<tool_call>{CALC} and {RESET}", ["reset"], "malformed_json"),
    # cut or wrong
    ("<tool_call>\n  ", [], "truncated_call"),
    ('<tool_call>{"name": "calculator", "arg\n', [], "truncated_call"),
    ('<tool_call>{"name": "lookup", "arguments": {"row": 1', [], "truncated_call"),
    ('<tool_call>{"name": "lookup", "arguments": {"exact": tru', [], "truncated_call"),
    ('<tool_call>{"name": "x\\u00', [], "truncated_call"),
    ('<tool_call>{"name": "calc<|im_end|>\nhe said "hi"}', [], "truncated_call"),
    (f'<tool_call>{{"name": "calc\n{RESET}', ["reset"], "truncated_call"),
    (f"<tool_call>\n{RESET}", ["reset"], "truncated_call"),
    ('<tool_call>{"name": "reset"\n</tool_call>', [], "malformed_json"),
    (f"<tool_call></tool_call>{RESET}", ["reset"], "malformed_json"),
    (f'<tool_call>{{"name": "python", "arguments": {{"code": "{RESET}"}}}}</tool_call>', [], "malformed_json"),
    ('<tool_call>{"name": reset}', [], "malformed_json"),
    # the shape of a call
    ("<tool_call>null</tool_call>", [], "bad_call_shape"),
    ('<tool_call>{"name": 3}</tool_call>', [], "bad_call_shape"),
    ('<tool_call>{"name": "reset", "arguments": []}</tool_call>', [], "bad_call_shape"),
    ('<tool_call>{"name": "reset", "arguments": false}</tool_call>', [], "bad_call_shape"),
    ('<tool_call>{"name": "reset", "arguments": ""}</tool_call>', [], "bad_call_shape"),
    ('<tool_call>{"name": "reset", "arguments": " {} "}</tool_call>', ["reset"], None),
    ('<tool_call>{"name": "reset", "arguments": "{\\"a\\": 1, \\"a\\": 1}"}</tool_call>', [], "duplicate_key"),
    ('<tool_call>{"name": ""}</tool_call>', [], "empty_name"),
    ('<tool_call>{"name": "reset\\n"}</tool_call>', [], "unknown_tool"),
    ('<tool_call>{"name": "reset", "arguments": {"a": 1}}</tool_call>', [], "unexpected_argument"),
    ('<tool_call>{"name": "lookup", "arguments": {"table": "t", "row": 3.0}}</tool_call>', [], "wrong_type"),
    ('<tool_call>{"name": "lookup", "arguments": {"table": "t", "row": true}}</tool_call>', [], "wrong_type"),
    # content that JSON spells but no tool takes
    ('<tool_call>{"name": "reset", "x": Infinity}</tool_call>', [], "non_finite_number"),
    ('<tool_call>{"name": "reset", "x": -Infinity}</tool_call>', [], "non_finite_number"),
    ('<tool_call>{"name": "reset", "x": "\\ud83d"}</tool_call>', [], "bad_unicode"),
    ('<tool_call>{"name": "reset", "x": "\udc00"}</tool_call>', [], "bad_unicode"),
    ('<tool_call>{"name": "reset", "x": "\\ud83d\\ude00"}</tool_call>', ["reset"], None),
    ('<tool_call>{"name": "reset", "x": ' + "[" * 63 + "]" * 63 + "}</tool_call>", ["reset"], None),
    ('<tool_call>{"name": "reset", "x": ' + "[" * 100_000, [], "too_deep"),
    ('<tool_call>{"name": "reset", "x": ' + "9" * 4301 + "}</tool_call>", [], "number_too_large"),
    ('<tool_call>{"name": "reset", "x": ' + "9" * 4300 + "}</tool_call>", ["reset"], None),
    ('<tool_call>{"name": "reset", "x": 01}</tool_call>', [], "malformed_json"),
    # reasoning
    (f"<thinking>{RESET}</thinking>\n<tool_call>{CALC}</tool_call>", ["calculator"], None),
    (f"{RESET}<think>and now", ["reset"], "unclosed_reasoning"),
    (f'I try <tool_call>{{"a</think>{RESET}', ["reset"], None),
    (f"```\nopen fence</think>{RESET}", ["reset"], None),
    (f"<think>a</think>{RESET}<think>b</think>{RESET}", ["reset", "reset"], None),
    ('<tool_call>{"name": "python", "arguments": {"code": "</think><think>"}}</tool_call>', ["python"], None),
    (f"<think>a<|im_end|></think>{RESET}", [], "unclosed_reasoning"),
    (f"I do not write `<think>`. {RESET}", ["reset"], None),
    (f"<THINK>{RESET}</THINK>", [], None),
    (f"<Think>{RESET}", [], "unclosed_reasoning"),
    (f"{RESET}</THINKING>{RESET}", ["reset"], None),
    (f"<think>a</think>```\n{RESET}\n```<think>b</think>{RESET}", ["reset"], None),
    (f'<tool_call>{{"name": "calc\n<think>a</think>{RESET}', ["reset"], "malformed_json"),
    (f'<think><tool_call>"</think>{RESET}', ["reset"], None),
    # examples
    (f"- ```json\n  {RESET}\n  ```\n{RESET}", ["reset"], None),
    (f"1. ~~~\n   {RESET}\n   ~~~", [], None),
    (f"> ```\n> {RESET}\n> ```\n{RESET}", ["reset"], None),
    (f"> ```\n> {RESET}\n\n{RESET}", ["reset"], None),
    (f"- a\n  - ```\n    {RESET}\n    ```\n{RESET}", ["reset"], None),
    (f"- ```\n  <think>a</think> {RESET}\n  ```\n{RESET}", ["reset"], None),
    (f"For example `{RESET}`.", [], None),
    (f"For example ``{RESET}``, then {RESET}", ["reset"], None),
    (f'Write "{RESET}" or “{RESET}”.', [], None),
    ("`<tool_call>\n" + REST + "\n</tool_call>`", [], None),
    (f"~~~\n{RESET}\n~~~\n{RESET}", ["reset"], None),
    (f"````md\n```\n{RESET}\n```\n{RESET}\n````", [], None),
    (f"```text\n{RESET}", [], None),
    (f"A `lone backtick\n{RESET}\nand `another", ["reset"], None),
    ('5` <tool_call>{"name": "python", "arguments": {"code": "a`b"}}</tool_call>', ["python"], None),
    ("Use the `<tool_call>` tag.", [], None),
    ('<tool_call>\n```\n{"name": "reset"}\n```</tool_call>', ["reset"], None),
    ('<tool_call>```json\n{"name": "reset"}\n</tool_call>', [], "malformed_json"),
    # the turn's end
    (f"{RESET}\n<tool_response>\n1\n</tool_response>\n{RESET}", ["reset"], None),
    (f"{RESET}\nObservation: 1\n{RESET}", ["reset"], None),
    (f"Observation: it is even.\n{RESET}", ["reset"], None),
    (f"{RESET}</s>{RESET}", ["reset"], None),
    ('<tool_call>{"name": "python", "arguments": {"code": "print(\'</s><|im_end|>\')"}}</tool_call>', ["python"], None),
    (f"<think><tool_response>1</tool_response></think>{RESET}", ["reset"], None),
    # order
    (f'<tool_call>{{"name": "no"}}</tool_call>{RESET}<tool_call>{{"name": ""}}</tool_call>', ["reset"], "unknown_tool"),
]


@pytest.mark.parametrize(("text", "names", "error"), ROWS)
def test_rule(text: str, names: list[str], error: str | None) -> None:
    assert found(text) == (names, error)


def test_calls_are_numbered_and_leave_the_text() -> None:
    parsed = parse(f"<think>a {RESET}</think> First\n{RESET}\nthen <tool_call>{CALC}</tool_call> end.<|im_end|>x")
    assert parsed.calls == (ToolCall("reset", {}, "call_0"), ToolCall("calculator", {"expression": "1+1"}, "call_1"))
    assert parsed.text == "First\n\nthen  end."


def test_examples_and_the_words_behind_an_unclosed_call_stay_in_the_text() -> None:
    assert parse(f"Like ```{RESET}```.").text == f"Like ```{RESET}```."
    assert parse(f"<tool_call>{CALC} so 24").text == "so 24"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('<tool_call>{"name": "calculater"}</tool_call>', ["'calculater'", "Did you mean 'calculator'?", "lookup"]),
        ('<tool_call>{"name": "reset",}</tool_call>', ["a key in double quotes", "'}"]),
        ('<tool_call>{"name": "python", "arguments": "x=1"}</tool_call>', ['"arguments"', "Write {"]),
        ('<tool_call>{"name": "res', ["cut off", "whole call"]),
        ("<think>hm", ["</think>"]),
    ],
)
def test_errors_tell_the_policy_what_to_change(text: str, words: list[str]) -> None:
    error = parse(text).error
    assert error is not None
    assert [word for word in words if word not in error.message] == []
    assert len(error.message) < 300


def test_render_writes_the_canonical_form() -> None:
    rendered = HERMES.render(ToolCall("calculator", {"expression": "48/2"}))
    assert rendered == '<tool_call>\n{"name": "calculator", "arguments": {"expression": "48/2"}}\n</tool_call>'
    assert "if a < b: x[0] × y" in HERMES.render(ToolCall("python", {"code": "if a < b: x[0] × y"}))


@pytest.mark.parametrize(
    "token", ["</tool_call>", "<tool_call>", "<think>", "<|im_end|>", "</s>", "[TOOL_CALLS]", "<｜a｜>"]
)
def test_no_control_token_survives_in_an_argument(token: str) -> None:
    call = ToolCall("python", {"code": f"a\n```\n{token}"}, "call_0")
    rendered = HERMES.render(call)
    assert token not in rendered.removeprefix("<tool_call>").removesuffix("</tool_call>")
    assert parse(rendered).calls == (call,)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {1, 2}, object()])
def test_render_refuses_what_json_cannot_spell(value: Any) -> None:
    with pytest.raises(ConfigError, match="JSON"):
        HERMES.render(ToolCall("python", {"code": value}))


TAGS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "<|im_end|>", "\nObservation:"]
SIGNS = ["`", "```", "\n", *'"\\{}[]:,a“', REST, CALC, "\x00", "\ud800", "1e", "nul"]
MARKUP = st.sampled_from([*TAGS, *SIGNS])
TEXTS = st.one_of(st.text(), st.lists(MARKUP, max_size=25).map("".join))
CLEAN = st.lists(MARKUP, max_size=9).map(lambda parts: "".join(parts).replace("\ud800", "")) | st.text()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | CLEAN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(CLEAN, inner, max_size=4),
    max_leaves=12,
)


class Anything(Tool):
    def check(self, arguments: Mapping[str, Any]) -> CallError | None:
        return None


@given(st.dictionaries(CLEAN, VALUES, max_size=4), CLEAN.filter(str.strip))
def test_what_is_rendered_is_read_back(arguments: dict[str, Any], name: str) -> None:
    call = ToolCall(name, arguments, "call_0")
    parsed = HERMES.parse(HERMES.render_turn(ExpertTurn("Let me see.", (call,))), {name: Anything(name, {})})
    assert parsed == Parsed("Let me see.", (call,))


@given(TEXTS)
def test_never_raises(text: str) -> None:
    parsed = parse(text)
    assert all(call.name in TOOLS and TOOLS[call.name].check(call.arguments) is None for call in parsed.calls)
    assert parsed == parse(text)


@given(TEXTS)
def test_nothing_behind_the_end_of_the_turn_matters(text: str) -> None:
    assert parse(f"{RESET}<|im_end|>{text}") == parse(RESET)


@given(st.lists(MARKUP, max_size=25).map("".join).filter(lambda text: "<tool_call>" not in text))
def test_without_an_opening_tag_there_is_no_call(text: str) -> None:
    parsed = parse(text)
    assert parsed.calls == ()
    assert parsed.error is None or parsed.error.kind == "unclosed_reasoning"


HOSTILE = [
    "<tool_call>" * 4000,
    "<tool_call>\n" * 4000,
    "<tool_call>[" * 4000,
    '<tool_call>"\n' * 4000,
    '<tool_call>{"a' * 4000,
    '<tool_call>{"a": "' + "\\u0041" * 6000,
    RESET * 2000,
    "<think>" * 6000,
    "</think>" * 5000,
    "`" * 40_000,
    "` `` " * 9000,
    "".join("`" * n + " " for n in range(280)),
    "```\n" * 9000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:18])
def test_long_hostile_text_is_read_in_linear_time(text: str) -> None:
    def seconds(text: str) -> float:
        start = time.thread_time()
        parse(text)
        return max(time.thread_time() - start, 1e-4)

    # Twice the text takes four times as long where the time grows as its square. Noise may look like it, once.
    assert any(seconds(2 * text) < 3 * seconds(text) for _ in range(5))


def test_instructions_in_both_styles() -> None:
    schema = HERMES.instructions(TOOLS)
    lines = schema.split("<tools>\n")[1].split("\n</tools>")[0].split("\n")
    assert [json.loads(line)["function"]["name"] for line in lines] == list(TOOLS)
    assert json.loads(lines[0])["function"]["parameters"] == TOOLS["calculator"].parameters
    assert "</tool_call>" in schema

    short = HERMES.instructions(TOOLS, "signature").split("\n")
    assert short[1] == "calculator(expression: string)"
    assert short[3] == "lookup(table: string, row: integer, exact?: boolean, tags?: array of string)"
    assert short[4] == "reset()"
    assert found(short[-1]) == (["calculator"], None)
    assert HERMES.instructions({}) == ""
    with pytest.raises(ConfigError, match="Did you mean 'schema'"):
        HERMES.instructions(TOOLS, "shema")


def test_it_is_registered() -> None:
    assert isinstance(get_protocol("hermes"), Hermes)
