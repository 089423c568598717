r"""Turning what a model sends as code into Python source.

Models wrap code: in a fence, in backticks, with the prompt signs of a transcript, with a margin. None of these parses
(but for one, see :func:`is_transcript`), so whatever does parse is left alone, and what does not is unwrapped. What a
notebook would not run as Python (magics, shell commands, help requests) is refused, which says more than a syntax
error.

>>> prepare("```python\n48 + 24\n```")
'48 + 24'
>>> prepare(">>> x = 48\n>>> x + 24\n72")
'x = 48\nx + 24'

Every step takes time proportional to the length of the text.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

__all__ = ["Refused", "is_transcript", "prepare"]

_ROUNDS = 3  # of unwrapping: a transcript in a fence with a margin, and nothing deeper

_FENCE = re.compile(r"^[ \t]*(?P<mark>`{3,}|~{3,})(?P<info>[^\n`]*)$", re.MULTILINE)
_BACKTICKED = re.compile(r"(`+)([^`]+)\1")
_TAG = re.compile(r"py(?:thon)?3?\s+", re.IGNORECASE)
_PROMPT = re.compile(r"[ \t]*(?:>>>|In ?\[\d*\]:) ?(.*)")
_NUMBERED_PROMPT = re.compile(r"\s*In \[\d+\]: ")
_CONTINUATION = re.compile(r"[ \t]*\.\.\.:?(?: (.*)|$)")

_MAGIC = re.compile(
    r"""[ \t]*(
        %%?[A-Za-z_]\w*                                        # %timeit, %%bash
      | !(?!=)[^\n]*                                           # !ls
      | \?\??[A-Za-z_][\w.]* (?=[ \t]*(?:\n|\Z))               # ?name
      | [A-Za-z_][\w.]*\?\??  (?=[ \t]*(?:\n|\Z))              # name?
      | [A-Za-z_][\w., \t]*=[ \t]*(?:%[A-Za-z_]|!(?!=))[^\n]*  # x = !ls
    )""",
    re.VERBOSE,
)
_BLANKS = re.compile(r"[ \t]*")
_LEXEME = re.compile(r"""(?P<skip>\#[^\n]*|\\\n)|(?P<quote>'''|\"""|['"])|(?P<open>[(\[{])|(?P<close>[)\]}])|\n""")
_REST_OF_STRING = {
    quote: re.compile(rf"[^\\\n{quote}]*+(?:\\.[^\\\n{quote}]*+)*+{quote}", re.DOTALL) for quote in ("'", '"')
} | {
    quote * 3: re.compile(rf"[^\\{quote}]*+(?:(?:\\.|{quote}(?!{quote}{quote}))[^\\{quote}]*+)*+{quote * 3}", re.DOTALL)
    for quote in ("'", '"')
}


class Refused(Exception):
    """A source that is not run.

    Args:
        kind: ``"unsupported_magic"`` or ``"invalid_source"``.
        message: What it holds, and what to write instead.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message


def prepare(code: str) -> str:
    """Return the Python source in ``code``: the code itself if it parses, otherwise what unwrapping leaves.

    If that does not parse either, it is returned all the same: compiling it gives the error to show. The same goes for
    a source that is too deep for the parser.

    Args:
        code: What was sent.

    Raises:
        Refused: It holds NUL or half of a surrogate pair, or lines in the notation of notebooks.
    """
    text = code.lstrip("\ufeff")
    _check_characters(text)
    if _is_settled(text):
        return text
    text = _unwrap(text.replace("\r\n", "\n").replace("\r", "\n"))
    if not _is_settled(text):
        _check_magics(text)
    return text


def is_transcript(text: str) -> bool:
    """Whether it begins with a prompt like ``In [3]:``, which Python would take for an annotation."""
    return _NUMBERED_PROMPT.match(text) is not None


def _is_settled(text: str) -> bool:
    """Whether it parses, or fails for a reason that no unwrapping changes."""
    if is_transcript(text):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are shown when it is compiled
            ast.parse(text)
    except (MemoryError, RecursionError):
        return True
    except Exception:  # SyntaxError, ValueError, or what a program made of the warnings module
        return False
    return True


def _check_characters(text: str) -> None:
    if "\0" in text:
        raise Refused("invalid_source", r"The code holds a NUL character. Write it as \0 inside a string.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"U+{ord(text[error.start]):04X}"
        raise Refused(
            "invalid_source", f"The code holds {found}, half of a surrogate pair, which is no text."
        ) from None


def _check_magics(text: str) -> None:
    for start in _statement_starts(text):
        if magic := _MAGIC.match(text, start):
            raise Refused(
                "unsupported_magic",
                f"{magic[1].strip()[:80]!r} is notebook notation: magics, shell commands and '?' are not available. "
                "Write plain Python.",
            )


def _unwrap(text: str) -> str:
    inner = text
    for _ in range(_ROUNDS):
        before = inner
        for step in (_without_mark, _out_of_fence, _out_of_backticks, _without_prompts, _without_margin):
            inner = step(inner)
        if inner == before or _is_settled(inner):
            return inner
    return text


def _without_mark(text: str) -> str:
    return text.lstrip("\ufeff")


def _out_of_fence(text: str) -> str:
    """Return what stands in the only fence; the prose around it goes."""
    fences = list(_FENCE.finditer(text))
    if not fences:
        return text
    opening = fences[0]
    before = text[: opening.start()]
    if '"""' in before or "'''" in before:  # not a wrapper but part of a string
        return text
    fences = [fence for fence in fences if fence["mark"].startswith(opening["mark"])]
    closing = fences[-1]
    bare = not closing["info"].strip()
    if len(fences) == 1:
        if bare and before.strip() and not text[opening.end() :].strip():
            return before  # only the end of a fence
        # A reply that was cut off. Tildes may be operators.
        return text if opening["mark"][0] == "~" else text[opening.end() + 1 :]
    inner = text[opening.end() + 1 : max(closing.start() - 1, opening.end() + 1)]
    # More lines like these are either several blocks, or text inside a string.
    return inner if bare and (len(fences) == 2 or _is_settled(inner)) else text


def _out_of_backticks(text: str) -> str:
    quoted = _BACKTICKED.fullmatch(text.strip())
    if quoted is None:
        return text
    return _TAG.sub("", quoted[2], count=1) if len(quoted[1]) >= 3 and _TAG.match(quoted[2]) else quoted[2].strip()


def _without_prompts(text: str) -> str:
    """Return the input lines of a transcript; lines without a prompt are output."""
    if not _PROMPT.match(text.lstrip("\n \t")):
        return text
    kept, is_input = [], False
    for line in text.split("\n"):
        entry = _PROMPT.fullmatch(line) or (_CONTINUATION.fullmatch(line) if is_input else None)
        is_input = entry is not None
        if entry is not None:
            kept.append(entry[1] or "")
    return "\n".join(kept)


def _without_margin(text: str) -> str:
    """Return the text without the blanks that all its statements begin with."""
    margin: str | None = None
    for start in _statement_starts(text):
        blanks = _BLANKS.match(text, start)
        assert blanks is not None
        if blanks.end() == len(text) or text[blanks.end()] in "\n#":
            continue
        margin = blanks[0] if margin is None else _common(margin, blanks[0])
        if not margin:
            return text
    if margin is None:
        return text
    return "\n".join(line.removeprefix(margin) for line in text.split("\n"))


def _common(one: str, other: str) -> str:
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return one[:length]


def _statement_starts(text: str) -> Iterator[int]:
    """Yield where lines begin that continue neither a string nor a bracket nor a line ending in a backslash."""
    yield 0
    depth = position = 0
    while lexeme := _LEXEME.search(text, position):
        position = lexeme.end()
        if lexeme["quote"]:
            rest = _REST_OF_STRING[lexeme["quote"]].match(text, position)
            if rest is not None:
                position = rest.end()
            elif len(lexeme["quote"]) == 3:
                return
            else:  # never closed: it ends with its line
                position = text.find("\n", position)
                if position < 0:
                    return
        elif lexeme["open"]:
            depth += 1
        elif lexeme["close"]:
            depth = max(depth - 1, 0)
        elif not lexeme["skip"] and not depth:
            yield position
