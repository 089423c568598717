"""The kernel, called by number. Jail side: standard library only.

Python 3.11 has no ``mount``, ``unshare``, ``prctl``, ``seccomp`` or ``landlock``, and not every C library has them all,
so each goes through the C library's ``syscall``. A call that fails raises :class:`OSError` with the kernel's errno.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from trajgym.envs.sandbox import syscalls

__all__ = [
    "AARCH64",
    "CLONE_NEWCGROUP",
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWUSER",
    "CLONE_NEWUTS",
    "MNT_DETACH",
    "MOUNT_ATTR_NODEV",
    "MOUNT_ATTR_NOEXEC",
    "MOUNT_ATTR_NOSUID",
    "MOUNT_ATTR_RDONLY",
    "MS_BIND",
    "MS_NODEV",
    "MS_NOEXEC",
    "MS_NOSUID",
    "MS_PRIVATE",
    "MS_RDONLY",
    "MS_REC",
    "MS_REMOUNT",
    "X86_64",
    "Machine",
    "close_from",
    "death_signal",
    "drop_capabilities",
    "mount",
    "mount_setattr",
    "no_new_privs",
    "pivot_root",
    "seal_capabilities",
    "set_dumpable",
    "setns",
    "syscall",
    "this_machine",
    "umount",
    "unshare",
]

CLONE_NEWNS = 0x20000
CLONE_NEWCGROUP = 0x2000000
CLONE_NEWUTS = 0x4000000
CLONE_NEWIPC = 0x8000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4

# No capabilities for root, none kept or raised over a change of uid, and each of these switches locked.
_SECUREBITS = 0xEF
_CAPABILITY_VERSION = 0x20080522
_LAST_DESCRIPTOR = 0xFFFFFFFF


@dataclass(frozen=True)
class Machine:
    """A processor as the kernel's call filter sees it.

    Args:
        name: What ``uname`` says, ``"x86_64"`` or ``"aarch64"``.
        audit_arch: The kernel's number for this way of making calls; a 32-bit call on the same processor has another.
        calls: Call name → number, of the calls that the jail makes or lets through.
        x32: Whether a second table of calls hides behind numbers from 2^30 on.
    """

    name: str
    audit_arch: int
    calls: Mapping[str, int]
    x32: bool


X86_64 = Machine("x86_64", 0xC000003E, syscalls.X86_64, x32=True)
AARCH64 = Machine("aarch64", 0xC00000B7, syscalls.AARCH64, x32=False)


@functools.cache
def this_machine() -> Machine | None:
    """Return the machine this Python runs on, or None where the jail does not know the call numbers.

    None also for a 32-bit Python on a 64-bit kernel (its calls have other numbers) and for big-endian processors.
    """
    if sys.platform != "linux" or sys.byteorder != "little" or struct.calcsize("P") != 8:
        return None
    return {machine.name: machine for machine in (X86_64, AARCH64)}.get(os.uname().machine)


@functools.cache
def _libc_syscall() -> Callable[..., int]:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    return function


def syscall(call: str | int, *args: int | bytes | None) -> int:
    """Make a system call.

    Args:
        call: Its name, or its number on this machine.
        args: Integers (also addresses), ``bytes`` for a pointer to a copy that the kernel only reads, None for NULL.

    Returns:
        What the kernel returns, never negative.

    Raises:
        OSError: The kernel's errno; ``ENOSYS`` where this machine does not have the call.
    """
    if isinstance(call, int):
        number: int | None = call
    else:
        machine = this_machine()
        number = machine.calls.get(call) if machine else None
    if number is None:
        raise OSError(errno.ENOSYS, f"{call}: no such system call on this machine")
    # Bare integers would be passed as 32-bit ints.
    words = [ctypes.c_long(arg) if isinstance(arg, int) else ctypes.c_char_p(arg) for arg in args]
    result = _libc_syscall()(ctypes.c_long(number), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
    return result


def _prctl(option: int, value: int = 0) -> None:
    # The options used here insist on zeros in the arguments they do not use.
    syscall("prctl", option, value, 0, 0, 0)


def no_new_privs() -> None:
    """Give up, for good, every way to gain privileges by exec; unprivileged filters need it."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def set_dumpable(dumpable: bool) -> None:
    """Say whether same-user processes may trace this one and read its memory through ``/proc``."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def death_signal(sig: int) -> None:
    """Have the kernel send ``sig`` when the *thread* that forked this process ends."""
    _prctl(_PR_SET_PDEATHSIG, sig)


def seal_capabilities() -> None:
    """Let no later program of this process or its children have more capabilities than it is given, where permitted."""
    # Locks and the bounding set take CAP_SETPCAP; a process without it has nothing that they would take away.
    with suppress(PermissionError):
        _prctl(_PR_SET_SECUREBITS, _SECUREBITS)
    with suppress(PermissionError):
        for capability in range(64):
            try:
                _prctl(_PR_CAPBSET_DROP, capability)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                break  # past the last capability this kernel knows


def drop_capabilities() -> None:
    """Give up every capability: effective, permitted, inheritable and ambient.

    Raises:
        OSError: The kernel kept some.
    """
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    syscall("capset", struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24))


def close_from(descriptor: int) -> None:
    """Close ``descriptor`` and every one above it."""
    syscall("close_range", descriptor, _LAST_DESCRIPTOR, 0)


def unshare(flags: int) -> None:
    """Move this process (for ``CLONE_NEWPID``: its next children) into new namespaces, by ``CLONE_NEW*`` flags."""
    syscall("unshare", flags)


def setns(descriptor: int, flags: int) -> None:
    """Enter the namespaces of kinds ``flags`` of the process behind a pidfd, or the one that a namespace file names."""
    syscall("setns", descriptor, flags)


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """Mount a file system of ``kind`` on ``target``, or bind or change one, as the ``MS_*`` flags say."""
    syscall("mount", _name(source), _name(target), _name(kind), flags, _name(data))


def umount(target: str, flags: int = MNT_DETACH) -> None:
    """Take away what is mounted on ``target``; by default it stays alive for those who still use it."""
    syscall("umount2", _name(target), flags)


def pivot_root(new: str, old: str) -> None:
    """Make the mount ``new`` the root of this mount namespace and put the former root at ``old``."""
    syscall("pivot_root", _name(new), _name(old))


def mount_setattr(target: str, attributes: int, *, recursive: bool = True) -> None:
    """Add ``MOUNT_ATTR_*`` attributes to the mount at ``target``, and to those below it.

    Raises:
        OSError: The mount is not this namespace's to change; ``ENOSYS`` before Linux 5.12.
    """
    added = struct.pack("=QQQQ", attributes, 0, 0, 0)
    syscall("mount_setattr", _AT_FDCWD, _name(target), _AT_RECURSIVE if recursive else 0, added, len(added))


def _name(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)
