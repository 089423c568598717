"""The list of system calls a worker may still make, as a program for the kernel. Jail side: standard library only.

What a call is allowed for:

* computing, reading and writing through descriptors, and opening files: mounts and Landlock decide which ones;
* asking about a path (``stat`` and its kin) only where every path is the jail's own: Landlock does not cover it;
* changing a file's mode, owner, times or attributes never: Landlock does not cover that either;
* nothing that makes a process, a thread, a socket, a timer or memory that another process could open, nothing that
  runs code after a call, and nothing that two workers could use on a file they both read (locks, leases, shared
  futexes).

Comparing arguments. An argument comes in a 64-bit register, and the caller chooses all of it. Where the kernel
declares an ``int`` (flags, commands, signals, process ids) it drops the high half, so a rule looks at the low half
alone: a high half can neither slip a forbidden value past it nor make an allowed one mean something else. Where the
kernel uses the whole register (pointers), a rule looks at both halves. What a pointer points to cannot be checked.

Source: the kernel's Documentation/userspace-api/seccomp_filter.rst; include/uapi/linux/{seccomp,filter}.h.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from trajgym.envs.sandbox.machine import Machine, no_new_privs, syscall

__all__ = ["install", "program"]

_KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000
_ALLOW = 0x7FFF0000

_SET_MODE_FILTER = 1
_ON_ALL_THREADS = 1

# Classic BPF: operation, then the data it works on.
_LOAD = 0x20  # a 32-bit word of the call's description
_JUMP = 0x05
_IF_EQUAL = 0x15
_IF_AT_LEAST = 0x35
_IF_ANY_BIT = 0x45
_RETURN = 0x06
_LONGEST = 4096  # instructions

# Where the call's description holds what: number, kind of machine, address, six arguments of 64 bits (little-endian).
_NUMBER = 0
_ARCH = 4
_ARGUMENTS = 16

_X32 = 0x40000000

# Calls from here on came after Linux 5.0: a C library that hears "no such call" goes back to an older one.
_RECENT = 424

# Memory may become executable (mmap, mprotect): an extension module is loaded that way, and new code gains nothing by
# it, since each of its calls passes here too.
_ALLOWED = """
read write readv writev pread64 pwrite64 lseek close close_range dup dup2 dup3 poll ppoll select pselect6
fstat fstatfs ftruncate getdents64 getcwd fchdir umask mkdir mkdirat rmdir unlink unlinkat rename renameat
mmap munmap mprotect mremap brk
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack pause restart_syscall
nanosleep gettimeofday time times getrusage getrlimit
getpid gettid getppid getuid geteuid getgid getegid getgroups getresuid getresgid getpgrp
uname sysinfo getcpu getrandom sched_yield exit exit_group
"""

_BY_PATH = "stat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat statfs chdir"

# The scratch folder does not outlive the session, so these have nothing to do; the disk may be the host's.
_DONE_AT_ONCE = "fsync fdatasync msync"

_O_CLOEXEC = 0o2000000
_O_NONBLOCK = 0o4000
_O_PATH = 0o10000000
_O_ASYNC = 0o20000
# Packets in pipes: the lower bit on x86-64, the higher on aarch64; the other is O_DIRECTORY there.
_O_DIRECT = 0o40000 | 0o200000
_SETUID_SETGID = 0o6000

_F_SETFL = 4
_FCNTL = (0, 1, 2, 3, _F_SETFL, 1030)  # F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_DUPFD_CLOEXEC
_IOCTL = (0x5421, 0x541B, 0x5450, 0x5451)  # FIONBIO FIONREAD FIONCLEX FIOCLEX
# FUTEX_WAIT, _WAKE, _WAIT_BITSET, _WAKE_BITSET, private to the process; the third also by the clock on the wall.
_FUTEX = (0x80, 0x81, 0x89, 0x8A, 0x189)
# MADV_NORMAL _RANDOM _SEQUENTIAL _WILLNEED _DONTNEED _FREE _HUGEPAGE _NOHUGEPAGE; none that reaches what is shared.
_MADVISE = (0, 1, 2, 3, 4, 8, 14, 15)
_PRCTL = (15, 16)  # PR_SET_NAME PR_GET_NAME
_FIRST_UNKNOWN_CLOCK = 16  # from here on, and below zero: the clocks of other processes and of devices


class _Header(ctypes.Structure):
    """Length in instructions, and the instructions."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _do(operation: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """Return one instruction; ``then`` and ``otherwise`` count the instructions to skip."""
    return struct.pack("=HBBI", operation, then, otherwise, value)


def _length(code: bytes) -> int:
    return len(code) // 8


def _refuse(code: int) -> bytes:
    return _do(_RETURN, _ERRNO | code)


_PASS = _do(_RETURN, _ALLOW)
_DENY = _refuse(errno.EPERM)
_KILL = _do(_RETURN, _KILL_PROCESS)


def _low(argument: int) -> bytes:
    return _do(_LOAD, _ARGUMENTS + 8 * argument)


def _high(argument: int) -> bytes:
    return _do(_LOAD, _ARGUMENTS + 8 * argument + 4)


# Each condition falls through to what follows it, or answers the call with an error.


def _one_of(argument: int, *values: int, refusal: bytes = _DENY) -> bytes:
    """An ``int`` argument has one of the values."""
    hits = (_do(_IF_EQUAL, value, then=len(values) - place) for place, value in enumerate(values))
    return _low(argument) + b"".join(hits) + refusal


def _without(argument: int, bits: int) -> bytes:
    """An ``int`` argument has none of the bits."""
    return _low(argument) + _do(_IF_ANY_BIT, bits, otherwise=1) + _DENY


def _below(argument: int, limit: int) -> bytes:
    """An ``int`` argument, read as unsigned, is less than the limit."""
    return _low(argument) + _do(_IF_AT_LEAST, limit, otherwise=1) + _refuse(errno.EINVAL)


def _null(argument: int) -> bytes:
    """A pointer is NULL, in both halves."""
    return _low(argument) + _do(_IF_EQUAL, 0, otherwise=2) + _high(argument) + _do(_IF_EQUAL, 0, then=1) + _DENY


def _if(argument: int, value: int, condition: bytes) -> bytes:
    """Where an ``int`` argument has the value, the condition holds too."""
    return _low(argument) + _do(_IF_EQUAL, value, otherwise=_length(condition)) + condition


def _rules(pid: int, paths: bool) -> dict[str, bytes]:
    """Return call name → what answers it; every other call is refused."""
    rules = dict.fromkeys(_ALLOWED.split(), _PASS)
    rules |= dict.fromkeys(_DONE_AT_ONCE.split(), _refuse(0))
    rules |= dict.fromkeys(_BY_PATH.split(), _PASS if paths else _refuse(errno.EACCES))
    # A descriptor opened with O_PATH passes Landlock by.
    rules["open"] = _without(1, _O_PATH) + _without(2, _SETUID_SETGID) + _PASS
    rules["openat"] = _without(2, _O_PATH) + _without(3, _SETUID_SETGID) + _PASS
    rules["creat"] = _without(1, _SETUID_SETGID) + _PASS
    rules["madvise"] = _one_of(2, *_MADVISE, refusal=_refuse(errno.EINVAL)) + _PASS
    rules["pipe"] = _PASS
    rules["pipe2"] = _without(1, ~(_O_CLOEXEC | _O_NONBLOCK) & 0xFFFFFFFF) + _PASS
    rules["fcntl"] = _one_of(1, *_FCNTL) + _if(1, _F_SETFL, _without(2, _O_ASYNC | _O_DIRECT)) + _PASS
    # Not a terminal: also the answer to TCGETS and TIOCGWINSZ, by which Python finds that out.
    rules["ioctl"] = _one_of(1, *_IOCTL, refusal=_refuse(errno.ENOTTY)) + _PASS
    rules["futex"] = _one_of(1, *_FUTEX) + _PASS
    rules["prctl"] = _one_of(0, *_PRCTL) + _PASS
    rules |= dict.fromkeys(
        ("clock_gettime", "clock_getres", "clock_nanosleep"), _below(0, _FIRST_UNKNOWN_CLOCK) + _PASS
    )
    # Only this process: what others exist is not to be known either. In these four, 0 means the caller.
    rules |= dict.fromkeys(("getpgid", "getsid", "sched_getaffinity"), _one_of(0, 0, pid) + _PASS)
    rules["prlimit64"] = _one_of(0, 0, pid) + _null(2) + _PASS
    rules |= dict.fromkeys(("kill", "tkill"), _one_of(0, pid) + _PASS)
    rules["tgkill"] = _one_of(0, pid) + _one_of(1, pid) + _PASS
    return rules


def _segments(machine: Machine, rules: dict[str, bytes]) -> list[tuple[int, bytes]]:
    """Return (first number, answer) pairs, ascending: an answer holds up to the next pair's number."""
    answers = {machine.calls[name]: answer for name, answer in rules.items() if name in machine.calls}
    starts = {0: _DENY, _RECENT: _refuse(errno.ENOSYS)}
    for number in answers:
        starts.setdefault(number + 1, _DENY if number < _RECENT else _refuse(errno.ENOSYS))
    starts |= answers
    if machine.x32:
        starts[_X32] = _KILL
    segments: list[tuple[int, bytes]] = []
    for start, answer in sorted(starts.items()):
        if not segments or segments[-1][1] != answer:
            segments.append((start, answer))
    return segments


