"""A dialogue as text that a person reads in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trajgym.types import Message, Step

__all__ = ["transcript"]

_WIDTH = 11


def transcript(messages: Iterable[Message], steps: Sequence[Step] = ()) -> str:
    """Return the dialogue, one block per message, with the reward behind each assistant turn.

    Args:
        messages: The dialogue.
        steps: The steps whose turns are among the messages, in order; may be empty.

    >>> print(transcript([Message("user", "48 + 24?"), Message("assistant", "#### 72")]))
    user      │ 48 + 24?
    assistant │ #### 72
    """
    blocks = []
    left = list(steps)
    for message in messages:
        label = message.name or message.role
        blocks.append(_block(label, message.content))
        if message.role == "assistant" and left:
            blocks.append(_block("", _payment(left.pop(0))))
    return "\n".join(blocks)


def _block(label: str, text: str) -> str:
    lines = text.split("\n")
    head = label[: _WIDTH - 1].ljust(_WIDTH - 1)
    return "\n".join(f"{head if i == 0 else ' ' * (_WIDTH - 1)}│ {line}" for i, line in enumerate(lines))


def _payment(step: Step) -> str:
    parts = ", ".join(f"{name} {value:+g}" for name, value in step.reward_terms.items() if value)
    end = f"  [{step.stop_reason.value}]" if step.stop_reason is not None else ""
    return f"reward {step.reward:g}{f' ({parts})' if parts else ''}{end}"
