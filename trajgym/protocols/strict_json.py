"""JSON as the standard has it, read up to the end of one value and never repaired.

Python's own reader accepts NaN, keeps the last of two equal keys, recurses without a bound and cannot say
whether a text is wrong or merely cut. A policy must be told these apart.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from trajgym.errors import ConfigError
from trajgym.types import CallError

__all__ = ["MAX_DEPTH", "MAX_DIGITS", "Json", "read_json", "skip_blanks", "write_json"]

MAX_DEPTH = 64
MAX_DIGITS = 4300  # Python's own limit for reading an integer
# Up to here Python's reader is tried first: its errors count the lines before them, and a text may hold many.
_QUICK = 65_536

_BLANKS = re.compile(r"[ \t\n\r]*")
_SIMPLE = re.compile(r'"([^"\\\x00-\x1f\ud800-\udfff]*)"')
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_UNFINISHED_NUMBER = re.compile(r"-|(?:\.|[eE][+-]?)")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"true": True, "false": False, "null": None, "NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_INITIALS = tuple(word[0] for word in _WORDS)
# What a tokenizer or a parser could take for a control token when it stands in a string.
_CONTROL = re.compile(r"<(?=[^\s<>=][^\s<>]*>)|\[(?=/?[A-Z][A-Z_]*\])")


class Json(NamedTuple):
    """What :func:`read_json` found.

    Args:
        value: The value; only meaningful without an error.
        end: The position behind the value, or where reading had to stop.
        error: ``malformed_json``, ``truncated_call`` (the text ends within the value), ``too_deep``; or, for a
            complete value, ``duplicate_key``, ``non_finite_number``, ``number_too_large`` or ``bad_unicode``.
        complete: Whether a whole value was read, be its content acceptable or not.
    """

    value: Any
    end: int
    error: CallError | None = None
    complete: bool = True


def skip_blanks(text: str, position: int) -> int:
    """Return the position of the next character that is not a JSON blank."""
    if not text.startswith((" ", "\n", "\t", "\r"), position):
        return position
    match = _BLANKS.match(text, position)
    return match.end() if match else position


def read_json(text: str, start: int = 0) -> Json:
    """Read one JSON value that begins at ``start``, after blanks; what follows it is not looked at."""
    start = skip_blanks(text, start)
    quick = _read_plain(text, start)
    if quick is not None:
        return quick
    reader = _Reader(text)
    try:
        value, end = reader.value(start, 0)
    except _StopReading as stop:
        return Json(None, stop.position, stop.error, complete=False)
    return Json(value, end, reader.objection)


def _read_plain(text: str, start: int) -> Json | None:
    """Read a value with Python's own reader, which is faster; ``None`` for all that it does not read the same way."""
    if start > _QUICK:
        return None
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None  # wrong, cut or objectionable: the reader of this module says which
    part = text[start:end]
    if "\\u" in part or part.count("{") + part.count("[") > MAX_DEPTH or _SURROGATE.search(part):
        return None  # possibly half a character, or too deep
    return Json(value, end)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("too many digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError("too large")
    return number


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_whole, parse_float=_finite, parse_constant=_refuse)


