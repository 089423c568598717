"""A few harmless attacks, run at every start: what a layer promises must be seen to hold on this very machine."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence

from trajgym.envs.sandbox.limits import MEBIBYTE
from trajgym.envs.sandbox.session import Session

__all__ = ["PROBES", "misses"]

# Each probe tries one thing that must not work, and is True when it did not.
_PRELUDE = """
import ctypes, fcntl, os, signal, socket, resource, sys
_c = ctypes.CDLL(None, use_errno=True)
def refused(attempt):
    try:
        attempt()
    except (OSError, ValueError, MemoryError):
        return True
    return False
"""

PROBES: dict[str, str] = {
    "reads a file of the host": "refused(lambda: open({canary!r}).read())",
    "writes a file of the host": "refused(lambda: open({canary!r}, 'r+').close())",
    "makes a file beside it": "refused(lambda: open({canary!r} + '.new', 'x').close())",
    "asks about a file of the host": "refused(lambda: os.stat({canary!r}))",
    "changes the mode of a file of the host": "refused(lambda: os.chmod({canary!r}, 0o600))",
    "changes the times of a file of the host": "refused(lambda: os.utime({canary!r}, (1, 1)))",
    "reads its own environment from /proc": "refused(lambda: open('/proc/self/environ', 'rb').read())",
    "lists the root": "refused(lambda: os.listdir('/'))",
    "connects over TCP": "refused(lambda: socket.create_connection(('127.0.0.1', {port}), 1))",
    "makes a UDP socket": "refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))",
    "connects to an abstract socket": "refused(lambda: socket.socket(socket.AF_UNIX).connect('\\0' + {name!r}))",
    "signals the host": "refused(lambda: os.kill({pid}, 0))",
    "signals everybody": "refused(lambda: os.kill(-1, 0))",
    "forks": "refused(lambda: os._exit(0) if os.fork() == 0 else None)",
    "starts a program": "_c.execve(b'/proc/self/exe', None, None) == -1 and ctypes.get_errno() == 1",
    "traces the host": "_c.ptrace(16, {pid}, 0, 0) == -1 and _c.process_vm_readv({pid}, None, 0, None, 0, 0) == -1",
    "sets a timer": "refused(lambda: signal.setitimer(signal.ITIMER_REAL, 1000))",
    "raises its limits": "refused(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096)))",
    "makes namespaces": "_c.unshare(0x10000000) == -1 and _c.unshare(0x20000) == -1",
    "becomes root": "refused(lambda: os.setuid(0)) and refused(lambda: os.setgroups([0]))",
    "has a descriptor too many": "all(refused(lambda: fcntl.fcntl(d, fcntl.F_GETFD)) for d in range(4, 64))",
    "has a variable of the host": "not set(os.environ) - {variables!r}",
    "takes more memory than it may": "refused(lambda: bytearray({memory}))",
}

_VARIABLES = {"HOME", "LANG", "MPLBACKEND", "PATH", "PYTHONHASHSEED", "TMPDIR", "TZ"}


# What must work all the same, or programs would fail for reasons of ours.
# (A namespace package has no file.)
_NEEDS = "import xml.dom.minidom as dom, {names}; all(open(m.__file__).read(1) for m in (dom, {names}) if m.__file__)"


def misses(session: Session, packages: Sequence[str]) -> list[str]:
    """Run the probes and return those that got through, in words; a probe that does not answer counts as well.

    Args:
        session: A throw-away session.
        packages: Those that code may import.
    """
    with _canaries() as facts:
        values = {**facts, "memory": session.limits.memory + 64 * MEBIBYTE, "variables": _VARIABLES}
        session.call(_PRELUDE)
        found = [name for name, code in PROBES.items() if session.call(code.format(**values)).output != "True"]
    needs = session.call(_NEEDS.format(names=", ".join(["json", *packages])))
    if needs.output != "True":
        found.append(f"cannot read what it may import ({needs.message or needs.output})")
    return found


@contextlib.contextmanager
def _canaries() -> Iterator[dict[str, object]]:
    """Things of the host to reach for: a file that everybody may read, listening sockets, this process."""
    with (
        tempfile.TemporaryDirectory(prefix="trajgym-selftest-") as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        os.chmod(folder, 0o777)  # noqa: S103  (file permissions must not do the work of the jail)
        canary = f"{folder}/canary"
        with open(canary, "w") as file:
            file.write("tweet")
        os.chmod(canary, 0o666)  # noqa: S103
        name = f"trajgym-selftest-{os.getpid()}-{id(unix)}"
        unix.bind("\0" + name)
        unix.listen()
        yield {"canary": canary, "port": server.getsockname()[1], "name": name, "pid": os.getpid()}
