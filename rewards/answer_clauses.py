"""What the words around a number say of it: denied, one of several on offer, left to be worked out.

>>> from trajgym.rewards.answer_tokens import tokenize
>>> tokens = tokenize("anything but 72", 0, 15)
>>> denied(tokens, 2), unfinished(tokens, 2)
(True, False)
"""

from __future__ import annotations

import re

from trajgym.rewards.answer_tokens import Token
from trajgym.rewards.vocabulary import (
    ALTERNATIVES,
    CALLED_RIGHT,
    CALLED_WRONG,
    CLAUSE_OPENERS,
    COMPARATIVES,
    FILLERS,
    MULTIPLIERS,
    NEGATIONS,
    OPERATIONS,
    OPERATIONS_BY,
    PARTS,
)

__all__ = ["correction", "denied", "disclaimed", "left_undone", "negates", "offers", "unfinished", "withdrawn"]

_DENYING_PAIRS = frozenset(
    [
        ("anything", "but"),
        ("everything", "but"),
        ("all", "but"),
        ("far", "from"),
        ("different", "from"),
        ("no", "longer"),
        ("rather", "than"),
        ("other", "than"),
        ("instead", "of"),
    ]
)
_BEFORE_DENIED = FILLERS | {"be", "been", "equal", "equals", "to"}
_SAYING = frozenset(["is", "it's", "it’s", "rather", "instead", "so", "which"])
_NEAR = 80  # characters before a marker
_DISCLAIMED = re.compile(
    r"""
    (?<!\bnot\s)(?<!n['’]t\s)\b(?: (?:wrong|incorrect|false|mistaken|invalid|bad)
        | (?: (?:do|does|did|can|could|would)(?:\s?not|n['’]?t)\s(?:think|believe|say|mean|agree)
            | is(?:\snot|n['’]t)\s(?:true|right|correct|the\scase)
            | (?:I|we)\sdoubt | untrue | incorrect | wrong | false )
          (?:\s(?:that|if|whether))? (?:\s(?:the|my|your|our|this))? (?:\s(?:final|correct|right|real|actual))? )
    [\s*_"']{1,3}\Z
    """,
    re.IGNORECASE | re.VERBOSE,
)
_WITHDRAWN = re.compile(
    r"""
    [\s.?!,;:…*_"'()—–-]*
    (?:\b(?:oh|hmm|hm|oops|no|wait|actually|sorry|correction|scratch\sthat|make\sthat|i\smean[t]?|or\srather)\b[\s.,:!…—–-]*)+
    (?:\b(?:it|that|this|its|it['’]s|that['’]s|is|should|must|be|i|meant?|make|to|the|correct|right|real|answer)\b[\s,:]*)*
    [*_"'(]*(?=[-−–+]?[$€£]?\.?\d)
    """,
    re.IGNORECASE | re.VERBOSE,
)


def negates(word: str) -> bool:
    """Whether a word, in lower case, says no."""
    return word in NEGATIONS or word.endswith(("n't", "n’t"))


def denied(tokens: list[Token], index: int) -> bool:
    """Whether the number at ``index`` is said not to be the answer, before it or behind."""
    before = [t for t in tokens[max(0, index - 6) : index] if t.kind in ("word", "stop", "join", "colon", "equals")]
    while before and before[-1].text in _BEFORE_DENIED:
        before.pop()
    texts = [t.text for t in before[-3:]]
    if texts and (negates(texts[-1]) or tuple(texts[-2:]) in _DENYING_PAIRS) and texts[0] != "none":
        return True
    behind = [t.text for t in tokens[index + 1 : index + 6] if t.text not in FILLERS]
    if behind[:1] in (["is"], ["was"]):
        behind = behind[1:]
        if behind and behind[0] in CALLED_WRONG:
            return True
    return len(behind) > 1 and negates(behind[0]) and behind[1] in CALLED_RIGHT


def disclaimed(body: str, mark: int) -> bool:
    """Whether what stands before the marker at ``mark`` says that no answer follows: ``the wrong answer is``."""
    return _DISCLAIMED.search(body, max(0, mark - _NEAR), mark) is not None


def withdrawn(body: str, end: int, limit: int) -> int | None:
    """Return where the number begins that takes back the one that ends at ``end``: ``70. No, wait, 72``.

    Args:
        body: The reply.
        end: Index behind the number.
        limit: Index at which the line ends.
    """
    found = _WITHDRAWN.match(body, end, min(limit, end + _NEAR))
    return found.end() if found else None


def unfinished(tokens: list[Token], index: int) -> bool:
    """Whether the number at ``index`` is one that something is still to be done with: ``half of 72``, ``twice 36``."""
    before = [t for t in tokens[max(0, index - 5) : index] if t.text not in ("the", "a", "an")]
    if not before:
        return False
    last, whole = before[-1].text, before[-2] if len(before) > 1 else before[-1]
    if last == "of":  # 3/4 of 96, a third of 96
        part = whole.value is not None and whole.value.denominator != 1
        return part or whole.text.split()[-1] in PARTS
    if last == "than" and whole.text in COMPARATIVES:  # 3 miles more than 69
        return any(t.kind == "number" for t in before[-4:-2])
    return last in MULTIPLIERS


def left_undone(gap: list[Token], *, more: bool) -> bool:
    """Whether what stands behind a number is an operation on it.

    Args:
        gap: The tokens behind it, up to the next number.
        more: Whether there is a next number.
    """
    texts = [t.text for t in gap]
    if texts[0] in OPERATIONS or (texts[0] in ("x", "y", "z") and gap[0].kind == "word"):
        return True
    if not more:
        return gap[-1].kind == "operator" or (gap[0].kind in ("dash", "slash") and len(gap) == 1)
    return (
        (texts[0] in OPERATIONS_BY and texts[-1] in ("by", "to", "from"))
        or texts == ["over"]
        or (len(texts) in (2, 3) and texts[-2] in COMPARATIVES and texts[-1] == "than")
        or texts == ["percent", "of"]
    )


def offers(gap: list[Token]) -> bool:
    """Whether what stands between two numbers offers the second one instead: ``70 or it is 72``."""
    if any(t.kind in ("stop", "operator", "equals") for t in gap):
        return False
    last = max((i for i, t in enumerate(gap) if t.text in ALTERNATIVES), default=None)
    return last is not None and all(t.text in CLAUSE_OPENERS or t.text in FILLERS for t in gap[last + 1 :])


def correction(tokens: list[Token], index: int) -> list[Token]:
    """Return the tokens that give the answer instead of the number at ``index``: ``not 70, it is 72``.

    There are none where nothing of the kind follows.
    """
    start = next((i for i in range(index + 1, len(tokens)) if tokens[i].kind in ("join", "dash", "colon")), None)
    if start is None or tokens[start].text in ALTERNATIVES:
        return []
    behind = tokens[start + 1 :]
    end = next((i for i, t in enumerate(behind) if t.kind == "number"), None)
    words = [t.text for t in behind[:end]]
    says = not _SAYING.isdisjoint(words)
    return behind if end is not None and says and all(w in CLAUSE_OPENERS or w in FILLERS for w in words) else []
