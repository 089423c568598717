"""The rows of a file: JSON objects, one a line or in one array, and which lines hold none."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, BinaryIO

from trajgym.errors import ConfigError

__all__ = ["BadRow", "UnusableError", "kind_of", "read_objects"]

_ARRAY = "Write JSON Lines, one object a line, or one array of objects."


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be graded, and why."""

    line: int
    reason: str


class UnusableError(Exception):
    """A row cannot be used; the message says why."""


def read_objects(file: BinaryIO) -> Iterator[tuple[int, dict[str, Any]] | BadRow]:
    """Yield each object of a file with its line, or with its place in the array, from 1.

    Args:
        file: JSON objects, one a line; or a single JSON document: an array of objects, or one object.

    Raises:
        ConfigError: When it is an array that cannot be read.
    """
    lines = enumerate(file, start=1)
    first = next(((line, raw) for line, raw in lines if raw.strip()), None)
    if first is None:
        return
    if not _is_object(first[1]):
        rest = b"".join(raw for _, raw in lines)
        document = _document(first[1] + rest)
        if document is not None:
            yield from (_checked(place, item) for place, item in enumerate(document, start=1))
            return
        lines = enumerate(rest.splitlines(keepends=True), start=first[0] + 1)
    for line, raw in itertools.chain([first], lines):
        if raw.strip():
            try:
                yield _checked(line, _parsed(raw))
            except UnusableError as unusable:
                yield BadRow(line, str(unusable))


def kind_of(value: Any) -> str:
    """Return what a JSON value is, for messages."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _is_object(raw: bytes) -> bool:
    try:
        return isinstance(_parsed(raw), dict)
    except UnusableError:
        return False


def _document(text: bytes) -> list[Any] | None:
    """Return the rows of a file that is one JSON document, ``None`` when it is none.

    Raises:
        ConfigError: When it begins as an array of objects and is cut or broken.
    """
    try:
        document = _parsed(text)
    except UnusableError as unusable:
        start = text.removeprefix(b"\xef\xbb\xbf").split()
        if start[0].startswith(b"[{") or start[:2] == [b"[", b"{"]:
            raise ConfigError(f"The file is an array of JSON that cannot be read: {unusable}. {_ARRAY}") from unusable
        return None
    if isinstance(document, dict):
        return [document]
    # A list of anything else is taken for a line that is no row.
    return document if isinstance(document, list) and any(isinstance(item, dict) for item in document) else None


def _checked(line: int, row: Any) -> tuple[int, dict[str, Any]] | BadRow:
    return (line, row) if isinstance(row, dict) else BadRow(line, f"not a JSON object but {kind_of(row)}")


def _parsed(raw: bytes) -> Any:
    try:
        # Decimals, since a float would round what stands in the file.
        return json.loads(
            raw.decode("utf-8-sig"), parse_float=Decimal, parse_constant=_refuse, object_pairs_hook=_unique
        )
    except UnicodeDecodeError as error:
        raise UnusableError(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"not JSON: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UnusableError(f"the key {twice!r} occurs twice, so it is not known which value is meant")
    return row


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number")
