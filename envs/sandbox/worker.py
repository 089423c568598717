"""The loop of a worker, inside the jail: one request, one cell, one reply.

The policy's code runs in this very process and may change anything in it, so the host believes nothing that comes out.
What the loop itself needs is bound here, before any such code runs, so that a careless program does not end its
session.
"""

from __future__ import annotations

from collections.abc import Iterator
from json import JSONDecoder
from os import _exit, read, write
from typing import Any, NoReturn

from trajgym.envs.sandbox.cell import Notebook
from trajgym.envs.sandbox.reply import HELLO, LENGTH, frame

__all__ = ["serve"]

_CHUNK = 1 << 16
_decode = JSONDecoder().decode


def serve(control: int, notebook: Notebook, limit: int) -> NoReturn:
    """Answer requests until the host closes the channel.

    Args:
        control: Descriptor of the channel.
        notebook: Runs the cells.
        limit: Most characters of a value that is echoed.
    """
    _send(control, HELLO)
    for m in _requests(control):
        if "seed" in m:
            notebook.seed(m["seed"])
        else:
            _send(control, frame({"id": m["id"], **notebook.run(m["code"], limit)}))
    _exit(0)


def _requests(control: int) -> Iterator[dict[str, Any]]:
    """Yield what the host sends until it closes the channel."""
    data = b""
    while part := read(control, _CHUNK):
        data += part
        while len(data) >= LENGTH.size and len(data) >= (end := LENGTH.size + LENGTH.unpack_from(data)[0]):
            yield _decode(data[LENGTH.size : end].decode("ascii"))
            data = data[end:]


def _send(control: int, data: bytes) -> None:
    while data:
        data = data[write(control, data) :]
