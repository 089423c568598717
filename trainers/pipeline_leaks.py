"""Do rows to imitate hold problems that models are measured on, whatever form the rows have?

A question may stand in a row as it is, in a message, or inside of a prompt in a model's template, so rows are searched
for it: for whole lines, and for runs of as many words as are no coincidence.

Source: contamination by shared runs of words, as in Brown et al. 2020, arXiv 2005.14165, appendix C.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trajgym.errors import DataError
from trajgym.trainers.data_sources import Loaded
from trajgym.types import Message

__all__ = ["holding", "require_apart"]

_RUN = 8  # words; a question of fewer may stand in another one by chance
_SHOWN = 5  # rows that a message names
_ASKING = ("question", "prompt", "messages", "text")  # the last is that of a part of a message
_WORD = re.compile(r"\w+|[^\w\s]")
_SEAM = re.compile(r"\n|<[^<>\s]{1,40}>|\[/?[A-Z_]{2,20}\]")  # ends of lines, and templates' control tokens


def require_apart(rows: Loaded, test: Loaded) -> None:
    """Do nothing when no row holds the question of a test problem.

    Args:
        rows: Rows of any format.
        test: Rows with a ``question``.

    Raises:
        DataError: Naming the first rows that do.
    """
    found = holding(rows.rows, [str(row["question"]) for row in test.rows])
    if not found:
        return
    first = next(iter(found))
    named = ", ".join(str(i + 1) for i in list(found)[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
    raise DataError(
        f"{rows.name}: SFT would imitate {len(found)} rows ({named}) that hold a question of {test.name} (the first: "
        f"{test.place(found[first])}). Take them out of data.dataset, or measure on other problems (eval.split)."
    )


def holding(rows: Sequence[Mapping[str, Any]], questions: Sequence[str]) -> dict[int, int]:
    """Return the rows in which one of the questions stands, and which one.

    >>> holding([{"prompt": "<user>7 - 2?</user>"}, {"question": "17 - 2?"}], ["8 - 2?", "7 - 2?"])
    {0: 1}
    """
    asked = [_words(question) for question in questions]
    alone = {words: j for j, words in reversed(list(enumerate(asked))) if words}
    long: dict[tuple[str, ...], list[int]] = {}
    for j, words in enumerate(asked):
        if len(words) >= _RUN:
            long.setdefault(words[:_RUN], []).append(j)
    begins = {run[0] for run in long}
    found: dict[int, int] = {}
    for i, row in enumerate(rows):
        for text in _said(row):
            held = [alone[line] for line in map(_words, _SEAM.split(text)) if line in alone]
            words = _words(text)
            for k, word in enumerate(words if not held else ()):
                runs = long.get(words[k : k + _RUN], ()) if word in begins else ()
                held += [j for j in runs if words[k : k + len(asked[j])] == asked[j]]
            if held:
                found.setdefault(i, held[0])
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.casefold()))


def _said(value: Any) -> Iterator[str]:
    """Yield what is said to the model in a row: questions, prompts, and the messages that are not its own."""
    if isinstance(value, Message):
        value = {"role": value.role, "content": value.content}
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        if "role" not in value:
            for column in _ASKING:
                yield from _said(value.get(column))
        elif value["role"] not in ("assistant", "tool"):
            yield from _said(value.get("content"))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _said(inner)
