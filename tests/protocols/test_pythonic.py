from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trajgym.errors import ConfigError
from trajgym.protocols import get_protocol
from trajgym.protocols.python_calls import MAX_CHARACTERS, read_call
from trajgym.protocols.pythonic import Pythonic
from trajgym.types import CallError, ExpertTurn, ToolCall, ToolSpec

PYTHONIC = Pythonic()
HALF = ("calculator", {"expression": "48/2"})
RESET = ("reset", {})


def run(code: str) -> list[Any]:
    return [("python", {"code": code})]


ROWS: list[tuple[str, list[Any], str | None]] = [
    # where a list counts
    ("I halve it.\n[calculator(expression='48/2')]\n", [HALF], None),
    ("[reset()]\nand\n[calculator(expression='48/2')]", [RESET, HALF], None),
    ("<|python_start|>[reset()]<|python_end|>", [RESET], None),
    ("[\n  reset(\n  ),\n  reset\n  (),\n]", [RESET, RESET], None),
    ("[reset()]<|im_end|>[reset()]", [RESET], None),
    ("[reset()]\nObservation: done\n[reset()]", [RESET], None),
    ("Then [reset()]", [], None),
    ('"[reset()]"', [], None),
    ("[1, 2]\n[x](y)\n[]\n[reset]", [], None),
    ("reset()", [], None),
    ("[reset()] does it.", [], "malformed_call"),
    ("[reset()][reset()]\n[reset()]", [RESET], "malformed_call"),
    # siblings
    ("[calculator(expression='48/2'), nope(), reset()]", [HALF, RESET], "unknown_tool"),
    ("[calculator(expression='48/2'), 5, reset()]", [HALF, RESET], "bad_call_shape"),
    ("[calculator(expression=), reset()]", [RESET], "malformed_call"),
    ("[reset(),, reset()]", [RESET, RESET], "malformed_call"),
    # cut or wrong
    ("[calculator(expression='48/2')", [HALF], None),
    ("[calculator(expression='48/2'), ", [HALF], "truncated_call"),
    ("[calculator(expression='48/2'), res", [HALF], "truncated_call"),
    ("[calculator(expression='48/2'", [], "truncated_call"),
    ("[calculator(expression='48/", [], "truncated_call"),
    ("[python(code='''a\nb", [], "truncated_call"),
    ("[python(code='a\nb')]\n[reset()]", [RESET], "malformed_call"),
    ("[python(code='a'\n[reset()]", [RESET], "truncated_call"),
    ("[python(code='a'}]\n[reset()]", [RESET], "malformed_call"),
    ("[reset(x=" + "[" * 100_000, [], "too_deep"),
    ("[reset(x=" + "[" * 62 + "]" * 62 + ")]", [], "unexpected_argument"),
    ("[reset() reset()]", [], "malformed_call"),
    # names
    ("[Reset()]", [], "unknown_tool"),
    ("[functions.reset()]", [], "unknown_tool"),
    # literals
    ("[lookup(table='t', row=-3, exact=False, tags=['a', \"b\",])]", None, None),
    ("[lookup(table='t', row=1_000)]", [("lookup", {"table": "t", "row": 1000})], None),
    ("[lookup(table='t', row=3.0)]", [], "wrong_type"),
    ("[lookup(table='t', row=True)]", [], "wrong_type"),
    ("[lookup(table='t', row='3')]", [], "wrong_type"),
    ("[lookup(table='t', row=3, exact=true)]", [], "malformed_call"),
    ("[lookup(table='t', row=3, exact=None)]", [], "wrong_type"),
    ("[lookup(table='t', row=3, tags=('a',))]", [], "malformed_call"),
    ("[lookup(table='t', row=3, tags={'a'})]", [], "malformed_call"),
    ("[lookup(table='t', row=3, tags={'a': 1})]", [], "wrong_type"),
    ("[lookup(table='t', row=3, tags={'a': 1, 'a': 1})]", [], "duplicate_key"),
    ("[lookup(table='t', row=3, tags={1: 1})]", [], "malformed_call"),
    ("[lookup(table='t', row=3, row=4)]", [], "duplicate_key"),
    ("[lookup(table='t', row=1e999)]", [], "non_finite_number"),
    ("[lookup(table='t', row=-1e999)]", [], "non_finite_number"),
    (f"[lookup(table='t', row={'9' * 4301})]", [], "number_too_large"),
    (f"[lookup(table='t', row={'9' * 4000})]", [("lookup", {"table": "t", "row": 10**4000 - 1})], None),
    ("[lookup(table='t', row=0x10)]", [], "malformed_call"),
    ("[lookup(table='t', row=07)]", [], "malformed_call"),
    ("[lookup(table='t', row=1j)]", [], "malformed_call"),
    ("[lookup(table='t', row=--1)]", [], "malformed_call"),
    ("[lookup(table='t', row=-True)]", [], "malformed_call"),
    ("[lookup(table='t', row=3-1)]", [], "malformed_call"),
    ("[lookup(table='t', row=1if True else 2)]", [], "malformed_call"),
    ("[calculator(expression=48/2)]", [], "malformed_call"),
    ("[calculator('48/2')]", [], "malformed_call"),
    ("[calculator(*['48/2'])]", [], "malformed_call"),
    ("[calculator(**{'expression': '48/2'})]", [], "malformed_call"),
    ("[calculator(expression=__import__('os').getpid())]", [], "malformed_call"),
    ("[calculator(expression=calculator(expression='1'))]", [], "malformed_call"),
    ("[calculator(expression=(x:='1'))]", [], "malformed_call"),
    ("[calculator(expression=lambda: 1)]", [], "malformed_call"),
    ("[calculator(expression=[x for x in 'ab'])]", [], "malformed_call"),
    ("[calculator(expression='48/2') # half\n]", [], "malformed_call"),
    # strings
    (r"[python(code='it\'s \"a\"\n\x41\u00e9\N{BULLET}\101')]", run('it\'s "a"\nAé•A'), None),
    ("[python(code='''a\n\"b\" ''c''''' 'd' \"e\")]", None, None),
    ("[python(code='')]", run(""), None),
    (r"[python(code='re.findall(\'\d+\', s)')]", run(r"re.findall('\d+', s)"), None),
    (r"[python(code=r'\d\n')]", run(r"\d\n"), None),
    (r"[python(code='\777')]", [], "malformed_call"),
    (r"[python(code='\x4')]", [], "malformed_call"),
    ("[python(code=f'{1}')]", [], "malformed_call"),
    ("[python(code=b'a')]", [], "malformed_call"),
    (r"[python(code='\ud83d')]", [], "bad_unicode"),
    ("[python(code='\ud83d')]", [], "bad_unicode"),
    ("[python(code='\x00')]", [], "malformed_call"),
    ("[python(code='[reset()]\\n)]')]", run("[reset()]\n)]"), None),
    ("[python(code='</think><|im_end|>```')]", run("</think><|im_end|>```"), None),
    # examples and reasoning
    ("```\n[reset()]\n```\n`[reset()]`", [], None),
    ("<think>\n[reset()]\n</think>\n[calculator(expression='48/2')]", [HALF], None),
    ("[reset()]\n</think>", [], None),
    ("<think>[python(code='''open</think>\n[reset()]", [RESET], None),
    ("<think>hm</think>[reset()]", [RESET], None),
    ("hm</THINK> [reset()]", [RESET], None),
    ("[reset()]<think>hm</think>", [RESET], None),
    ("[reset()] <think>hm</think>[calculator(expression='48/2')]", [RESET, HALF], None),
    ("<think>hm</think>[python(code='</think>```')]", run("</think>```"), None),
    ("- ```\n  [reset()]\n  ```\n> ~~~\n> [reset()]\n> ~~~", [], None),
    ("<think>\n[reset()]", [], "unclosed_reasoning"),
]
WHOLE = {
    "[lookup(": [("lookup", {"table": "t", "row": -3, "exact": False, "tags": ["a", "b"]})],
    "[python(": run("a\n\"b\" ''cde"),
}


