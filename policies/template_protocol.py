"""Which written form of calls a model was trained on, found out by letting its chat template write one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from trajgym.errors import TemplateError
from trajgym.protocols import PROTOCOLS
from trajgym.types import CallError

__all__ = ["template_call", "template_protocol"]

_SLOT = "\ue000"  # begins and ends like nothing that a template writes
_ARGUMENTS = {"topic": "probe value"}


class _ProbeTool:
    """The tool on offer in the probe; takes one string."""

    name = "probe_tool"
    description = "Look up a topic."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"topic": {"type": "string", "description": "What to look up."}},
        "required": ["topic"],
    }

    def check(self, arguments: Mapping[str, Any]) -> CallError | None:
        return None


def template_protocol(tokenizer: Any) -> str | None:
    """Return the name of the protocol in which a tokenizer's chat template writes calls.

    The template writes a call, and the registered protocols are asked to read it: the answer follows from the markup,
    not from the model's name, and protocols of other packages count. Where several read it, the one that leaves no
    text beside the call goes first, then the one that was registered first.

    Args:
        tokenizer: A transformers tokenizer with a chat template.

    Returns:
        ``None`` when the template writes no calls.

    Raises:
        TemplateError: When it writes them in a form that no registered protocol reads.
    """
    written = _written_calls(tokenizer)
    found = _read(written)
    if found is None and written:
        raise TemplateError(
            f"The chat template writes a call as {written[0][:200]!r}, which no registered protocol reads "
            f"({', '.join(sorted(PROTOCOLS))}). Add one with trajgym.protocols.register_protocol(...), or name one of "
            "these and insist with protocol_mismatch='allow'."
        )
    return found[0] if found else None


def template_call(tokenizer: Any) -> str | None:
    """Return a call as the chat template writes it, where a registered protocol reads it."""
    found = _read(_written_calls(tokenizer))
    return found[1] if found else None


def _read(written: list[str]) -> tuple[str, str] | None:
    """Return the protocol that reads one of these texts as the probe's call, and that text."""
    tool = _ProbeTool()
    for text in written:
        readers: list[tuple[bool, int, str]] = []  # the best one is the least
        for name, protocol in PROTOCOLS.items():
            parsed = protocol.parse(text, {tool.name: tool})
            calls = [(call.name, dict(call.arguments)) for call in parsed.calls]
            if calls == [(tool.name, _ARGUMENTS)] and parsed.error is None:
                readers.append((bool(parsed.text), len(readers), name))
        if readers:
            return min(readers)[2], text
    return None


def _written_calls(tokenizer: Any) -> list[str]:
    """Return an assistant turn with one call as the template writes it, once for each way of telling it the call."""
    found = []
    # Most templates want no text as "" and arguments as an object, some want None and some JSON.
    for content, arguments in itertools.product(("", None), (_ARGUMENTS, json.dumps(_ARGUMENTS))):
        function = {"name": _ProbeTool.name, "arguments": arguments}
        call = {"type": "function", "id": "probe0001", "function": function}
        try:
            turn = _render(tokenizer, {"content": content, "tool_calls": [call]})
            plain = _render(tokenizer, {"content": _SLOT})
        except Exception:  # noqa: S112 - a template is a program of somebody else's and may raise anything
            continue
        # What both have in common is the frame of a turn: its header, and the token that ends it.
        start = _shared(turn, plain)
        end = _shared(turn[start:][::-1], plain[::-1])
        text = turn[start : len(turn) - end]
        if _ARGUMENTS["topic"] in text:
            found.append(text)
    return found


def _shared(a: str, b: str) -> int:
    """Return how many characters both begin with."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _render(tokenizer: Any, turn: dict[str, Any]) -> str:
    tool = {
        "name": _ProbeTool.name,
        "description": _ProbeTool.description,
        "parameters": dict(_ProbeTool.parameters),
    }
    dialogue = [{"role": "user", "content": "?"}, {"role": "assistant", **turn}]
    return str(tokenizer.apply_chat_template(dialogue, tools=[{"type": "function", "function": tool}], tokenize=False))
