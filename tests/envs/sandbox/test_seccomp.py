from __future__ import annotations

import errno
import struct
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trajgym.envs.sandbox import seccomp
from trajgym.envs.sandbox.machine import AARCH64, X86_64, Machine

PID = 77
HIGH = 1 << 32
JAIL_ONLY = {"capset", "seccomp", "unshare", "setns", "mount", "umount2", "pivot_root", "mount_setattr"}
JAIL_ONLY |= {"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"}
BY_PATH = ["stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat"]
BY_PATH += ["statfs", "chdir"]

# Calls that must never pass: name, number on x86-64, number on aarch64.
FORBIDDEN = """
execve 59 221, execveat 322 281, fork 57 -, vfork 58 -, clone 56 220, clone3 435 435, unshare 272 97, setns 308 268,
socket 41 198, socketpair 53 199, connect 42 203, bind 49 200, listen 50 201, accept 43 202, accept4 288 242,
sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, sendmmsg 307 269, recvmmsg 299 243,
alarm 37 -, setitimer 38 103, getitimer 36 102, timer_create 222 107, timer_settime 223 110, timerfd_create 283 85,
memfd_create 319 279, memfd_secret 447 447, shmget 29 194, shmat 30 196, semget 64 190, semop 65 193, msgget 68 186,
mq_open 240 180, mq_notify 244 184, io_setup 206 0, io_submit 209 2, io_uring_setup 425 425, io_uring_enter 426 426,
ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, process_madvise 440 440, kcmp 312 272,
pidfd_open 434 434, pidfd_getfd 438 438, pidfd_send_signal 424 424, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240,
mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, mount_setattr 442 442, move_mount 429 429,
open_tree 428 428, fsopen 430 430, keyctl 250 219, add_key 248 217, request_key 249 218, bpf 321 280, seccomp 317 277,
perf_event_open 298 241, userfaultfd 323 282, inotify_init1 294 26, fanotify_init 300 262, epoll_create1 291 20,
eventfd2 290 19, signalfd4 289 74, chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -,
fchown 93 55, fchownat 260 54, utime 132 -, utimes 235 -, utimensat 280 88, setxattr 188 5, fsetxattr 190 7,
removexattr 197 14, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36, mknod 133 -, mknodat 259 33, flock 73 32,
truncate 76 45, sync 162 81, syncfs 306 267, sync_file_range 277 84, swapon 167 224, quotactl 179 60, setuid 105 146,
setgid 106 144, setresuid 117 147, setgroups 116 159, setsid 112 157, setpgid 109 154, capset 126 91,
personality 135 92, setrlimit 160 164, sched_setaffinity 203 122, sched_setscheduler 144 119, sched_setattr 314 274,
setpriority 141 140, ioprio_set 251 30, mlock 149 228, mlock2 325 284, mlockall 151 230, mbind 237 235,
set_mempolicy 238 237, move_pages 279 239, membarrier 324 283, mincore 27 232, remap_file_pages 216 234,
open_by_handle_at 304 265, name_to_handle_at 303 264, openat2 437 437, renameat2 316 276, splice 275 76, tee 276 77,
vmsplice 278 75, sendfile 40 71, copy_file_range 326 285, fadvise64 221 223, arch_prctl 158 -, modify_ldt 154 -,
iopl 172 -, reboot 169 142, init_module 175 105, kexec_load 246 104, clock_settime 227 112, sethostname 170 161,
landlock_create_ruleset 444 444, landlock_restrict_self 446 446, set_robust_list 273 99, rseq 334 293
"""
MACHINES = {"x86_64": X86_64, "aarch64": AARCH64}
PROGRAMS = {
    (name, paths): seccomp.program(machine, pid=PID, paths=paths)
    for name, machine in MACHINES.items()
    for paths in (True, False)
}


