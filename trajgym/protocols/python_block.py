"""Programs in fenced blocks: the first block tagged as Python is run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from trajgym.errors import ConfigError
from trajgym.protocols.base import Parsed
from trajgym.protocols.checking import Findings, checked_call
from trajgym.protocols.describe import introduce
from trajgym.protocols.readback import read_back
from trajgym.protocols.reading import Span, Turn, read_turn
from trajgym.protocols.single import SingleCall
from trajgym.types import CallError, ToolCall, ToolSpec

__all__ = ["PythonBlock"]

# A fence begins a line; one that is tagged as Python may also stand behind text, for want of another reading of it.
_FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>[^`\n]*)$|(?<!`)(?P<late>`{3,})(?P<tag>[\w]+)[ \t\r]*$",
    re.MULTILINE,
)
_TAG = re.compile(r"\s*py(?:thon)?3?(?!\S)", re.IGNORECASE)
_RUN = re.compile(r"^[ \t]*(`{3,})", re.MULTILINE)
# A reasoning tag does not keep the fence beside it from beginning or ending its line.
_BESIDE_A_TAG = re.compile(r"(?<=```)(?=</?think)|(?<=think>)(?=```)|(?<=thinking>)(?=```)")


class PythonBlock(SingleCall):
    r"""A fence with the tag ``python`` or ``py`` calls the tool ``python`` with what stands in it.

    Only the first block of a turn runs: a second one was written before the output of the first was seen. Blocks
    without a tag or with another one are text, and so is a block within another. As in Markdown, a fence is closed by
    a line of at least as many signs and nothing else. A turn with a block is no answer, whatever it says around it.

    End-of-turn tokens and reasoning tags count inside a block too, as nothing tells them from those that are meant:
    code that needs such a text has to put it together.
    """

    name = "python_block"
    only_tool = "python"

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        """Read the first block of an assistant turn. Never raises on any string."""
        turn = _turn(text)
        block = _first_block(turn)
        findings = Findings()
        if block is not None:
            if isinstance(block.code, str):
                findings.add(checked_call("python", {"code": block.code}, tools))
            elif not turn.unclosed:
                findings.add(block.code)
        if turn.error is not None:
            findings.add(turn.error)
        return Parsed(turn.without([block.span] if block else []), findings.calls, findings.error)

    def finished(self, text: str) -> bool:
        """Whether the first block is closed, with a line break behind it."""
        if not text.endswith("\n"):
            return False
        block = _first_block(_turn(text))
        return block is not None and isinstance(block.code, str)

    def render(self, call: ToolCall) -> str:
        """Write one call; ``parse(render(call))`` gives the call back.

        Raises:
            ConfigError: When it is not a call of ``python``, or its code cannot stand in a block.
        """
        code = call.arguments.get("code")
        if call.name != self.only_tool or len(call.arguments) != 1 or not isinstance(code, str):
            raise ConfigError(
                f"The protocol {self.name!r} only writes python(code=<text>), "
                f"got {call.name[:60]!r} with {str(list(call.arguments))[:60]}."
            )
        fence = "`" * max([3, *(len(run[1]) + 1 for run in _RUN.finditer(code))])
        return read_back(self, call, f"{fence}python\n{code}\n{fence}")

    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        """Tell a policy how to run code; nothing about how to answer, or about tools it cannot call.

        Raises:
            ConfigError: For an unknown style.
        """
        how = [
            "To use it, write the code in a fenced block: a line ```python first, then the code, then a line ```.",
            "One block is run per turn, so stop there: the output comes in the next message.",
        ]
        offered = {name: tool for name, tool in tools.items() if name == self.only_tool}
        return introduce(offered, style, how, "a fenced block, the code between a line ```python and a line ```")


class _Block(NamedTuple):
    """The first block tagged as Python.

    Args:
        span: Where it stands, fences included.
        code: What is in it, or why that cannot be told.
    """

    span: Span
    code: str | CallError


def _turn(text: str) -> Turn:
    return read_turn(_BESIDE_A_TAG.sub("\n", text), "```")


def _first_block(turn: Turn) -> _Block | None:
    visible = _blanked(turn.text, turn.reasoning)
    opened: re.Match[str] | None = None
    for line in _FENCE.finditer(visible):
        if opened is None:
            # A tag in the middle of a line is no fence unless it is Python's.
            opened = line if line["fence"] or _is_python(line) else None
        elif _closes(line, opened):
            if _is_python(opened):
                return _block(turn, opened, line)
            opened = None
    return _block(turn, opened, None) if opened is not None and _is_python(opened) else None


def _is_python(line: re.Match[str]) -> bool:
    return _TAG.match(line["tag"] or line["info"] or "") is not None


def _closes(line: re.Match[str], opened: re.Match[str]) -> bool:
    fence = line["fence"]
    return fence is not None and not line["info"].strip() and fence.startswith(opened["fence"] or opened["late"])


def _block(turn: Turn, opened: re.Match[str], closed: re.Match[str] | None) -> _Block:
    start = opened.start("fence") if opened["fence"] else opened.start("late")
    if closed is None:
        error = CallError("truncated_call", "The block is not closed. End it with a line ``` and nothing else on it.")
        return _Block((start, len(turn.text)), error)
    span = (start, closed.end())
    inside = (opened.end() + 1, closed.start())
    if any(begin < inside[1] and inside[0] < end for begin, end in turn.reasoning):
        message = "There is reasoning within the block. Close the reasoning first; put such tags together in code."
        return _Block(span, CallError("malformed_call", message))
    code = turn.text[inside[0] : inside[1]].removesuffix("\n")
    if opened["indent"]:
        # As in Markdown, the code of a block may be indented as far as the block is, and that does not count.
        code = re.sub(rf"^[ \t]{{1,{len(opened['indent'])}}}", "", code, flags=re.MULTILINE)
    return _Block(span, code)


def _blanked(text: str, spans: tuple[Span, ...]) -> str:
    """Blank out spans; unlike :class:`Turn`'s ``live``, the result still has its fences."""
    parts, position = [], 0
    for start, end in spans:
        parts += [text[position:start], "\x00" * (end - start)]
        position = end
    return "".join([*parts, text[position:]])
