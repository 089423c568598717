"""A dialogue cut down to what a person needs to see of it."""

from __future__ import annotations

from trajgym.envs.transcript import transcript
from trajgym.types import Message, Trajectory

__all__ = ["example"]

_HEAD, _TAIL = 240, 120  # characters that are kept of a long message
_LINES = 6  # lines that are kept of a long message
_TURNS = 3  # turns that are kept at the beginning; the last one is always shown
_RESULTS = 2  # tool messages that are kept of one turn


def example(trajectory: Trajectory, *, width: int = 76) -> str:
    """Return a dialogue as text, without its system message, its long messages and many turns cut.

    Args:
        trajectory: The dialogue.
        width: Columns at which lines are broken.
    """
    blocks = [transcript([_cut(m) for m in trajectory.prompt if m.role != "system"], width=width)]
    last = len(trajectory.steps) - 1
    for turn, step in enumerate(trajectory.steps):
        if _TURNS <= turn < last:
            if turn == _TURNS:
                blocks.append(f"          ⋮ {last - _TURNS} more turn{'s' * (last > _TURNS + 1)}")
            continue
        answers = step.observation.messages
        shown = [Message("assistant", step.action.text), *answers[:_RESULTS]]
        blocks.append(transcript([_cut(m) for m in shown], [step], width=width))
        if len(answers) > _RESULTS:
            blocks.append(f"          ⋮ {len(answers) - _RESULTS} more result{'s' * (len(answers) > _RESULTS + 1)}")
    if trajectory.fault is not None:
        blocks.append(f"fault     │ {trajectory.fault}")
    return "\n".join(blocks)


def _cut(message: Message) -> Message:
    text = message.content
    lines = text.split("\n")
    if len(lines) > 2 * _LINES:
        left = len(lines) - _LINES - 2
        text = "\n".join([*lines[:_LINES], f"… {left} more lines …", *lines[-2:]])
    if len(text) > 2 * (_HEAD + _TAIL):
        text = f"{text[:_HEAD]} … {len(text) - _HEAD - _TAIL} more characters … {text[-_TAIL:]}"
    return Message(message.role, text, name=message.name)
