"""Landlock: which files a worker may open, whatever its user may. Jail side: standard library only.

Everything the running kernel can handle is denied, then a few rights are given back below a few paths: reading in some
trees, also making, writing and removing files in others. Never given: running a program, making a device, socket, pipe
or symbolic link, device commands, TCP, abstract Unix sockets and signals to processes outside.

Landlock does not see calls that only ask about a path or change a file's mode, owner or times, nor files opened with
``O_PATH``: the call filter (:mod:`trajgym.envs.sandbox.seccomp`) refuses those.

Source: the kernel's Documentation/userspace-api/landlock.rst; include/uapi/linux/landlock.h.
"""

from __future__ import annotations

import functools
import os
import stat
import struct
from collections.abc import Iterable

from trajgym.envs.sandbox.machine import no_new_privs, syscall

__all__ = ["abi", "restrict"]

_NEWEST_ABI = 7  # a later one keeps all that this one has
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_REMOVE_DIR = 1 << 4
_REMOVE_FILE = 1 << 5
_MAKE_DIR = 1 << 7
_MAKE_REG = 1 << 8
_REFER = 1 << 13  # rename or link from one folder to another
_TRUNCATE = 1 << 14

_READ = _READ_FILE | _READ_DIR
_WRITE = _READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
_ON_A_FILE = _READ_FILE | _WRITE_FILE | _TRUNCATE

_ALL_TCP = 0b11  # bind, connect
_ALL_SCOPES = 0b11  # abstract Unix sockets, signals
_NO_LOG = 1  # what a worker tries must not fill the host's audit log


@functools.cache
def abi() -> int:
    """Return the version of Landlock that this kernel has; 0 where it is absent or switched off."""
    try:
        return syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def _file_rights(version: int) -> int:
    """Return every right on files that a version handles: rights were only ever added, at the upper end."""
    count = 13 + (version >= 2) + (version >= 3) + (version >= 5)
    return (1 << count) - 1


def _ruleset(version: int) -> bytes:
    """Return what to handle. The kernel refuses a structure longer than the one it knows."""
    words = [_file_rights(version)]
    if version >= 4:
        words.append(_ALL_TCP)
    if version >= 6:
        words.append(_ALL_SCOPES)
    return struct.pack(f"={len(words)}Q", *words)


def restrict(*, read: Iterable[str], write: Iterable[str]) -> int:
    """Deny this process, for good, all but the given paths; a second call can only take away more.

    Descriptors that are already open stay as they are.

    Args:
        read: Folders to read and list with all below them, and single files to read. A missing one is skipped.
        write: The same for paths to read, write, make, rename and remove files and folders in.

    Returns:
        The version of Landlock in force: what a kernel older than version 7 leaves open differs (no limit on truncating
        before 3, on TCP before 4, on device commands before 5, on signals and abstract sockets before 6).

    Raises:
        OSError: No Landlock (``ENOSYS``, ``EOPNOTSUPP``), or a path cannot be opened or given.
    """
    version = min(abi(), _NEWEST_ABI)
    handled = _ruleset(version)
    ruleset = syscall("landlock_create_ruleset", handled, len(handled), 0)
    try:
        for path in read:
            try:
                _give(ruleset, path, _READ)
            except FileNotFoundError:
                continue
        for path in write:
            _give(ruleset, path, _WRITE & _file_rights(version))
        no_new_privs()
        syscall("landlock_restrict_self", ruleset, _NO_LOG if version >= 7 else 0)
    finally:
        os.close(ruleset)
    return version


def _give(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _ON_A_FILE
        rule = struct.pack("=Qi", rights, descriptor)
        syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
