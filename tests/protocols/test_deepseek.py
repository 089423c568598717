from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trajgym.errors import ConfigError
from trajgym.protocols.deepseek import DeepSeek
from trajgym.types import ExpertTurn, ToolCall, ToolSpec

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
OPEN, SEP, CLOSE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def v3(name: str, payload: str) -> str:
    return f"{OPEN}function{SEP}{name}\n```json\n{payload}\n```{CLOSE}"


CALC = v3("calculator", '{"expression": "1+1"}')
REST = v3("reset", "{}")
BAD = v3("calculator", '{"expression": "1+1",}')

ROWS = [
    # V3 and R1
    (f"{BEGIN}{CALC}{END}", ["calculator"], None),
    (f"I see.{BEGIN}{CALC}\n{REST}{END}<｜end▁of▁sentence｜>", ["calculator", "reset"], None),
    (f"{BEGIN}{CALC}{REST}", ["calculator", "reset"], None),
    (f"{BEGIN}{CALC}{END}\n{BEGIN}{REST}{END}", ["calculator", "reset"], None),
    (f"{BEGIN}{OPEN}function{SEP}reset\n{{}}{CLOSE}{END}", ["reset"], None),
    (f"{BEGIN}{OPEN}function{SEP}reset\n{CLOSE}{END}", ["reset"], None),
    # V3.1
    (f"{BEGIN}{OPEN}reset{SEP}{{}}{CLOSE}{OPEN}reset{SEP}{{}}{CLOSE}{END}", ["reset", "reset"], None),
    (f"{BEGIN}{OPEN}reset{SEP}```json\n{{}}\n```{CLOSE}{END}", ["reset"], None),
    (f"{BEGIN}{OPEN}function{SEP}{{}}{CLOSE}{END}", [], "unknown_tool"),
    # where a call ends
    (f"{BEGIN}{OPEN}reset{SEP}{{}}", ["reset"], None),
    (f"{BEGIN}{OPEN}reset{SEP}{{}}<｜tool▁call", ["reset"], None),
    (f"{BEGIN}{OPEN}reset{SEP}{{}}{END}", ["reset"], None),
    (f"{BEGIN}{OPEN}reset{SEP}{{}}\n{CALC}{END}", ["reset", "calculator"], None),
    (f"{BEGIN}{OPEN}reset{SEP}{{}} so{CLOSE}{CALC}{END}", ["calculator"], "malformed_json"),
    (f"{BEGIN}{OPEN}reset{SEP}{{}}}}{CLOSE}{END}", [], "malformed_json"),
    # cut or wrong
    (BEGIN, [], "truncated_call"),
    (f"{BEGIN}<｜tool▁call▁be", [], "truncated_call"),
    (f"{BEGIN}{OPEN}", [], "truncated_call"),
    (f"{BEGIN}{OPEN}func", [], "truncated_call"),
    (f"{BEGIN}{OPEN}function<｜tool▁s", [], "truncated_call"),
    (f"{BEGIN}{OPEN}function{SEP}calc", [], "truncated_call"),
    (f"{BEGIN}{OPEN}reset{SEP}", [], "truncated_call"),
    (f"{BEGIN}{OPEN}reset{SEP}```json\n{{}}", [], "truncated_call"),
    (f'{BEGIN}{CALC}{OPEN}calculator{SEP}{{"expr', ["calculator"], "truncated_call"),
    (f'{BEGIN}{OPEN}calculator{SEP}{{"expr\n{REST}{END}', ["reset"], "truncated_call"),
    (f"{BEGIN}{BAD}{REST}{END}", ["reset"], "malformed_json"),
    (f"{BEGIN}{CALC}\n{BAD}\n{REST}{END}", ["calculator", "reset"], "malformed_json"),
    (f"{BEGIN}{END}", [], "malformed_call"),
    (f"{BEGIN}function{SEP}reset\n```json\n{{}}\n```{END}", [], "malformed_call"),
    (f"{BEGIN}{OPEN}reset{CLOSE}{END}", [], "malformed_call"),
    (f'{BEGIN}{OPEN}python{SEP}{{"code": "</think>{OPEN}reset{SEP}{{}}{CLOSE}"}}{CLOSE}{END}', ["python"], None),
    (f'{BEGIN}{OPEN}python{SEP}{{"code": ""{OPEN}reset{SEP}{{}}{CLOSE}"}}{CLOSE}{END}', [], "malformed_json"),
    # the shape of a call
    (f'{BEGIN}{OPEN}calculator{SEP}"{{\\"expression\\": \\"1\\"}}"{CLOSE}{END}', ["calculator"], None),
    (f"{BEGIN}{v3('reset', 'null')}{END}", ["reset"], None),
    (f"{BEGIN}{v3('reset', '[]')}{CALC}{END}", ["calculator"], "bad_call_shape"),
    (f"{BEGIN}{v3('', '{}')}{END}", [], "unknown_tool"),
    (f"{BEGIN}{OPEN}{SEP}{{}}{CLOSE}{END}", [], "empty_name"),
    (f"{BEGIN}{v3('reset ', '{}')}{REST}{END}", ["reset"], "unknown_tool"),
    (f"{BEGIN}{v3('reset', chr(123) + chr(34) + 'a' + chr(34) + ': 1}')}{END}", [], "unexpected_argument"),
    # what does not act
    (f"{CALC}{END}", [], None),
    (f"<think>{BEGIN}{CALC}{END}</think>{BEGIN}{REST}{END}", ["reset"], None),
    (f"so {BEGIN}{OPEN}calc</think>{BEGIN}{REST}{END}", ["reset"], None),
    (f"so {OPEN}function{SEP}calculator\n```json\n</think>{BEGIN}{CALC}{REST}{END}", ["calculator", "reset"], None),
    (f"<think>{BEGIN}{CALC}{END}", [], "unclosed_reasoning"),
    (f'`{BEGIN}{OPEN}reset{SEP}{{}}{CLOSE}{END}` "{BEGIN}{CALC}{END}"', [], None),
    (f"````\n{BEGIN}{CALC}{END}\n````\n", [], None),
    (f"{BEGIN}{CALC}{END}<｜end▁of▁sentence｜>{BEGIN}{REST}{END}", ["calculator"], None),
    (f"{BEGIN}{CALC}{END}<｜tool▁outputs▁begin｜>2{BEGIN}{REST}{END}", ["calculator"], None),
    (f"{BEGIN}{CALC}{END}<｜User｜>and?<｜Assistant｜>{BEGIN}{REST}{END}", ["calculator"], None),
    (f"{BEGIN}{CALC}{END}\nObservation: 2\n{BEGIN}{REST}{END}", ["calculator"], None),
]


@pytest.mark.parametrize(("text", "names", "error"), ROWS)
def test_rule(text: str, names: list[str], error: str | None, read: Callable[..., Any]) -> None:
    calls, kind = read(DeepSeek(), text)
    assert ([name for name, _ in calls], kind) == (names, error)


def test_the_rest_is_text(tools: Mapping[str, ToolSpec]) -> None:
    assert DeepSeek().parse(f"First. {BEGIN}{CALC}\n{REST}{END} then", tools).text == "First. \n then"


def test_a_turn_is_written_between_one_pair_of_tokens() -> None:
    calls = (ToolCall("calculator", {"expression": "1+1"}), ToolCall("reset"))
    assert DeepSeek().render_turn(ExpertTurn("First.", calls)) == f"First.\n{BEGIN}{CALC}\n{REST}{END}"


@pytest.mark.parametrize("name", ["a\nb", "a`b", "a{b", "</think>", 'a"b', "\ud800"])
def test_a_name_that_the_form_cannot_carry_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"Rename the tool|cannot be written"):
        DeepSeek().render(ToolCall(name))
