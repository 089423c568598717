"""The same word problem in other words: rephrased, or translated there and back, by any policy or function.

Whatever was written is kept only if it holds: the same numbers, in digits or in words, no more and no fewer, a question
of about the same length, and the same answer by somebody who solves problems. The truth is never written anew. Numbers
alone do not tell "gives away 70" from "is given 70": rows of which nothing else was compared say so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal, TypeAlias

from trajgym.errors import ConfigError, DataError
from trajgym.policies.base import Policy
from trajgym.rewards.answer import correct
from trajgym.rewards.answer_reply import reply
from trajgym.rewards.numbers import spelled
from trajgym.trainers.data_augmented import Augmented, gathered
from trajgym.trainers.data_numerals import numerals
from trajgym.trainers.data_rows import solution_of
from trajgym.trainers.data_sources import Row

__all__ = ["Solver", "Writer", "back_translated", "objection", "rephrased"]

Writer: TypeAlias = Policy | Callable[[str], str]
"""Who writes: a policy, or a function from a prompt to a reply."""

Solver: TypeAlias = Writer | Literal["numbers"]
"""Who solves the new problems; ``"numbers"`` for nobody, so that their numbers alone are compared with the old ones."""

_LENGTHS = (0.5, 2.0)  # words of the new question per word of the old one
_NAMED = {"half": Fraction(1, 2), "halves": Fraction(1, 2), "dozen": Fraction(12), "dozens": Fraction(12)}
_NAMED |= dict.fromkeys(("twice", "double", "doubles", "doubled"), Fraction(2))
_NAMED |= dict.fromkeys(("thrice", "triple", "triples", "tripled"), Fraction(3))
_NAMED |= dict.fromkeys(("third", "thirds"), Fraction(1, 3))
_NAMED |= dict.fromkeys(("quarter", "quarters", "fourth", "fourths"), Fraction(1, 4))
_UNSAID = {Fraction(0), Fraction(1)}  # "a", "one", "no": they come and go with the wording
_WORDS = re.compile(r"[a-z]+")

_REPHRASE = (
    "Say the following word problem in other words. Keep every number, every name and what is asked for. Do not solve "
    "it. Write the new problem and nothing else.\n\n{text}"
)
_TRANSLATE = (
    "Translate the following word problem into {language}. Keep every number in digits. Do not solve it. Write the "
    "translation and nothing else.\n\n{text}"
)


def rephrased(rows: Sequence[Row], writer: Writer, *, solver: Solver) -> Augmented:
    """Return problems in other words, with the solution they had.

    Args:
        rows: Rows with ``question`` and ``answer`` (or ``full_answer``).
        writer: Writes the new question.
        solver: Solves the new question; only those are kept of which it finds the old answer. With ``"numbers"`` nobody
            does. The column ``verified`` of the new rows says ``"answer"`` or ``"numbers"``.

    Raises:
        DataError: When a row has no question.
        ConfigError: When writer or solver is neither a policy nor a function.
    """
    _require_solver(solver)
    prompts = [_REPHRASE.format(text=row.get("question")) for row in rows]
    return _kept("rephrased", rows, _asked(writer, prompts), solver)


def back_translated(
    rows: Sequence[Row],
    writer: Writer,
    *,
    language: str = "German",
    home: str = "English",
    solver: Solver,
) -> Augmented:
    """Return problems that were translated into another language and back, with the solution they had.

    Args:
        rows: Rows with ``question`` and ``answer`` (or ``full_answer``).
        writer: Translates.
        language: The other language.
        home: The language of the rows.
        solver: Solves the new question; only those are kept of which it finds the old answer. With ``"numbers"`` nobody
            does. The column ``verified`` of the new rows says ``"answer"`` or ``"numbers"``.

    Raises:
        DataError: When a row has no question.
        ConfigError: When writer or solver is neither a policy nor a function.
    """
    _require_solver(solver)
    there = [_TRANSLATE.format(language=language, text=row.get("question")) for row in rows]
    abroad = _asked(writer, there)
    back = [_TRANSLATE.format(language=home, text=text) for text in abroad]
    return _kept("translated back", rows, _asked(writer, back), solver)


def objection(question: str, new: str) -> str:
    """Return why a question cannot stand for another one; nothing when it can.

    Args:
        question: The old question.
        new: The new one.
    """
    if not _WORDS.search(new.casefold()):
        return "nothing was written"
    if new.casefold().split() == question.casefold().split():
        return "the words are the same"
    if "?" in question and "?" not in new:
        return "it asks nothing"
    if "####" in new or "<<" in new or "<|" in new:
        return "it holds more than a question"
    low, high = _LENGTHS
    if not low <= len(new.split()) / max(1, len(question.split())) <= high:
        return "it is much shorter or longer"
    return "" if _said_numbers(question) == _said_numbers(new) else "its numbers are others"


def _require_solver(solver: Solver) -> None:
    """Look at the solver before anything is written."""
    if solver != "numbers" and not isinstance(solver, Policy) and not callable(solver):
        raise ConfigError(
            f"solver must be a Policy or a function from text to text, which solves the new problems, or 'numbers' to "
            f"compare their numbers alone, got {solver!r:.80}."
        )


def _kept(what: str, rows: Sequence[Row], replies: Sequence[str], solver: Solver) -> Augmented:
    questions = [_question_of(text) for text in replies]
    reasons = [objection(str(row.get("question")), new) for row, new in zip(rows, questions, strict=True)]
    if solver != "numbers":
        asked = [i for i, reason in enumerate(reasons) if not reason]
        for i, solved in zip(asked, _asked(solver, [questions[i] for i in asked]), strict=True):
            if not correct(solved, solution_of(rows[i])):
                reasons[i] = "the solver does not find the same answer"

    verified = "numbers" if solver == "numbers" else "answer"

    def make(i: int, attempt: int) -> dict[str, str]:
        if reasons[i]:
            raise DataError(reasons[i])
        return {"question": questions[i], "answer": solution_of(rows[i]), "verified": verified}

    return gathered(what if verified == "answer" else f"{what}, by their numbers alone", rows, range(1), make)


def _asked(writer: Writer, prompts: Sequence[str]) -> list[str]:
    if isinstance(writer, Policy):
        from trajgym.trainers.judging import ask_policy  # brings torch along

        return list(ask_policy(writer)(list(prompts)))
    if not callable(writer):
        raise ConfigError(f"writer must be a Policy or a function from text to text, got {writer!r:.80}.")
    return [str(writer(prompt)) for prompt in prompts]


def _question_of(answer: str) -> str:
    """Return a reply without its reasoning, an announcement in front and quotation marks around it."""
    said = reply(answer).strip()
    first, _, rest = said.partition("\n")
    text = rest.strip() if first.rstrip().endswith(":") and rest.strip() else said
    return text[1:-1].strip() if len(text) > 1 and text[0] + text[-1] in ('""', "''", "“”") else text


def _said_numbers(text: str) -> Counter[Fraction]:
    """Return how often each number is said, in digits or in words."""
    found = Counter(numeral.value for numeral in numerals(text))
    words = _WORDS.findall(text.casefold())
    i = 0
    while i < len(words):
        value, used = spelled(words[i:])
        if value is None and words[i] in _NAMED:
            value = _NAMED[words[i]]
        if value is None and used:  # "two thirds": one word after the other
            value, used = spelled(words[i : i + 1])
        if value is not None:
            found[value] += 1
        i += max(1, used)
    return Counter({value: count for value, count in found.items() if value not in _UNSAID})