@pytest.mark.parametrize(("text", "calls", "error"), ROWS, ids=lambda value: str(value)[:50])
def test_rule(read: Callable[..., Any], text: str, calls: list[Any] | None, error: str | None) -> None:
    expected = WHOLE[text[:8]] if calls is None else calls
    assert read(PYTHONIC, text) == (expected, error)


def test_calls_leave_the_text(tools: Mapping[str, ToolSpec]) -> None:
    parsed = PYTHONIC.parse("<think>a</think> First\n[reset()]\nthen\n[reset()]<|im_end|>x", tools)
    assert parsed.text == "First\n\nthen"
    assert [call.id for call in parsed.calls] == ["call_0", "call_1"]


def test_render() -> None:
    values = {"a": 'it\'s "x"\n<|im_end|>', "b": [1, -2.5, None, True], "c": {"d": "é"}}
    written = PYTHONIC.render(ToolCall("f", values))
    assert written == r"""[f(a="it's \"x\"\n\u003c|im_end|>", b=[1, -2.5, None, True], c={"d": "é"})]"""
    calls = (ToolCall("f", {"x": 1}), ToolCall("g"))
    assert PYTHONIC.render_turn(ExpertTurn("Both.", calls)) == "Both.\n[f(x=1), g()]"


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("f g"),
        ToolCall("class"),
        ToolCall("f", {"class": 1}),
        ToolCall("f", {"a b": 1}),
        ToolCall("f", {"a=1, b": 2}),
        ToolCall("f", {"ﬁ": 1}),  # Python would read it as fi
        ToolCall("f", {"x": {1: 2}}),
        ToolCall("f", {"x": float("nan")}),
        ToolCall("f", {"x": "\ud800"}),
        ToolCall("f", {"x": 10**5000}),
        ToolCall("f", {"x": "a" * MAX_CHARACTERS}),
    ],
)
def test_what_it_cannot_carry_is_refused(call: ToolCall) -> None:
    with pytest.raises(ConfigError, match=r"pythonic|JSON"):
        PYTHONIC.render(call)


def test_nothing_is_evaluated_and_nobody_is_warned(tools: Mapping[str, ToolSpec]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for text in (r"f(x='\d\400')", "f(x=1or 2)", "f(x=0_x)", "'a'(x=1)", "f(x=1 is 1)", "1(x=2)", "f(x=10l)"):
            assert isinstance(read_call(text, tools), CallError)


def test_a_large_call_is_an_error_and_not_a_crash(tools: Mapping[str, ToolSpec]) -> None:
    for body in ("1, " * 200_000, "-" * 90_000 + "1", "(" * 90_000, "1" + "-1" * 45_000, "a." * 45_000 + "a"):
        error = read_call(f"reset(x=[{body}])", tools)
        assert isinstance(error, CallError)
        assert error.kind == "malformed_call"
        assert len(error.message) < 300


def test_it_is_registered() -> None:
    assert isinstance(get_protocol("pythonic"), Pythonic)
