from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trajgym.errors import ConfigError
from trajgym.protocols import get_protocol
from trajgym.protocols.python_block import PythonBlock
from trajgym.types import ToolCall, ToolSpec

BLOCK = PythonBlock()
PRINT = "```python\nprint(1)\n```"


def run(code: str) -> list[Any]:
    return [("python", {"code": code})]


ROWS: list[tuple[str, list[Any], str | None]] = [
    # which blocks count
    (PRINT, run("print(1)"), None),
    ("```py\nx\n```", run("x"), None),
    ("```Python3 \nx\n```", run("x"), None),
    ('``` python title="a"\nx\n```', run("x"), None),
    ("~~~python\nx\n~~~", run("x"), None),
    (f"So: {PRINT}", run("print(1)"), None),
    ("```pythonic\nx\n```", [], None),
    ("```json\n{}\n```", [], None),
    ("```output\n1\n```", [], None),
    ("See ```json\nx\n```", [], None),
    ("I write `python` or ```python print(1)``` here.", [], None),
    (f"```\nx\n```\n{PRINT}", run("print(1)"), None),
    (f"{PRINT}\n#### 1", run("print(1)"), None),
    (f"#### 1\n{PRINT}", run("print(1)"), None),
    (f"{PRINT}\n```python\nopen", run("print(1)"), None),
    # where a block ends
    ("````python\n```\nx\n```\n````", run("```\nx\n```"), None),
    ("```python\nx\n````\n", run("x"), None),
    ("```python\nx\n~~~\n```", run("x\n~~~"), None),
    ("```python\nx  ```\n```", run("x  ```"), None),
    ("```python\nx\n``` \t\r\nmore", run("x"), None),
    ("```python\nx\n```more\n```", run("x\n```more"), None),
    ("```python\n\n  x\n\n```", run("\n  x\n"), None),
    ("- so\n  ```python\n  if 1:\n      x\n y\n  ```", run("if 1:\n    x\ny"), None),
    ("- ```python\n  if 1:\n      x\n  ```", run("if 1:\n    x"), None),
    ("1. ~~~py\n   x\n\n   y\n   ~~~\nz", run("x\n\ny"), None),
    ("-\t```py\n\tif 1:\n\t\tx\n\t```", run("if 1:\n\tx"), None),
    ("1. ```python\nif 1:\n  x\n```\nz", run("if 1:\n  x"), None),
    ('```python\ns = """\n    ```\n"""\n```', run('s = """\n    ```\n"""'), None),
    ("- ```python\n  x\nand so on", [], "truncated_call"),
    (f"> ```python\n> x\n> ```\n{PRINT}", run("print(1)"), None),
    ("- > ```python\n  > x\n  > ```", [], None),
    ("```python", [], "truncated_call"),
    ("```python\nx\n``", [], "truncated_call"),
    ("```python\nprint(1)```", [], "truncated_call"),
    ("```python\nx<|im_end|>\n```", [], "truncated_call"),
    # examples and reasoning
    (f"````md\n{PRINT}\n````", [], None),
    (f"```text\n{PRINT}", [], None),
    (f"<think>\n{PRINT}\n</think>\n```python\nx\n```", run("x"), None),
    (f"<think>{PRINT}</think>```python\nx\n```", run("x"), None),
    (f"{PRINT}</think>\n24", [], None),
    (f"{PRINT}<think>hm</think>{PRINT}", run("print(1)"), None),
    (f"So.</THINK>{PRINT}", run("print(1)"), None),
    (f"<think>`</think>{PRINT}", run("print(1)"), None),
    (f"<think>\n{PRINT}", [], "unclosed_reasoning"),
    (f"{PRINT}\n<think>", run("print(1)"), "unclosed_reasoning"),
    ("```python\nprint('<think>')\n```", [], "unclosed_reasoning"),
    ("```python\nprint('<think>a</think>')\n```", [], "malformed_call"),
    ("```python\nprint('<tool_response>')\n```", run("print('<tool_response>')"), None),
]


@pytest.mark.parametrize(("text", "calls", "error"), ROWS)
def test_rule(read: Callable[..., Any], text: str, calls: list[Any], error: str | None) -> None:
    assert read(BLOCK, text) == (calls, error)


def test_the_block_leaves_the_text(tools: Mapping[str, ToolSpec]) -> None:
    second = "```python\nx\n```"
    assert BLOCK.parse(f"<think>a</think>First\n{PRINT}\nthen\n{second}", tools).text == f"First\n\nthen\n{second}"
    assert BLOCK.parse("First\n```python\nprint(", tools).text == "First"


def test_without_an_interpreter_the_policy_is_told(tools: Mapping[str, ToolSpec]) -> None:
    parsed = BLOCK.parse(PRINT, {"calculator": tools["calculator"]})
    assert parsed.error is not None
    assert (parsed.error.kind, parsed.calls) == ("unknown_tool", ())


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("x", "```python\nx\n```"),
        ("", "```python\n\n```"),
        ("\n", "```python\n\n\n```"),
        ("s = '''\n```\n  `````a\n'''", "``````python\ns = '''\n```\n  `````a\n'''\n``````"),
        ("x = '```'", "```python\nx = '```'\n```"),
    ],
)
def test_render(tools: Mapping[str, ToolSpec], code: str, written: str) -> None:
    call = ToolCall("python", {"code": code}, "call_0")
    assert BLOCK.render(call) == written
    assert BLOCK.parse(written, tools).calls == (call,)


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("calculator", {"expression": "1"}),
        ToolCall("python"),
        ToolCall("python", {"code": 3}),
        ToolCall("python", {"code": "1", "x": "2"}),
        ToolCall("python", {"code": "print('<|im_end|>')"}),
        ToolCall("python", {"code": "print('<think>')"}),
        ToolCall("python", {"code": "print('</think>')"}),
        ToolCall("python", {"code": "'\ud800'"}),
    ],
)
def test_what_it_cannot_carry_is_refused(call: ToolCall) -> None:
    with pytest.raises(ConfigError, match=r"python_block|JSON"):
        BLOCK.render(call)


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("```python\nx\n", False),
        (PRINT, False),  # a longer or a tagged fence may come of it
        (f"{PRINT}\n", True),
        (f"{PRINT}\nThis", False),
        ("```\nx\n```\n", False),
        (f"<think>\n{PRINT}\n", False),
    ],
)
def test_when_nothing_more_has_to_be_written(text: str, finished: bool) -> None:
    assert BLOCK.finished(text) is finished


def test_only_the_interpreter_is_described(tools: Mapping[str, ToolSpec]) -> None:
    assert "python(code: string)" in BLOCK.instructions(tools, "signature")
    assert "lookup" not in BLOCK.instructions(tools)
    assert BLOCK.instructions({"reset": tools["reset"]}) == ""


def test_it_is_registered() -> None:
    assert isinstance(get_protocol("python_block"), PythonBlock)
