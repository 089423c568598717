"""Calls written as Python, ``[name(argument=literal), …]``: read without running anything, written to read back.

A list is first cut into its elements by a scanner that knows only strings and brackets. Each element is then checked
word by word, and only what consists of names and literals is handed to :mod:`ast`, which builds the values. So depth
and size are bounded before ``ast`` sees a text, it has nothing to warn of, and a bad element spoils no other.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trajgym.protocols.checking import checked_call
from trajgym.protocols.reasoning import CLOSING
from trajgym.protocols.strict_json import MAX_DEPTH, MAX_DIGITS, write_json
from trajgym.types import CallError, ToolCall, ToolSpec

__all__ = ["MAX_CHARACTERS", "OPENING", "CallList", "read_call", "scan_list", "write_call"]

MAX_CHARACTERS = 100_000  # of one call; a syntax tree takes about a hundred times the memory of its text
OPENING = r"\[\s*[^\W\d]\w*(?:\.\w+)*\("
"""Pattern of how a list of calls begins."""

# Unrolled, so that a string of any length matches without a step back.
_STRING = (
    r'"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'
    r"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"
    r'|"(?!"")[^"\\\n]*(?:\\.[^"\\\n]*)*"'
    r"|'(?!'')[^'\\\n]*(?:\\.[^'\\\n]*)*'"
)
_WHOLE_STRING = re.compile(_STRING, re.DOTALL)
_PLAIN = re.compile(r"[^\"'()\[\]{},]*")
_LIST = re.compile(OPENING)
_LINE_BEGINS = re.compile(rf"(?:\n|{CLOSING})[ \t]*\Z")
_CLOSING = {"(": ")", "[": "]", "{": "}"}

_WORD = re.compile(
    rf"""\s+
    | (?P<prefix>[rRuU]?)(?P<string>{_STRING})
    | (?P<number>(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9_]+)?)(?![\w.])
    | (?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)(?![\w"'])
    | [][(){{}},:=-]""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([4-7][0-7]{2}|.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("\n\\'\"abfnrtv01234567xuUN")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NOTHING = CallError("malformed_call", "There is nothing between two commas. Write name(argument=value).")
_ONLY = "Arguments are literals: strings, numbers, True, False, None, lists and dicts. Nothing is computed."


@dataclass(frozen=True)
class CallList:
    """What stands behind an opening bracket.

    Args:
        elements: The source of each complete element.
        end: The position behind the list, or where reading had to stop.
        error: What is wrong behind the last of them: ``truncated_call``, ``malformed_call`` or ``too_deep``.
    """

    elements: tuple[str, ...]
    end: int
    error: CallError | None = None


def scan_list(text: str, start: int) -> CallList:
    """Find the end and the elements of the list whose opening bracket stands at ``start``.

    The end of the text, or the next list, can stand for the closing bracket.
    """
    elements: list[str] = []
    brackets = ["]"]  # what closes those that are open
    begin = position = start + 1
    while brackets:
        plain = _PLAIN.match(text, position)
        assert plain is not None
        position = plain.end()
        sign = text[position : position + 1]
        # On a line of its own begins the next list: no argument looks like it.
        line_start = sign == "[" and _LINE_BEGINS.search(plain[0])
        if not sign or (line_start and _LIST.match(text, position)):
            last = text[begin : plain.end()].rstrip()
            if len(brackets) == 1 and last.endswith(")"):
                return CallList((*elements, last), plain.start())
            return CallList(tuple(elements), plain.start() if sign else position, _cut())
        if sign in "\"'":
            string = _WHOLE_STRING.match(text, position)
            if string is None:
                return CallList(tuple(elements), *_unfinished_string(text, position))
            position = string.end()
            continue
        if sign in _CLOSING:
            if len(brackets) == MAX_DEPTH:
                message = f"The call nests more than {MAX_DEPTH} levels. Nest less."
                return CallList(tuple(elements), position, CallError("too_deep", message))
            brackets.append(_CLOSING[sign])
        elif sign != "," and sign != brackets.pop():
            error = CallError("malformed_call", f"The bracket {sign!r} does not close the one that is open.")
            return CallList(tuple(elements), position, error)
        if not brackets or (len(brackets) == 1 and sign == ","):
            elements.append(text[begin:position])
            begin = position + 1
        position += 1
    if not elements[-1].strip():
        elements.pop()  # a comma may stand behind the last element
    return CallList(tuple(elements), position)


def _cut() -> CallError:
    return CallError("truncated_call", "The list of calls was cut off. Write the whole list.")


def _unfinished_string(text: str, position: int) -> tuple[int, CallError]:
    line_end = text.find("\n", position)
    if line_end < 0 or text.startswith(('"""', "'''"), position):
        return len(text), _cut()
    message = "A string does not end on its line. Write line breaks in it as \\n."
    return line_end, CallError("malformed_call", message)


def read_call(source: str, tools: Mapping[str, ToolSpec]) -> ToolCall | CallError:
    """Turn ``name(argument=literal, …)`` into a call.

    Returns:
        The call without an id, or the first thing wrong with it.
    """
    if not source.strip():
        return _NOTHING
    try:
        name, arguments = _parts(source)
    except _NotACall as wrong:
        return wrong.error
    return checked_call(name, arguments, tools)


def write_call(call: ToolCall) -> str:
    """Write a call; one that Python cannot spell, such as an argument named ``class``, does not read back.

    Raises:
        ConfigError: When an argument is not a JSON value.
    """
    write_json(dict(call.arguments))
    return f"{call.name}({', '.join(f'{key}={_literal(value)}' for key, value in call.arguments.items())})"


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    # Every escape of JSON is one of Python's too.
    return write_json(value) if isinstance(value, str) else repr(value)


class _NotACall(Exception):
    """A jump out of reading, caught in :func:`read_call`."""

    def __init__(self, message: str, kind: str = "malformed_call") -> None:
        super().__init__(message)
        self.error = CallError(kind, message)


def _parts(source: str) -> tuple[str, dict[str, Any]]:
    if len(source) > MAX_CHARACTERS:
        raise _NotACall(f"A call has more than {MAX_CHARACTERS} characters. Write a shorter one.")
    if _SURROGATE.search(source):
        raise _NotACall("The call holds half of a surrogate pair. Write the whole character.", "bad_unicode")
    try:
        # In brackets, since line breaks may stand anywhere within a list.
        node = ast.parse(f"({''.join(_words(source))}\n)", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise _NotACall(
            f"The call is not valid Python: {source.strip()[:40]!r}. Write name(argument=value)."
        ) from error
    if isinstance(node, (ast.Constant, ast.List, ast.Dict, ast.UnaryOp)):
        raise _NotACall(f"A call is name(argument=value), got {source.strip()[:40]!r}.", "bad_call_shape")
    if not isinstance(node, ast.Call):
        raise _NotACall(f"A call is name(argument=value), got {source.strip()[:40]!r}.")
    if node.args:
        raise _NotACall("Give every argument by its name: name(argument=value).")
    arguments: dict[str, Any] = {}
    for given in node.keywords:
        assert given.arg is not None  # there are no stars among the words
        if given.arg in arguments:
            raise _NotACall(f"The argument {given.arg[:40]!r} is given twice. Give it once.", "duplicate_key")
        arguments[given.arg] = _value(given.value)
    return _name(node.func), arguments


def _words(source: str) -> Iterator[str]:
    """Check that there are only names, literals and brackets; yield them, escapes unknown to Python spelled out."""
    position = 0
    while position < len(source):
        word = _WORD.match(source, position)
        if word is None or (keyword.iskeyword(word["name"] or "") and word["name"] not in ("True", "False", "None")):
            raise _NotACall(f"{source[position : position + 20]!r} cannot stand in a call. {_ONLY}")
        if word["number"] and len(word[0]) > MAX_DIGITS and not re.search("[.eE]", word[0]):
            message = f"A number has more than {MAX_DIGITS} digits. Use a smaller number."
            raise _NotACall(message, "number_too_large")
        escaped = word["string"] and word["prefix"] not in ("r", "R") and "\\" in word[0]
        yield _ESCAPE.sub(_known_escape, word[0]) if escaped else word[0]
        position = word.end()


def _known_escape(escape: re.Match[str]) -> str:
    if len(escape[1]) == 3:
        raise _NotACall(f"{escape[0]} is no character. Write the character itself.")
    return escape[0] if escape[1] in _KNOWN_ESCAPES else "\\" + escape[0]


def _name(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise _NotACall("A call begins with the tool's name.")
    return ".".join([node.id, *reversed(parts)])


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() as text):
            if _SURROGATE.search(text):
                raise _NotACall("A string holds half of a surrogate pair. Write the whole character.", "bad_unicode")
            return text
        case ast.Constant(value=bool() | None | int() as value):
            return value
        case ast.Constant(value=float() as number):
            if math.isinf(number):
                raise _NotACall("A number is too large for a float. Use a smaller number.", "non_finite_number")
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if number is not True:
            return -_value(node.operand)
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return _dict(keys, values)
    raise _NotACall(_ONLY)


def _dict(keys: list[ast.expr | None], values: list[ast.expr]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in zip(keys, values, strict=True):
        name = _value(key) if key is not None else None
        if not isinstance(name, str):
            raise _NotACall("The keys of a dict are strings.")
        if name in found:
            raise _NotACall(f"The key {name[:40]!r} is given twice. Give each key once.", "duplicate_key")
        found[name] = _value(value)
    return found
