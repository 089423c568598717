"""Programs in fenced blocks: the first block tagged as Python is run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from trajgym.errors import ConfigError
from trajgym.protocols.base import Parsed
from trajgym.protocols.checking import Findings, checked_call
from trajgym.protocols.describe import introduce
from trajgym.protocols.fences import FENCE, LEAD, FencedBlock, fenced_blocks
from trajgym.protocols.readback import read_back
from trajgym.protocols.reading import Span, Turn, blanked, read_turn
from trajgym.protocols.single import SingleCall
from trajgym.types import CallError, ToolCall, ToolSpec

__all__ = ["PythonBlock"]

# A fence begins a line; one that is tagged as Python may also stand behind text, for want of another reading of it.
_OPENING = re.compile(
    rf"(?:^(?P<lead>{LEAD})|(?<!`)(?=`{{3,}}+(?i:py(?:thon)?3?)[ \t\r]*$)){FENCE}",
    re.MULTILINE,
)
_TAG = re.compile(r"py(?:thon)?3?(?!\S)", re.IGNORECASE)
_RUN = re.compile(r"^[ \t]*(`{3,})", re.MULTILINE)


class PythonBlock(SingleCall):
    r"""A fence with the tag ``python`` or ``py`` calls the tool ``python`` with what stands in it.

    Only the first block of a turn runs: a second one was written before the output of the first was seen. Blocks
    without a tag or with another one are text, and so is a block within another or in a block quote. As in Markdown, a
    fence is closed by a line of at least as many signs and nothing else, and what a block in a list is indented by is
    not part of the code. A turn with a block is no answer, whatever it says around it.

    End-of-turn tokens and reasoning tags count inside a block too, as nothing tells them from those that are meant:
    code that needs such a text has to put it together.
    """

    name = "python_block"
    only_tool = "python"
    completes = re.compile(r"(?:```|~~~)[ \t\r]*\n\Z")

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        """Read the first block of an assistant turn. Never raises on any string."""
        turn = read_turn(text, "```")
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
        block = _first_block(read_turn(text, "```"))
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


def _first_block(turn: Turn) -> _Block | None:
    # Unlike in the turn's live text there are fences in this one.
    visible = blanked(turn.text, turn.reasoning, border="\n")
    for block in fenced_blocks(visible, _OPENING):
        if _TAG.match(block.info) and not block.quoted:
            return _block(turn, block)
    return None


def _block(turn: Turn, block: FencedBlock) -> _Block:
    if not block.closed:
        error = CallError("truncated_call", "The block is not closed. End it with a line ``` and nothing else on it.")
        return _Block((block.start, block.end), error)
    start, end = block.inside
    if any(begin < end and start < stop for begin, stop in turn.reasoning):
        message = "There is reasoning within the block. Close the reasoning first; put such tags together in code."
        return _Block((block.start, block.end), CallError("malformed_call", message))
    return _Block((block.start, block.end), block.content(turn.text))
