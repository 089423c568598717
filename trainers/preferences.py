"""Preference pairs: two answers to one prompt, of which one is better. What reward models and DPO learn from.

On disk a pair is a JSON line ``{"prompt", "chosen", "rejected"}``, each a text or a list of messages, and if known
``margin`` (how much better, at least 0), ``task_id`` and ``origin``.

>>> pair = make_pair("48 + 24?", "#### 72", "#### 73")
>>> pair.question, pair.words("chosen"), pair.words("rejected")
('48 + 24?', '#### 72', '#### 73')
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from trajgym.errors import DataError
from trajgym.evaluation.records import write_jsonl
from trajgym.protocols import get_protocol
from trajgym.trainers.data_messages import read_messages
from trajgym.types import Message, to_json

__all__ = ["PreferencePair", "Side", "make_pair", "read_pairs", "split_pairs", "write_pairs"]

Side: TypeAlias = Literal["chosen", "rejected"]

_KEYS = ("prompt", "chosen", "rejected", "margin", "task_id", "origin")


@dataclass(frozen=True)
class PreferencePair:
    """Two answers to one prompt.

    Args:
        prompt: The messages both begin with, the question last.
        chosen: The better answer: an assistant's message, and where tools were called what followed.
        rejected: The worse one.
        margin: How much better, in the units of what compared them; ``None`` when that is unknown.
        task_id: The task they answer, if any.
        origin: What compared them: ``"reward"``, ``"scores"``, ``"choices"``, a file's name.
    """

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    margin: float | None = None
    task_id: str = ""
    origin: str = ""

    @property
    def question(self) -> str:
        """What was asked: the last message of the user, as reward models are shown it."""
        return next((m.content for m in reversed(self.prompt) if m.role == "user"), "")

    def words(self, side: Side) -> str:
        """Return the policy's own words in one answer, as reward models are shown them."""
        messages = self.chosen if side == "chosen" else self.rejected
        return "\n\n".join(m.content for m in messages if m.role == "assistant")

    @property
    def turns(self) -> int:
        """Turns of the longer answer."""
        return max(sum(m.role == "assistant" for m in side) for side in (self.chosen, self.rejected))


def make_pair(prompt: Any, chosen: Any, rejected: Any, **more: Any) -> PreferencePair:
    """Return a pair of texts or lists of messages.

    Args:
        prompt: A text stands for one message of the user.
        chosen: A text stands for one message of the assistant.
        rejected: Likewise.
        **more: ``margin``, ``task_id``, ``origin``.

    Raises:
        DataError: When something of it has not the form it must have.
    """
    margin = more.get("margin")
    if margin is not None and (isinstance(margin, bool) or not isinstance(margin, (int, float))):
        raise DataError(f"margin must be a number of at least 0, got {margin!r:.80}.")
    if margin is not None and not (math.isfinite(margin) and margin >= 0):
        raise DataError(f"margin must be a finite number of at least 0, got {margin!r}.")
    return PreferencePair(
        _messages(prompt, "prompt"), _messages(chosen, "chosen"), _messages(rejected, "rejected"), **more
    )


def read_pairs(path: str | Path) -> list[PreferencePair]:
    """Read the pairs of a file of JSON lines.

    Raises:
        DataError: When the file cannot be read, holds no pairs, or a line is not one; says which.
    """
    file = Path(path).expanduser()
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    pairs = [_of_line(line, f"{file}, line {n}", file.name) for n, line in enumerate(lines, 1) if line.strip()]
    if not pairs:
        raise DataError(f"{file} holds no pairs. A line is {{'prompt': …, 'chosen': …, 'rejected': …}}.")
    return pairs


def write_pairs(path: Path, pairs: Iterable[PreferencePair]) -> None:
    """Write pairs as JSON lines; the file appears only when it is complete."""
    rows = []
    for pair in pairs:
        row = {name: to_json(getattr(pair, name)) for name in _KEYS}
        for name in ("prompt", "chosen", "rejected"):
            row[name] = [{k: v for k, v in message.items() if v is not None} for message in row[name]]
        rows.append(row)
    write_jsonl(path, rows)


def split_pairs(
    pairs: Sequence[PreferencePair], held_out: float, *, seed: int = 0
) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """Return pairs to train on and pairs to hold out, without a question that is in both.

    Args:
        pairs: All pairs.
        held_out: Share of the questions that is held out, in [0, 1); above 0, at least one is.
        seed: Decides which; a question's place does not depend on the others.

    Raises:
        DataError: When there is one question only, and some of it should be held out.
    """
    questions = {pair.prompt for pair in pairs}
    if held_out == 0:
        return list(pairs), []
    if len(questions) < 2:
        raise DataError(
            f"{len(pairs)} pairs about one question cannot be split into training and held-out pairs. Give more "
            "questions, or set held_out: 0 and measure elsewhere."
        )
    ranked = sorted(questions, key=lambda prompt: _rank(prompt, seed))
    out = set(ranked[: min(len(ranked) - 1, max(1, round(held_out * len(ranked))))])
    return [p for p in pairs if p.prompt not in out], [p for p in pairs if p.prompt in out]


def _rank(prompt: tuple[Message, ...], seed: int) -> bytes:
    text = "\x1f".join([str(seed), *(f"{m.role}\x1e{m.content}" for m in prompt)])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _of_line(line: str, where: str, origin: str) -> PreferencePair:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    missing = [name for name in _KEYS[:3] if not isinstance(row, Mapping) or row.get(name) is None]
    if missing:
        got = ", ".join(map(str, row)) if isinstance(row, Mapping) else f"{row!r:.80}"
        raise DataError(f"{where}: a pair needs {', '.join(missing)}; got {got or 'nothing'}.")
    more = {name: row[name] for name in _KEYS[3:] if row.get(name) is not None}
    try:
        return make_pair(*(row[name] for name in _KEYS[:3]), **{"origin": origin, **more})
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _messages(value: Any, name: str) -> tuple[Message, ...]:
    if isinstance(value, str):
        return (Message("user" if name == "prompt" else "assistant", value),)
    messages = tuple(read_messages(value, get_protocol("hermes"), where=name))
    if name == "prompt" and messages[-1].role == "assistant":
        raise DataError("prompt: must not end with the assistant's message; that is what is compared.")
    if name != "prompt" and messages[0].role != "assistant":
        raise DataError(f"{name}: must begin with the assistant's message, got {messages[0].role!r}.")
    return messages
