"""The call filter on the running kernel. Without it, nothing that the children try would do harm."""

from __future__ import annotations

import platform
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trajgym.envs.sandbox.machine import this_machine

pytestmark = pytest.mark.skipif(this_machine() is None, reason="not a machine the jail knows")

INSTALL = """
from trajgym.envs.sandbox import landlock, machine, seccomp
def install(paths):
    seccomp.install(seccomp.program(machine.this_machine(), pid=os.getpid(), paths=paths))
"""


@pytest.fixture(autouse=True)
def kernel_filters_calls(child: Callable[..., Any]) -> None:
    if child(INSTALL + "seen['install'] = tried(install, True)").seen["install"] in ("ENOSYS", "EINVAL", "EACCES"):
        pytest.skip("this kernel does not filter calls")


def test_what_fails(child: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    done = child(
        INSTALL
        + """
import fcntl, mmap, select, signal, socket, threading, time
file = given[0] + "/file"
def fork():
    if os.fork() == 0:
        os._exit(0)
held = open(file, "r+")
reading, writing = os.pipe()
install(True)
probes = {
    "fork": [fork], "exec": [os.execv, "/nonexistent", ["x"]], "spawn": [os.posix_spawn, "/nonexistent", ["x"], {}],
    "socket": [socket.socket], "socketpair": [socket.socketpair],
    "kill 1": [os.kill, 1, 0], "kill all": [os.kill, -1, 0], "kill group": [os.kill, 0, 0],
    "kill parent": [os.kill, os.getppid(), 0], "lockf": [fcntl.lockf, held, fcntl.LOCK_SH | fcntl.LOCK_NB],
    "flock": [fcntl.flock, held, fcntl.LOCK_SH | fcntl.LOCK_NB], "pipe size": [fcntl.fcntl, writing, 1031, 4096],
    "timer": [signal.setitimer, signal.ITIMER_REAL, 1000], "memfd": [os.memfd_create, "x"],
    "eventfd": [os.eventfd, 0], "epoll": [select.epoll], "chmod": [os.chmod, file, 0o644],
    "fchmod": [os.fchmod, held.fileno(), 0o644], "utime": [os.utime, file], "chown": [os.chown, file, -1, -1],
    "link": [os.link, file, file + "2"], "symlink": [os.symlink, file, file + "2"], "truncate": [os.truncate, file, 4],
    "xattr": [os.setxattr, file, "user.x", b""], "mkfifo": [os.mkfifo, file + "3"], "nice": [os.setpriority, 0, 0, 0],
    "o_path": [os.open, file, os.O_PATH], "setuid file": [os.open, file + "4", os.O_CREAT, 0o4755],
    "other's cpu": [time.clock_gettime, (~os.getppid() << 3) | 2],
    "other's affinity": [os.sched_getaffinity, os.getppid()], "other's group": [os.getpgid, os.getppid()],
    "setsid": [os.setsid], "setuid": [os.setuid, os.getuid()], "pidfd": [os.pidfd_open, os.getpid()],
    "ioctl": [fcntl.ioctl, reading, 0x5452], "packets": [os.pipe2, os.O_DIRECT],
    "unshare": [machine.unshare, 0], "seccomp": [machine.syscall, "seccomp", 2, 0, b"\\0\\0\\0\\0"],
    "landlock": [machine.syscall, "landlock_create_ruleset", None, 0, 1],
}
seen |= {name: tried(*probe) for name, probe in probes.items()}
try:
    threading.Thread(target=print).start()
except RuntimeError as error:
    seen["thread"] = str(error)
""",
        tmp_path,
    )
    assert done.status == 0, done.errors
    special = {
        "thread": "can't start new thread",
        "pidfd": "ENOSYS",
        "landlock": "ENOSYS",
        "ioctl": "ENOTTY",
        "other's cpu": "EINVAL",
    }
    assert done.seen == {name: special.get(name, "EPERM") for name in done.seen}
    assert len(done.seen) == 40
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_what_works(child: Callable[..., Any], tmp_path: Path) -> None:
    done = child(
        INSTALL
        + """
import pathlib, shutil, signal, sys, threading, time
folder = pathlib.Path(given[0])
install(True)
def check(value):
    if not value:
        raise OSError("false")
def imports():
    before = set(sys.modules)
    import csv, decimal, statistics, zoneinfo
    check({"csv", "_decimal", "zoneinfo"} <= set(sys.modules) - before)
def files():
    (folder / "a").mkdir()
    (folder / "a/b").write_text("text")
    (folder / "a/b").rename(folder / "c")
    shutil.copyfile(folder / "c", folder / "d")
    check((folder / "d").read_text() == "text" and (folder / "c").stat().st_size == 4)
    with open(folder / "d", "r+") as file:
        file.truncate(1)
        os.fsync(file)
    check(sorted(os.listdir(folder)) == ["a", "c", "d"] and os.path.getsize(folder / "d") == 1)
    os.chdir(folder)
    (folder / "touched").touch()
    for name in ("c", "d", "touched"):
        os.remove(name)
    os.rmdir("a")
def clocks():
    time.sleep(0.001)
    check(time.process_time() > 0 and time.thread_time() > 0 and time.get_clock_info("monotonic").resolution < 1)
def locks():
    lock = threading.Lock()
    check(lock.acquire() and not lock.acquire(timeout=0.01))
def signals():
    caught = []
    signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
    signal.raise_signal(signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), 0)
    check(len(caught) == 2)
def pipes():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.write(writing, b"x")
    check(os.read(os.dup(reading), 9) == b"x" and not os.isatty(reading))
    check(tried(os.read, reading, 1) == "EAGAIN")
def memory():
    check(len(bytearray(50_000_000)) == 50_000_000 and os.urandom(4) and os.cpu_count())
    import resource
    check(resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0)
for work in (imports, files, clocks, locks, signals, pipes, memory):
    seen[work.__name__] = tried(work)
""",
        tmp_path,
    )
    assert done.status == 0, done.errors
    assert done.seen == dict.fromkeys(("imports", "files", "clocks", "locks", "signals", "pipes", "memory"), "ok")
    assert list(tmp_path.iterdir()) == []


def test_without_paths_a_file_opens_but_nothing_tells_about_it(child: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    done = child(
        INSTALL
        + """
import ctypes
file = given[0] + "/file"
install(False)
seen["read"] = open(file).read() + open(file, "rb").read().decode()
seen["refused"] = [tried(os.stat, file), tried(os.lstat, file), tried(os.readlink, file), tried(os.chdir, given[0])]
seen["refused"] += [tried(os.statvfs, file)]
seen["exists"] = [os.path.exists(file), os.access(file, os.R_OK), os.path.isdir("/")]
kept = os.open(file, os.O_RDONLY)
buffer = ctypes.create_string_buffer(256)
seen["by descriptor"] = tried(machine.syscall, "fstat", kept, ctypes.addressof(buffer))
""",
        tmp_path,
    )
    assert done.seen == {
        "read": "texttext",
        "refused": ["EACCES"] * 5,
        "exists": [False, False, False],
        "by descriptor": "ok",
    }, done.errors


def test_the_filter_covers_every_thread(child: Callable[..., Any]) -> None:
    done = child(
        INSTALL
        + """
import queue, socket, threading
orders, answers = queue.SimpleQueue(), queue.SimpleQueue()
def work():
    orders.get()
    answers.put(tried(socket.socket))
thread = threading.Thread(target=work)
thread.start()
install(True)
orders.put(None)
seen["other thread"] = answers.get()
thread.join()
"""
    )
    assert done.seen == {"other thread": "EPERM"}, done.errors


def test_a_program_the_kernel_does_not_take(child: Callable[..., Any]) -> None:
    done = child(INSTALL + "seen['empty'] = tried(seccomp.install, b'')")
    assert done.seen == {"empty": "EINVAL"}, done.errors


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a second table of calls is a matter of x86-64")
def test_a_call_through_the_x32_table_kills(child: Callable[..., Any]) -> None:
    ask = "tried(machine.syscall, 0x40000000 | machine.X86_64.calls['getpid'])\nseen['alive'] = True\n"
    assert child(INSTALL + ask).seen == {"alive": True}
    done = child(INSTALL + "install(True)\n" + ask)
    assert (done.status, done.seen) == (-signal.SIGSYS, {})


@pytest.mark.skipif(platform.machine() != "x86_64", reason="32-bit calls by interrupt are a matter of x86-64")
def test_a_32_bit_call_kills(child: Callable[..., Any]) -> None:
    # mov eax, 20 (getpid there); int 0x80; ret
    ask = """
import ctypes, mmap
memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(b"\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3")
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
if given: install(True)
seen["pid"] = function() == os.getpid()
"""
    if child(INSTALL + ask).status == -signal.SIGSEGV:
        pytest.skip("this kernel has no 32-bit calls")
    done = child(INSTALL + ask, "filtered")
    assert (done.status, done.seen) == (-signal.SIGSYS, {})
