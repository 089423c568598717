r"""Counting the steps that a solution shows.

Only the reply counts: reasoning, calls and program text are left out. A step must say something, and something that no
earlier step said, so blank lines, bare markers and repeated lines add nothing.

>>> shown = "Step 1: 48 / 2 = 24\nStep 2: 48 + 24 = 72\n#### 72"
>>> count_steps(shown), count_steps(shown, "lines"), count_steps(shown, "regex", r"\d+ [/+] \d+")
(2, 2, 2)
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.rewards.answer_reply import reply

__all__ = ["STEP_MODES", "check_step_mode", "count_steps", "shown_steps"]

STEP_MODES = ("markers", "lines", "regex")

_MARKER = re.compile(r"(?<![^\W_])step[ \t]{0,4}#?(\d{1,4})[ \t]{0,4}[*_]{0,3}[ \t]{0,4}[:：]", re.IGNORECASE)
_ANSWER = re.compile(r"####|\\boxed|<answer>|final answer|the answer is", re.IGNORECASE)
_SAYS_SOMETHING = re.compile(r"[^\W_]")
_MOST_READ = 200_000  # characters


def check_step_mode(mode: str, pattern: str | re.Pattern[str] | None) -> None:
    """Refuse a mode that does not exist, and a pattern that is missing, wrong or not used.

    Raises:
        UnknownNameError, ConfigError: Accordingly.
    """
    if mode not in STEP_MODES:
        raise UnknownNameError("step mode", mode, STEP_MODES)
    if (pattern is not None) != (mode == "regex"):
        raise ConfigError(f"The step mode 'regex', and no other, needs a pattern; got mode {mode!r}, {pattern!r}.")
    try:
        re.compile(pattern or "")
    except (re.error, TypeError) as error:
        raise ConfigError(f"The step pattern {pattern!r} is not a regular expression: {error}.") from error


def count_steps(text: str, mode: str = "markers", pattern: str | re.Pattern[str] | None = None) -> int:
    """Return how many steps ``text`` shows; the arguments are those of :func:`shown_steps`.

    Raises:
        UnknownNameError, ConfigError: See :func:`check_step_mode`.
    """
    return len(shown_steps(text, mode, pattern))


def shown_steps(text: str, mode: str = "markers", pattern: str | re.Pattern[str] | None = None) -> list[str]:
    """Return what each step says that ``text`` shows, in order, in small letters and with single blanks.

    Args:
        text: What the policy wrote.
        mode: ``"markers"`` counts ``Step 1:``, ``Step 2:``, … as long as each has the next number; ``"lines"`` counts
            lines above the answer; ``"regex"`` counts what ``pattern`` finds.
        pattern: A regular expression for ``"regex"``. It meets text that a policy wrote, so it should be linear.

    Raises:
        UnknownNameError, ConfigError: See :func:`check_step_mode`.
    """
    check_step_mode(mode, pattern)
    shown = reply(text[:_MOST_READ])
    if mode == "markers":
        return _distinct(_marked(shown))
    if mode == "lines":
        answer = _ANSWER.search(shown)
        above = shown if answer is None else shown[: shown.rfind("\n", 0, answer.start()) + 1]
        return _distinct(above.splitlines())
    return _distinct(found[0] for found in re.finditer(pattern or "", shown))


def _marked(shown: str) -> Iterable[str]:
    """Yield what stands behind each marker that has the next number, up to the next marker or the answer."""
    markers = list(_MARKER.finditer(shown))
    ends = [marker.start() for marker in markers[1:]] + [len(shown)]
    number = 1
    for marker, end in zip(markers, ends, strict=False):
        if int(marker[1]) == number:
            yield _ANSWER.split(shown[marker.end() : end], maxsplit=1)[0]
            number += 1


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(" ".join(text.casefold().split()) for text in texts if _SAYS_SOMETHING.search(text)))
