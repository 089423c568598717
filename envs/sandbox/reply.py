"""Reading a worker's replies. Whatever runs in the worker is hostile, so these bytes may be anything.

A frame is four bytes of length, little-endian, and that many bytes of JSON. A reply is one frame, bounded, with exactly
the fields below, each of exactly its type, and the id that was asked for.
"""

from __future__ import annotations

import struct
from json import JSONDecoder, dumps
from typing import Any, NamedTuple

__all__ = ["HELLO", "LENGTH", "Reply", "ReplyError", "frame", "max_frame", "read_reply"]

LENGTH = struct.Struct("<I")
HELLO = LENGTH.pack(0)
"""The first thing a worker says: every layer of its jail is up."""

STATUSES = ("ok", "error", "exit", "memory", "refused")
MAX_ERROR = 12_000  # characters of type, message and traceback together, which the worker keeps to

_FIELDS: dict[str, type] = {
    "id": str,
    "status": str,
    "value": str,
    "tail": str,
    "dropped": int,
    "type": str,
    "message": str,
    "traceback": str,
    "exit_code": int,
}


class Reply(NamedTuple):
    """A well-formed reply; what its texts say is still only a claim of whatever runs in there."""

    status: str
    value: str
    tail: str
    dropped: int
    type: str
    message: str
    traceback: str
    exit_code: int


class ReplyError(ValueError):
    """These bytes are not the one reply that was asked for, or its beginning."""


def max_frame(output: int) -> int:
    """Return the most bytes of a reply that shows ``output`` characters of value.

    JSON in ASCII takes up to 12 bytes a character.
    """
    return 12 * (output + MAX_ERROR) + 1024


def frame(body: dict[str, Any]) -> bytes:
    """Return ``body`` as a frame."""
    data = dumps(body).encode("ascii")
    return LENGTH.pack(len(data)) + data


def read_reply(data: bytes | bytearray, expected: str, limit: int) -> Reply | None:
    """Read all that has come since the request was sent.

    Args:
        data: The bytes.
        expected: Id of the request.
        limit: Most bytes of the body, as :func:`max_frame` gives it.

    Returns:
        The reply, or ``None`` when more must come.

    Raises:
        ReplyError: It is something else, or more than a reply.
    """
    if len(data) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack_from(data)
    if length > limit:
        raise ReplyError(f"a frame of {length} bytes, allowed are {limit}")
    end = LENGTH.size + length
    if len(data) > end:
        raise ReplyError(f"{len(data) - end} bytes after the frame")
    if len(data) < end:
        return None
    try:
        body = _decode(data[LENGTH.size :].decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise ReplyError(f"not JSON: {type(error).__name__}") from None
    if type(body) is not dict or body.keys() != _FIELDS.keys():
        raise ReplyError("not the fields of a reply")
    for name, kind in _FIELDS.items():
        if type(body[name]) is not kind:
            raise ReplyError(f"{name} is a {type(body[name]).__name__}")
    if body.pop("id") != expected:
        raise ReplyError("the id of another request")
    if body["status"] not in STATUSES or not 0 <= body["dropped"] < 1 << 62 or not 0 <= body["exit_code"] <= 0xFF:
        raise ReplyError("a field out of range")
    if body["status"] == "ok" and (body["type"] or body["message"] or body["traceback"]):
        raise ReplyError("an error beside success")
    return Reply(**body)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) != len(pairs):
        raise ValueError("a name twice")
    return body


_decode = JSONDecoder(object_pairs_hook=_once).decode