def write_json(value: Any) -> str:
    """Write ``value`` on one line; text that looks like a control token is spelled with escapes.

    Raises:
        ConfigError: When JSON has no spelling for it (NaN, half a surrogate pair, an object of Python), or when it
            nests more than :data:`MAX_DEPTH` levels and could not be read again.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"A call can only carry JSON values, got one that cannot be written: {error}") from error
    if _nests_deeper(value, MAX_DEPTH):
        raise ConfigError(f"A call can only carry JSON values of {MAX_DEPTH} levels. Nest less.")
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _nests_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, (dict, list, tuple)):
        return False
    return levels == 0 or any(
        _nests_deeper(v, levels - 1) for v in (value.values() if isinstance(value, dict) else value)
    )


class _StopReading(Exception):
    """A jump out of the recursion, caught in :func:`read_json`."""

    def __init__(self, kind: str, message: str, position: int) -> None:
        super().__init__(message)
        self.error = CallError(kind, message)
        self.position = position


class _Reader:
    """One pass over a text.

    Args:
        text: The text.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.objection: CallError | None = None  # the first thing wrong with the content of well-formed JSON

    def value(self, position: int, depth: int) -> tuple[Any, int]:
        first = self.text[position : position + 1]
        if first == '"':
            return self._string(position)
        if first == "{" or first == "[":
            if depth == MAX_DEPTH:
                raise _StopReading("too_deep", f"The call nests more than {MAX_DEPTH} levels. Nest less.", position)
            return self._object(position, depth + 1) if first == "{" else self._array(position, depth + 1)
        match = _NUMBER.match(self.text, position)
        if match:
            return self._number(match), match.end()
        for word, value in _WORDS.items() if first in _INITIALS else ():
            if self.text.startswith(word, position):
                if isinstance(value, float):
                    self._object_to("non_finite_number", f"{word} is not a number in JSON. Use a finite number.")
                return value, position + len(word)
        raise self._wrong(position, "a JSON value")

    def _object(self, position: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        position = skip_blanks(self.text, position + 1)
        if self.text.startswith("}", position):
            return found, position + 1
        while True:
            if not self.text.startswith('"', position):
                raise self._wrong(position, "a key in double quotes")
            key, position = self._string(position)
            if key in found:
                self._object_to("duplicate_key", f"The key {key[:40]!r} is given twice. Give each key once.")
            position = skip_blanks(self.text, position)
            if not self.text.startswith(":", position):
                raise self._wrong(position, "':'")
            value, position = self.value(skip_blanks(self.text, position + 1), depth)
            found[key] = value
            position, more = self._next(position, "}")
            if not more:
                return found, position

    def _array(self, position: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        position = skip_blanks(self.text, position + 1)
        if self.text.startswith("]", position):
            return found, position + 1
        while True:
            value, position = self.value(position, depth)
            found.append(value)
            position, more = self._next(position, "]")
            if not more:
                return found, position

    def _next(self, position: int, closing: str) -> tuple[int, bool]:
        """Step over a comma (and blanks behind it) or over the closing bracket."""
        position = skip_blanks(self.text, position)
        if self.text.startswith(closing, position):
            return position + 1, False
        if self.text.startswith(",", position):
            return skip_blanks(self.text, position + 1), True
        raise self._wrong(position, f"',' or '{closing}'")

    def _number(self, match: re.Match[str]) -> int | float:
        if match[1] is None and match[2] is None:
            if match.end() - match.start() > MAX_DIGITS:
                self._object_to(
                    "number_too_large", f"A number has more than {MAX_DIGITS} digits. Use a smaller number."
                )
                return 0
            return int(match[0])
        number = float(match[0])
        if math.isinf(number):
            self._object_to("non_finite_number", f"{match[0][:40]} is too large for a float. Use a smaller number.")
        return number

    def _string(self, position: int) -> tuple[str, int]:
        simple = _SIMPLE.match(self.text, position)
        if simple:
            return simple[1], simple.end()
        parts: list[str] = []
        position += 1
        while True:
            plain = _PLAIN.match(self.text, position)
            assert plain is not None
            parts.append(plain[0])
            position = plain.end()
            stop = self.text[position : position + 1]
            if stop == '"':
                break
            if stop != "\\":
                raise self._wrong(position, "the end of a string, with line breaks in it written as \\n")
            character, position = self._escape(position)
            parts.append(character)
        whole = "".join(parts)
        if _SURROGATE.search(whole):
            # Two escaped halves that met are one character.
            whole = whole.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
            if _SURROGATE.search(whole):
                self._object_to("bad_unicode", "A string holds half of a surrogate pair. Write the whole character.")
        return whole, position + 1

    def _escape(self, position: int) -> tuple[str, int]:
        letter = self.text[position + 1 : position + 2]
        if letter in _ESCAPES:
            return _ESCAPES[letter], position + 2
        if letter == "u":
            digits = _HEX.match(self.text, position + 2)
            if digits:
                return chr(int(digits[0], 16)), position + 6
        rest = self.text[position:]
        if re.fullmatch(r"\\(?:u[0-9a-fA-F]{0,3})?", rest):
            position = len(self.text)
        raise self._wrong(position, "a JSON escape; a backslash itself is written \\\\")

    def _object_to(self, kind: str, message: str) -> None:
        self.objection = self.objection or CallError(kind, message)

    def _wrong(self, position: int, expected: str) -> _StopReading:
        rest = self.text[position : position + 10]
        at_end = position + len(rest) == len(self.text)
        if at_end and (_UNFINISHED_NUMBER.fullmatch(rest) or any(word.startswith(rest) for word in _WORDS)):
            message = "The call was cut off before its JSON ended. Write the whole call, shorter if need be."
            return _StopReading("truncated_call", message, len(self.text))
        message = (
            f"The call is not valid JSON: expected {expected} at {rest!r}. Nothing is repaired; write strict JSON."
        )
        return _StopReading("malformed_json", message, position)
