"""What a worker does to itself between the fork and the policy's first line. None of it can be undone."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trajgym.envs.sandbox import landlock, machine, namespaces, seccomp, stored

__all__ = ["CONTROL", "LAYERS", "Jail", "call_filter", "take_descriptors"]

LAYERS = ("namespaces", "landlock", "seccomp", "rlimits", "capabilities")

CONTROL = 3
"""Descriptor of the reply channel in a worker; 0 is empty input, 1 and 2 are the output pipe, and there is no other."""

_OPEN_FILES = 32
_SIGNALS = 64
_ENVIRONMENT = {"LANG": "C.UTF-8", "MPLBACKEND": "Agg", "PATH": "", "PYTHONHASHSEED": "0", "TZ": "UTC"}


@dataclass(frozen=True)
class Jail:
    """The layers that every worker of a pool gets.

    Args:
        layers: Those that are on, of :data:`LAYERS`.
        read: Files and folders a worker may read.
        base: Bytes of address space of the interpreter before it runs anything.
        files: What the import system may know of the host's files where a worker may not ask; see :mod:`stored`.
        calls: The system-call filter where it is the same for all workers, else made by each for itself.
    """

    layers: frozenset[str]
    read: Sequence[str]
    base: int
    files: stored.Files | None
    calls: bytes | None

    def enter(self, order: Mapping[str, int | str | None]) -> None:
        """Put the layers on.

        Args:
            order: What the host asks for: ``memory``, ``scratch``, ``folder``, ``session_cpu``.

        Raises:
            OSError: A layer cannot be put on; nothing may run then.
        """
        memory, scratch, seconds = (int(order[name] or 0) for name in ("memory", "scratch", "session_cpu"))
        folder = namespaces.SCRATCH if "namespaces" in self.layers else order["folder"]
        os.setsid()
        if "namespaces" in self.layers:
            namespaces.private_scratch(scratch)
        else:
            os.chdir(str(folder or "/"))
        os.environ.clear()
        place = str(folder or "/")
        os.environ.update(_ENVIRONMENT, HOME=place, TMPDIR=place)
        if "rlimits" in self.layers:
            _limit(memory + self.base, scratch, seconds)
        if "capabilities" in self.layers:
            machine.drop_capabilities()
            machine.set_dumpable(False)
        machine.no_new_privs()
        if "landlock" in self.layers:
            landlock.restrict(read=self.read, write=[os.devnull, *([str(folder)] if folder and scratch else [])])
        if self.files is not None:
            stored.install(self.files)
        if "seccomp" in self.layers:
            seccomp.install(self.calls or call_filter(os.getpid(), paths=False))


def call_filter(pid: int, *, paths: bool) -> bytes:
    """Return the filter for a worker; see :func:`trajgym.envs.sandbox.seccomp.program`."""
    this = machine.this_machine()
    if this is None:
        raise OSError(errno.ENOSYS, "the system calls of this machine are not known")
    return seccomp.program(this, pid=pid, paths=paths)


def take_descriptors(control: int, output: int) -> None:
    """Arrange the descriptors of a worker as :data:`CONTROL` says and close all others.

    The given numbers may be anything, also those that are wanted, so they first move out of the way.
    """
    # Opened by each for itself: the flags of one open file are seen and set by all who share it.
    empty = os.open(os.devnull, os.O_RDONLY)
    control, output, empty = (fcntl.fcntl(d, fcntl.F_DUPFD, 16) for d in (control, output, empty))
    for source, target in ((empty, 0), (output, 1), (output, 2), (control, CONTROL)):
        os.dup2(source, target, inheritable=False)
    machine.close_from(CONTROL + 1)


def _limit(memory: int, file: int, seconds: int) -> None:
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, file),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_SIGPENDING, _SIGNALS),  # counted with those of the host's user
    ):
        resource.setrlimit(what, (most, most))
