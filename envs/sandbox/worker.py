"""The loop of a worker, inside the jail: one request, one cell, one reply.

The policy's code runs in this very process and may change anything in it, so the host believes nothing that comes out.
What the loop itself needs is bound here, before any such code runs, so that a careless program does not end its
session.
"""

from __future__ import annotations

from json import loads
from os import _exit, read, write
from typing import NoReturn

from trajgym.envs.sandbox.cell import Notebook
from trajgym.envs.sandbox.reply import HELLO, LENGTH, frame

__all__ = ["serve"]


def serve(control: int, notebook: Notebook, limit: int) -> NoReturn:
    """Answer requests until the host closes the channel.

    Args:
        control: Descriptor of the channel.
        notebook: Runs the cells.
        limit: Most characters of a value that is echoed.
    """
    _send(control, HELLO)
    while True:
        (length,) = LENGTH.unpack(_receive(control, LENGTH.size))
        m = loads(_receive(control, length))
        if "seed" in m:
            notebook.seed(m["seed"])
        else:
            _send(control, frame({"id": m["id"], **notebook.run(m["code"], limit)}))


def _send(control: int, data: bytes) -> None:
    while data:
        data = data[write(control, data) :]


def _receive(control: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = read(control, size - len(data))
        if not part:
            _exit(0)
        data += part
    return data
