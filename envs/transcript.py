"""A dialogue as text that a person reads in a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from trajgym.types import Message, Step

__all__ = ["transcript"]

_WIDTH = 11

# What would move the cursor, change colours or break the block, and half surrogates, which cannot be printed at all.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def transcript(messages: Iterable[Message], steps: Sequence[Step] = (), *, width: int | None = None) -> str:
    """Return the dialogue, one block per message, with the reward behind each assistant turn.

    Control characters and half surrogates are spelled out as in a Python string; tabs stay.

    Args:
        messages: The dialogue.
        steps: The steps whose turns are among the messages, in order; may be empty.
        width: Columns at which to break long lines; never when ``None``.

    >>> print(transcript([Message("user", "48 + 24?"), Message("assistant", "#### 72")]))
    user      │ 48 + 24?
    assistant │ #### 72
    """
    blocks = []
    left = list(steps)
    for message in messages:
        label = message.name or message.role
        blocks.append(_block(label, message.content, width))
        if message.role == "assistant" and left:
            blocks.append(_block("", _payment(left.pop(0)), width))
    return "\n".join(blocks)


def _block(label: str, text: str, width: int | None) -> str:
    lines = _printable(text).split("\n")
    if width is not None:
        lines = [part for line in lines for part in _broken(line, max(20, width - _WIDTH - 1))]
    head = _printable(label).replace("\n", " ")[: _WIDTH - 1].ljust(_WIDTH - 1)
    return "\n".join(f"{head if i == 0 else ' ' * (_WIDTH - 1)}│ {line}" for i, line in enumerate(lines))


def _broken(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, replace_whitespace=False, break_on_hyphens=False) or [""]


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _payment(step: Step) -> str:
    parts = ", ".join(f"{name} {value:+g}" for name, value in step.reward_terms.items() if value)
    end = f"  [{step.stop_reason.value}]" if step.stop_reason is not None else ""
    return f"reward {step.reward:g}{f' ({parts})' if parts else ''}{end}"
