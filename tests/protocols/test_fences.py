from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from trajgym.protocols import PROTOCOLS, Protocol, SingleCall
from trajgym.protocols.fences import fenced_blocks
from trajgym.types import ToolCall, ToolSpec

# What stands in front of the opening fence, of each further line, and of the closing fence.
CONTAINERS = [
    ("", "", ""),
    ("- ", "  ", "  "),
    ("* ", "  ", "  "),
    ("1. ", "   ", "   "),
    ("10) ", "    ", "    "),
    ("-\t", "\t", "\t"),
    ("- + ", "    ", "    "),
    ("> ", "> ", "> "),
    (">", ">", ">"),
    ("> > ", "> > ", "> >"),
    ("> - ", ">   ", ">   "),
    ("- > ", "  > ", "  > "),
    ("  - ", "    ", "    "),
    ("- ", "  ", "     "),
]
# Not indented as it should be, but what is meant is clear.
CARELESS = [("1. ", "  ", "  "), ("1. ", "", ""), ("- ", "  ", "")]
# Without those in which the fence of a call would close or end the block.
EXAMPLES = [
    pytest.param(protocol, *container, fence, id=f"{name} {container[0]}{fence}")
    for name, protocol in PROTOCOLS.items()
    for container in CONTAINERS + CARELESS
    for fence in ("```", "~~~", "`````")
    if name != "python_block" or (fence != "```" and container not in CARELESS)
]


def a_call(protocol: Protocol) -> ToolCall:
    if isinstance(protocol, SingleCall) and protocol.only_tool == "python":
        return ToolCall("python", {"code": "7"})
    return ToolCall("calculator", {"expression": "7"})


@pytest.mark.parametrize(("protocol", "first", "further", "last", "fence"), EXAMPLES)
def test_an_example_does_not_run_and_hides_nothing_behind_it(
    protocol: Protocol, tools: Mapping[str, ToolSpec], first: str, further: str, last: str, fence: str
) -> None:
    call = a_call(protocol)
    shown = "\n".join(further + line for line in ["So:", *protocol.render(call).split("\n")])
    example = f"See.\n{first}{fence}json\n{shown}\n{last}{fence}"
    assert protocol.parse(example, tools).calls == ()
    turn = f"{example}\n{protocol.render(call)}"
    assert [(one.name, one.arguments) for one in protocol.parse(turn, tools).calls] == [(call.name, call.arguments)]


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("```\na\n```\nb", ["```\na\n```"]),
        ("```\na\n```b\n~~~\n````\nc", ["```\na\n```b\n~~~\n````"]),
        ("~~~ a`b\n~~~", ["~~~ a`b\n~~~"]),
        ("``` a`b\n", []),
        ("x ```\n", []),
        ("a\n```\nb", ["```\nb"]),
        ("```\n    ```\n   ```\nb", ["```\n    ```\n   ```"]),
        ("    ```\n       ```\nb", ["```\n       ```"]),
        # the end of what a block stands in
        ("> ```\n> a\nb\n```\nc", ["```\n> a", "```\nc"]),
        ("> ```\na\n```\nc", ["```", "```\nc"]),
        ("> ```\n> a\n\nb", ["```\n> a"]),
        ("- ```\n  a\n\n  b\nc", ["```\n  a\n\n  b"]),
        ("- ```\n  a\nb\n```json\nc\n```", ["```\n  a", "```json\nc\n```"]),
        ("- ```\n  a\n- ```\n  b\n  ```\nc", ["```\n  a", "```\n  b\n  ```"]),
        ("> - ```\n>   a\n> b", ["```\n>   a"]),
        # careless lists
        ("1. ```\n  a\n```\nb", ["```\n  a\n```"]),
        ("- ```\na\n~~~\nb", ["```", "~~~\nb"]),
        # no marks
        ("-```\n+1 ```\n1.```\n1234567890. ```", []),
        # what is hidden belongs wherever it is
        ("- ```\n  a\n\0\0\n b\n  ```\nc", ["```\n  a\n\0\0\n b\n  ```"]),
        ("> ```\n\0\0\n> ```\nc", ["```\n\0\0\n> ```"]),
    ],
)
def test_blocks(text: str, blocks: list[str]) -> None:
    assert [text[block.start : block.end] for block in fenced_blocks(text)] == blocks


@pytest.mark.parametrize(
    ("text", "info", "content", "closed", "quoted"),
    [
        ("``` py a \nx\n```", "py a", "x", True, False),
        ("```\n```", "", "", True, False),
        ("```", "", "", False, False),
        ("```\nx\n", "", "x\n", False, False),
        ("  ```\n   x\n y\n  ```", "", " x\ny", True, False),
        ("- ```\n    x\n\n  y\n  ```", "", "  x\n\ny", True, False),
        ("-\t```\n\t\tx\n\t```", "", "\tx", True, False),
        ("1. ```\n  x\n```", "", "  x", True, False),
        ("> ```\n> x\n> ```", "", "> x", True, True),
    ],
)
def test_what_a_block_holds(text: str, info: str, content: str, closed: bool, quoted: bool) -> None:
    (block,) = fenced_blocks(text)
    assert (block.info, block.content(text), block.closed, block.quoted) == (info, content, closed, quoted)


@pytest.mark.parametrize(
    "piece",
    [
        *("```\n", "- ```\n", "> ```\n", "- ```\n\n", "> ", "- ", "1. ", "-\t", "- ```x\na\n", "- ````\n- ```\n"),
        *("\n", "- ~~~\n  ```\n", "> - ```\n>\n", "\0", "\0\n"),
    ],
)
def test_four_times_the_text_takes_about_four_times_the_time(piece: str) -> None:
    def seconds(size: int) -> float:
        text = f"- ```\n{piece * (size // len(piece))}\n> ```"
        started = time.thread_time()
        fenced_blocks(text)
        return max(time.thread_time() - started, 1e-4)

    # Sixteen times as long where the time grows as the square of the length. The least of some runs has least noise.
    for _ in range(3):
        short, long = (min(seconds(size) for _ in range(3)) for size in (50_000, 200_000))
        if long < 9 * short:
            return
    pytest.fail(f"{short} s and {long} s")