def action(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """Run the program as the kernel does: classic BPF over the description of one call."""
    values = [value % 2**64 for value in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    call = struct.pack("=IIQ6Q", number, arch, 0x7FFF_0000_1234, *values)
    code = list(struct.iter_unpack("=HBBI", program))
    accumulator = place = 0
    while True:
        operation, then, otherwise, value = code[place]
        place += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", call, value)
            case 0x05:
                place += value
            case 0x15:
                place += then if accumulator == value else otherwise
            case 0x35:
                place += then if accumulator >= value else otherwise
            case 0x45:
                place += then if accumulator & value else otherwise
            case 0x06:
                return value
            case _:
                raise AssertionError(f"operation {operation:#x}")


def answer(machine: Machine, number: int, *arguments: int, paths: bool = True) -> str:
    found = action(PROGRAMS[machine.name, paths], machine.audit_arch, number, *arguments)
    if found >> 16 == 5:
        return errno.errorcode[found & 0xFFFF] if found & 0xFFFF else "done"
    return {0x7FFF0000: "pass", 0x80000000: "kill"}[found]


@pytest.fixture(params=MACHINES.values(), ids=MACHINES)
def machine(request: pytest.FixtureRequest) -> Machine:
    return request.param


# Name, arguments, answer. Register halves: a kernel "int" is the low one, a pointer is both.
FILTERED = [
    ("openat", (-100, 1, 0o0), "pass"),
    ("openat", (-100, 1, 0o102 | 0o2000000, 0o777), "pass"),
    ("openat", (-100, 1, 0o10000000), "EPERM"),
    ("openat", (-100, 1, 0o10000000 | 7 * HIGH), "EPERM"),
    ("openat", (-100, 1, 0o10000000 * HIGH), "pass"),
    ("openat", (-100, 1, 0o102, 0o4755), "EPERM"),
    ("openat", (-100, 1, 0o102, 0o2755 | HIGH), "EPERM"),
    ("open", (1, 0), "pass"),
    ("open", (1, 0o12000000), "EPERM"),
    ("open", (1, 0o10000000 | HIGH), "EPERM"),
    ("open", (1, 0o101, 0o4700), "EPERM"),
    ("creat", (1, 0o644), "pass"),
    ("creat", (1, 0o4644), "EPERM"),
    *[("madvise", (0, 4096, advice), "pass") for advice in (0, 1, 2, 3, 4, 8, 14, 15)],
    *[("madvise", (0, 4096, advice), "EINVAL") for advice in (9, 12, 13, 20, 21, 25, 100, -1)],
    ("madvise", (0, 4096, 12 | HIGH), "EINVAL"),
    ("pipe", (1,), "pass"),
    ("pipe2", (1, 0o2004000), "pass"),
    ("pipe2", (1, 0o40000), "EPERM"),
    ("pipe2", (1, 0o200000), "EPERM"),
    ("pipe2", (1, 0o200), "EPERM"),
    ("pipe2", (1, 0o40000 | HIGH), "EPERM"),
    *[("fcntl", (0, command, 5), "pass") for command in (0, 1, 2, 3, 1030)],
    *[("fcntl", (0, n, 0), "EPERM") for n in (5, 6, 7, 8, 10, 15, 36, 37, 38, 1024, 1026, 1031, 1033, 1036, -1)],
    ("fcntl", (0, 6 | HIGH, 0), "EPERM"),
    ("fcntl", (0, 3 | HIGH, 0), "pass"),
    ("fcntl", (0, 3, 0o260000), "pass"),
    ("fcntl", (0, 4, 0o4000 | 0o2000), "pass"),
    ("fcntl", (0, 4, 0o20000), "EPERM"),
    ("fcntl", (0, 4, 0o40000), "EPERM"),
    ("fcntl", (0, 4, 0o200000), "EPERM"),
    ("fcntl", (0, 4 | HIGH, 0o20000 | HIGH), "EPERM"),
    *[("ioctl", (0, command), "pass") for command in (0x5421, 0x541B, 0x5450, 0x5451)],
    *[("ioctl", (0, n), "ENOTTY") for n in (0x5401, 0x5413, 0x5412, 0x5452, 0x8901, 0x5412 | HIGH, 0)],
    ("kill", (PID, 0), "pass"),
    ("kill", (PID | HIGH, 9), "pass"),
    *[("kill", (n, 9), "EPERM") for n in (0, 1, -1, -PID, PID + 1, HIGH + 1, PID * HIGH)],
    ("tkill", (PID, 6), "pass"),
    ("tkill", (1, 6), "EPERM"),
    ("tgkill", (PID, PID, 6), "pass"),
    ("tgkill", (PID, 1, 6), "EPERM"),
    ("tgkill", (1, PID, 6), "EPERM"),
    ("tgkill", (-1, PID, 6), "EPERM"),
    ("prlimit64", (0, 7, 0, 1), "pass"),
    ("prlimit64", (PID, 7, 0, 1), "pass"),
    ("prlimit64", (1, 7, 0, 1), "EPERM"),
    ("prlimit64", (0, 7, 5, 1), "EPERM"),
    ("prlimit64", (0, 7, HIGH, 1), "EPERM"),
    ("prlimit64", (0, 7, 5 * HIGH, 1), "EPERM"),
    *[("futex", (1, n), "pass") for n in (128, 129, 137, 138, 393)],
    *[("futex", (1, n), "EPERM") for n in (0, 1, 9, 10, 134, 139, HIGH)],
    ("prctl", (15, 1), "pass"),
    ("prctl", (16, 1), "pass"),
    *[("prctl", (n, 1), "EPERM") for n in (1, 4, 22, 24, 29, 38, 47, 53, 0x53564D41, 4 | HIGH)],
    *[(f"clock_{n}", (clock,), "pass") for n in ("gettime", "getres", "nanosleep") for clock in (0, 1, 2, 3, 7, 11)],
    *[("clock_gettime", (clock,), "EINVAL") for clock in (16, -2, -6, (~1 << 3) | 2, 16 + HIGH)],
    ("clock_nanosleep", (-10,), "EINVAL"),
    *[(n, (who,), "pass") for n in ("getpgid", "getsid", "sched_getaffinity") for who in (0, PID)],
    *[(n, (1,), "EPERM") for n in ("getpgid", "getsid", "sched_getaffinity")],
    *[(n, (1,), "done") for n in ("fsync", "fdatasync", "msync")],
]


@pytest.mark.parametrize("paths", [True, False])
@pytest.mark.parametrize(("name", "arguments", "expected"), FILTERED)
def test_arguments_decide(machine: Machine, name: str, arguments: tuple[int, ...], expected: str, paths: bool) -> None:
    if name in machine.calls:
        assert answer(machine, machine.calls[name], *arguments, paths=paths) == expected
    else:
        assert machine is AARCH64
        assert name in {"open", "creat", "pipe"}


def forbidden(machine: Machine) -> dict[str, int]:
    rows = [row.split() for row in FORBIDDEN.split(",")]
    column = 1 if machine is X86_64 else 2
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def test_the_numbers_here_are_the_kernels(machine: Machine, kernel_numbers: Callable[[str], dict[str, int]]) -> None:
    expected = kernel_numbers(machine.name)
    later = {"fchmodat2": 452}  # than some headers
    assert forbidden(machine) == {name: expected.get(name, later.get(name)) for name in forbidden(machine)}


@pytest.mark.parametrize("paths", [True, False])
def test_forbidden_calls(machine: Machine, paths: bool) -> None:
    numbers = forbidden(machine)
    assert not (machine.calls.keys() - JAIL_ONLY) & numbers.keys()
    found = {name: answer(machine, number, PID, PID, paths=paths) for name, number in numbers.items()}
    assert found == {name: "ENOSYS" if number >= 424 else "EPERM" for name, number in numbers.items()}


def test_no_other_call_of_the_kernel_passes(machine: Machine, kernel_numbers: Callable[[str], dict[str, int]]) -> None:
    others = {name: n for name, n in kernel_numbers(machine.name).items() if n not in machine.calls.values()}
    passed = [name for name, number in others.items() if answer(machine, number, PID, PID) not in ("EPERM", "ENOSYS")]
    assert len(others) > 150
    assert passed == []


def test_every_other_call_of_the_table_passes(machine: Machine) -> None:
    filtered = {name for name, _, _ in FILTERED}
    plain = machine.calls.keys() - JAIL_ONLY - filtered
    assert {name: answer(machine, machine.calls[name]) for name in plain} == dict.fromkeys(plain, "pass")
    assert len(plain) > 60


def test_asking_about_a_path(machine: Machine) -> None:
    names = [name for name in BY_PATH if name in machine.calls]
    assert [answer(machine, machine.calls[name]) for name in names] == ["pass"] * len(names)
    # Also for an empty path, where the call would be about a descriptor: the path cannot be seen.
    at_empty_path = (5, 0x7FFF, 0x7FFF, 0x1000)
    refused = [answer(machine, machine.calls[name], *at_empty_path, paths=False) for name in names]
    assert refused == ["EACCES"] * len(names)


@pytest.mark.parametrize("arch", [0x40000003, 0x40000028, 0, 0xFFFFFFFF, "other"])
def test_another_way_of_calling_kills(machine: Machine, arch: int | str) -> None:
    other = (AARCH64 if machine is X86_64 else X86_64).audit_arch
    for number in (*range(500), 2**32 - 1):
        found = action(PROGRAMS[machine.name, True], other if isinstance(arch, str) else arch, number)
        assert found == 0x80000000


@pytest.mark.parametrize("offset", [0, 39, 59, 520, 0x3FFFFFFF, 0x80000000])
def test_x32_numbers(offset: int) -> None:
    assert answer(X86_64, 0x40000000 + offset) == "kill"
    assert answer(AARCH64, 0x40000000 + offset) == "ENOSYS"


@example(number=0, arguments=[0] * 6)
@example(number=435, arguments=[PID] * 6)
@example(number=2**32 - 1, arguments=[0] * 6)
@given(
    number=st.integers(0, 480) | st.integers(0, 2**32 - 1),
    arguments=st.lists(st.sampled_from([0, PID]) | st.integers(0, 2**64 - 1), min_size=6, max_size=6),
)
def test_unknown_numbers_are_refused(number: int, arguments: list[int]) -> None:
    for machine in MACHINES.values():
        known = {number for name, number in machine.calls.items() if name not in JAIL_ONLY}
        for paths in (True, False):
            if number not in known:
                assert answer(machine, number, *arguments, paths=paths) in ("EPERM", "ENOSYS", "kill")


@pytest.mark.parametrize("paths", [True, False])
@pytest.mark.parametrize("pid", [1, 2**31 - 1])
def test_the_kernels_rules_for_programs(machine: Machine, pid: int, paths: bool) -> None:
    code = list(struct.iter_unpack("=HBBI", seccomp.program(machine, pid=pid, paths=paths)))
    assert 100 < len(code) <= 4096
    for place, (operation, then, otherwise, value) in enumerate(code):
        assert operation in (0x20, 0x05, 0x15, 0x35, 0x45, 0x06)
        if operation == 0x06:
            continue
        assert place + 1 + (value if operation == 0x05 else max(then, otherwise)) < len(code)
        assert operation != 0x20 or (value % 4 == 0 and value < 64)
    assert code[-1][0] == 0x06


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**32 + 5])
def test_a_group_of_processes_is_not_a_process(pid: int) -> None:
    with pytest.raises(ValueError, match=r"pid=.*one process"):
        seccomp.program(X86_64, pid=pid, paths=True)
