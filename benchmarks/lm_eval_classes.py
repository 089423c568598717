"""Why two graders of the same completion differ: which part of it each of them reads, and as what.

Both readers are deterministic, so a difference has one of three origins: one of them finds nothing, they read different
places, or they read the same place differently. :func:`explain` says which it is, and gives it a name. What it knows of
the harness is checked against what the harness said; a row on which that fails is called :data:`UNEXPLAINED`.
"""

from __future__ import annotations

import re
from fractions import Fraction

from trajgym.rewards.answer import equal, read, truth
from trajgym.rewards.answer_reading import REASONS, RULES, Reading
from trajgym.rewards.answer_reply import NEXT_TURN, reply

__all__ = ["FLEXIBLE", "STRICT", "UNEXPLAINED", "explain", "ours", "read_alike"]

STRICT, FLEXIBLE = "strict-match", "flexible-extract"
UNEXPLAINED = "unexplained"

# The filters of the harness 0.4.13, tasks/gsm8k/gsm8k.yaml: the first match of the one, the last of the other.
_PATTERNS = {STRICT: re.compile(r"#### (\-?[0-9\.\,]+)"), FLEXIBLE: re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")}
_IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")  # what its metric takes out of both sides before it compares texts
_NOTHING = "[invalid]"
_ANNOTATION = re.compile(r"<<[^<>\n]*(?:>>|\Z)")
_UNIT = re.compile(r"[ \t]*(?:%|[A-Za-z°/^×*]|\\%)")


def ours(completion: str, target: str, name: str) -> bool:
    """Return our verdict: whether the answer is right, and under the strict filter stands behind a marker, too."""
    reading = read(completion)
    return equal(reading.value, truth(target)) and (name == FLEXIBLE or reading.marked)


def read_alike(completion: str, name: str, found: str) -> bool:
    """Whether both read the same number, right or wrong, or both none: more than that their verdicts agree.

    Where the harness's strict filter finds nothing, an answer of ours that has no marker is none either.
    """
    reading = read(completion)
    value = reading.value if name == FLEXIBLE or reading.marked else None
    return _number(_compared(found)) == value


def explain(completion: str, target: str, name: str, found: str, paid: bool) -> str:
    """Return why our verdict on a completion is another than the harness's; empty where it is the same.

    Args:
        completion: What both have graded.
        target: The data set's solution, which ends in ``#### 72``.
        name: The harness's filter: :data:`STRICT` is compared with strict accuracy, :data:`FLEXIBLE` with lenient.
        found: What the filter took out of the completion.
        paid: The harness's verdict.
    """
    if ours(completion, target, name) == paid:
        return ""
    place = _place(completion, name)
    said = completion[slice(*place)].strip() if place else _NOTHING
    if said != found or (_compared(found) == _compared(target)) != paid:
        return UNEXPLAINED  # the harness does not read as we believe
    reading = read(completion)
    if place is None:
        return _nothing_found(completion, reading)
    if not re.search(r"\d", found):
        return "theirs: punctuation read as a number"
    if reading.value is None or reading.span is None:
        return f"ours: no answer, {REASONS[reading.reason]}"
    if place[0] < reading.span[1] and reading.span[0] < place[1]:
        return _same_place(completion, reading, place, found)
    return _other_place(completion, reading, reading.span, place, name)


def _place(completion: str, name: str) -> tuple[int, int] | None:
    """Return where the harness reads."""
    matches = list(_PATTERNS[name].finditer(completion))
    if not matches:
        return None
    match = matches[0 if name == STRICT else -1]
    return match.span(1) if match[1] is not None else match.span(2)


def _compared(text: str) -> str:
    """Return a text as the harness's metric compares it."""
    for pattern in _IGNORED:
        text = re.sub(pattern, "", text)
    return text.lower()


def _nothing_found(completion: str, reading: Reading[Fraction]) -> str:
    """Name what keeps the harness from finding the answer that we read."""
    if reading.span is None or reading.value is None:
        return UNEXPLAINED
    source = reading.source(completion)
    if not re.search(r"[0-9]", source):
        return "theirs: no number in words"
    if reading.rule != "hash":
        return f"theirs: no marker but ####, ours: {RULES[reading.rule].sign}"
    between = completion[completion.rfind("####", 0, reading.span[0]) + 4 : reading.span[0]]
    if "$" in between + source:
        return "theirs: $ between #### and the number"
    if re.search(r"\w", between):
        return "theirs: words between #### and the number"
    return "theirs: no blank, or signs, between #### and the number"


def _same_place(completion: str, reading: Reading[Fraction], place: tuple[int, int], found: str) -> str:
    """Name why the same digits are two values, or one value and two texts."""
    assert reading.value is not None
    number = _number(_compared(found))
    if number is None:
        return "theirs: punctuation read as a number"
    if number == reading.value:
        if not reading.marked:
            return "ours: the #### is a heading"
        return "theirs: one value in two spellings (18.00 for 18)"
    if number == -reading.value:
        return "theirs: a dash read as a minus sign"
    if "," in found and not re.fullmatch(r"-?\$?\d{1,3}(,\d{3})*(\.\d+)?[.,]?", found):
        return "theirs: commas of a list taken for those of thousands"
    if _UNIT.match(completion, place[1]):
        return "ours: unit after the number counts"
    return "same digits, another value"


def _other_place(
    completion: str, reading: Reading[Fraction], span: tuple[int, int], place: tuple[int, int], name: str
) -> str:
    """Name why the two read different places."""
    if any(a.start() <= place[0] < a.end() for a in _ANNOTATION.finditer(completion)):
        return "theirs: a calculator's annotation read as the answer"
    if span[1] <= place[0] and NEXT_TURN.search(completion, span[1], place[0]):
        return "theirs: an invented next turn read as the answer"
    if not reply(completion)[slice(*place)].strip():
        return "theirs: reasoning, program text or tool traffic read as the answer"
    if name == STRICT:
        between = sorted((span, place))
        several = "####" in completion[between[0][1] : between[1][0]]
        return "several ####" if several else f"the marker that counts: ours {RULES[reading.rule].sign}"
    if reading.marked:
        return "theirs: the last number is not the answer"
    return "no marker: another number counts as the last"


def _number(text: str) -> Fraction | None:
    try:
        return Fraction(text)
    except ValueError:
        return None