def _search(segments: list[tuple[int, bytes]]) -> bytes:
    """Return code that finds the answer to the loaded number by halving.

    Only the long jump, whose distance has 32 bits, leaps over code of any length.
    """
    if len(segments) == 1:
        return segments[0][1]
    middle = len(segments) // 2
    below, from_there = _search(segments[:middle]), _search(segments[middle:])
    is_below = _do(_IF_AT_LEAST, segments[middle][0], otherwise=1)
    return is_below + _do(_JUMP, _length(below)) + below + from_there


def program(machine: Machine, *, pid: int, paths: bool) -> bytes:
    """Return the filter, as the kernel wants it: instructions of 8 bytes.

    Args:
        machine: Whose call numbers to use.
        pid: The worker's process id as the worker itself sees it; it may signal that one alone.
        paths: Whether every path the worker can name belongs to its own mount namespace. If not, calls that ask about
            a path answer ``EACCES``.

    Raises:
        ValueError: ``pid`` is not the id of one process.
    """
    if not 0 < pid < 2**31:
        raise ValueError(
            f"pid={pid}: one process is meant, so 1 to 2147483647 (0 and below address groups of processes)"
        )
    code = _do(_LOAD, _ARCH) + _do(_IF_EQUAL, machine.audit_arch, then=1) + _KILL
    code += _do(_LOAD, _NUMBER) + _search(_segments(machine, _rules(pid, paths)))
    assert _length(code) <= _LONGEST
    return code


def install(code: bytes) -> None:
    """Put the filter on this process, for good; a second one can only take away more.

    Args:
        code: What :func:`program` returned for this machine and this process.

    Raises:
        OSError: The kernel has no filters, or does not take this one, or a thread has a filter of its own.
    """
    header = _Header(_length(code), code)
    no_new_privs()
    thread = syscall("seccomp", _SET_MODE_FILTER, _ON_ALL_THREADS, ctypes.addressof(header))
    if thread:
        raise OSError(errno.EBUSY, f"seccomp: thread {thread} cannot take over the filter; start with one thread")
