"""However a process ends, none of the pool's is left, nor a file; and a fork touches nothing of its parent's."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trajgym.envs.sandbox import IsolationUnavailable, Kind, Limits, Pool

SECONDS = 20.0  # for what should happen at once, on a machine that is busy
STRICT = [sys.executable, "-X", "dev", "-W", "error"]
# Newer Pythons warn of any fork beside threads; what can go wrong then is what these tests are about.
FORKING = [*STRICT, "-W", "ignore::DeprecationWarning"]


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def tier(request: pytest.FixtureRequest) -> str:
    try:
        Pool(isolation=request.param, packages=()).close()
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    return str(request.param)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where temporary files go, a place that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="trajgym-tests-", dir="/tmp") as made:
        os.chmod(made, 0o755)
        yield Path(made)


# Adopts whatever its descendants leave behind, so it has no child any more exactly when nothing is left of the trainer.
# Arguments: the signal for the trainer, or 0 to let it end by itself; how long after its first line; the trainer. A
# process that the trainer names in that line may live on.
SUPERVISOR = """
import ctypes, os, pathlib, subprocess, sys, time

def children():
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[1]) == os.getpid() and stat[0] != "Z":
                yield int(entry)

assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
number, pause = int(sys.argv[1]), float(sys.argv[2])
trainer = subprocess.Popen(sys.argv[3:], stdout=subprocess.PIPE)
spared = [int(pid) for pid in trainer.stdout.readline().split()]
time.sleep(pause)
if number:
    os.kill(trainer.pid, number)
status = trainer.wait()
deadline = time.monotonic() + 15
while True:
    left = [pid for pid in children() if pid not in spared]
    if not left:
        break
    if time.monotonic() > deadline:
        sys.exit(f"left over: {left}")
    time.sleep(0.005)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
for pid in spared:
    os.kill(pid, 9)
print(status)
"""

TRAINER = """
import sys, threading, time
from trajgym.envs.sandbox import Limits, Pool
tier, state = sys.argv[1:]
if state == "starting":
    print(flush=True)
pool = Pool(isolation=tier, packages=(), limits=Limits(cpu=60, scratch=1 << 20))
sessions = [pool.open() for _ in range(20)]
pool.run([(session, "open('file', 'w').write('x')") for session in sessions])
print(flush=True)
if state == "opening":
    while True:
        pool.open().close()
elif state == "busy":
    pool.run([(session, "while True: pass") for session in sessions])
elif state == "asleep":
    pool.run([(session, "import time\\ntime.sleep(99)") for session in sessions])
"""


def supervise(folder: Path, number: int, pause: float, *trainer: str, may_leave: bool = False) -> tuple[int, str]:
    """Have a trainer run and end; return its exit status and what it complained of, once nothing is left of it."""
    command = [sys.executable, "-c", SUPERVISOR, str(int(number)), str(pause), *trainer]
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert may_leave or list(folder.iterdir()) == []
    return int(done.stdout), done.stderr


@pytest.mark.parametrize("state", ["busy", "opening"])
def test_killed_a_trainer_leaves_nothing(folder: Path, tier: str, state: str) -> None:
    status, complaints = supervise(folder, signal.SIGKILL, 0.1, *STRICT, "-c", TRAINER, tier, state)
    assert (status, complaints) == (-signal.SIGKILL, "")


def test_killed_while_it_starts_a_trainer_leaves_no_process(tmp_path: Path, tier: str) -> None:
    # Nobody removes a folder that was made a moment before.
    trainer = [*STRICT, "-c", TRAINER, tier, "starting"]
    assert supervise(tmp_path, signal.SIGKILL, 0.1, *trainer, may_leave=True) == (-signal.SIGKILL, "")


ENDS = {
    "cycle": "cycle = [pool, sessions]; cycle.append(cycle); del pool, sessions",
    "running": "threading.Thread(target=sessions[0].call, args=('import time; time.sleep(99)',), daemon=True).start()",
    "at exit": "atexit.register(lambda: sessions[0].call('1'))",
    "os._exit": "os._exit(0)",
    "killed": "os.kill(pool._link.pid, 9); time.sleep(0.1)",
}
ENDING = """
import atexit, os, sys, threading, time
from trajgym.envs.sandbox import Limits, Pool
pool = Pool(isolation=sys.argv[1], packages=(), limits=Limits(scratch=1 << 20))
sessions = [pool.open() for _ in range(3)]
sessions[0].call("open('file', 'w').write('x')")
print(flush=True)
"""


@pytest.mark.parametrize("end", ENDS)
def test_a_trainer_that_ends_without_closing_leaves_nothing_and_complains_of_nothing(
    folder: Path, tier: str, end: str
) -> None:
    assert supervise(folder, 0, 0, *STRICT, "-c", ENDING + ENDS[end], tier) == (0, "")


def test_interrupted_a_trainer_leaves_nothing(folder: Path, tier: str) -> None:
    status, complaints = supervise(folder, signal.SIGINT, 0.1, *STRICT, "-c", TRAINER, tier, "asleep")
    assert status == -signal.SIGINT
    assert complaints.strip().endswith("\nKeyboardInterrupt")
    assert "Warning" not in complaints


SPARED = """
import os, sys, time
from trajgym.envs.sandbox import Limits, Pool
pool = Pool(isolation=sys.argv[1], packages=(), limits=Limits(cpu=60, scratch=1 << 20))
sessions = [pool.open() for _ in range(3)]
pid = os.fork()
if pid:
    print(pid, flush=True)
    pool.run([(session, "while True: pass") for session in sessions])
time.sleep(99)
"""


def test_a_forked_child_that_lives_on_does_not_keep_the_pool(folder: Path, tier: str) -> None:
    assert supervise(folder, signal.SIGKILL, 0.2, *FORKING, "-c", SPARED, tier)[0] == -signal.SIGKILL


FORK = """
import asyncio, gc, multiprocessing, os, sys
from trajgym.envs.sandbox import Limits, Pool, PoolClosed
tier, way = sys.argv[1:]
options = dict(isolation=tier, packages=(), limits=Limits(scratch=1 << 20))

def open_files():
    return {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) > 2
            if os.path.exists(f"/proc/self/fd/{name}")}

before = open_files()
pool, other = Pool(**options), Pool(**options)
session, dead, closed, foreign = pool.open(), pool.open(), pool.open(), other.open()
session.call("x = 1\\nopen('file', 'w').write('mine')")
dead.call("import os; os._exit(1)")
closed.close()

def refused(attempt):
    try:
        attempt()
    except PoolClosed as error:
        return f"This pool belongs to process {os.getppid()}, and this is process {os.getpid()}" in str(error)

def child():
    global pool, other, session, dead, closed, foreign
    held = {name: link for name, link in open_files().items() if name not in before}
    held = {name: link for name, link in held.items() if link.startswith(("socket", "anon_inode:[pidfd"))}
    assert not held, held
    assert refused(lambda: session.call("1"))
    assert refused(lambda: dead.call("1"))
    assert refused(lambda: foreign.call("1"))
    assert refused(lambda: pool.run([(session, "1")]))
    assert refused(lambda: pool.open())
    assert refused(lambda: asyncio.run(session.acall("1")))
    assert refused(lambda: asyncio.run(pool.aopen()))
    session.close(), pool.close(), repr(pool), repr(session)
    del session, dead, closed, foreign, pool, other
    gc.collect()
    with Pool(**options) as own, own.open() as new:
        assert new.call("6 * 7").output == "42"

if way == "os.fork":
    pid = os.fork()
    if not pid:
        status = 1
        try:
            child()
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
else:
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
assert session.call("x, open('file').read()").output == "(1, 'mine')"
with pool.open() as new:
    assert new.call("1").ok
assert (pool.restarts, other.restarts) == (0, 0)
"""


@pytest.mark.parametrize("way", ["os.fork", "multiprocessing"])
def test_a_forked_process_neither_uses_nor_harms_its_parents_pool(folder: Path, tier: str, way: str) -> None:
    done = subprocess.run(
        [*FORKING, "-c", FORK, tier, way],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(folder.iterdir()) == []


LOCKS = """
import os, sys, threading, time
from trajgym.envs.sandbox import Pool, PoolClosed
pool = Pool(isolation=sys.argv[1], packages=())
kept = pool.open()
stop, turns = threading.Event(), [0] * 4

def work(i):
    while not stop.is_set():
        with pool.open(i) as session:
            assert session.call(f"{i} + 1").output == str(i + 1)
        turns[i] += 1

threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for thread in threads:
    thread.start()
for number in range(30):
    time.sleep(0.003 * (number % 5))
    held = [pool._lock, pool._link._sending, pool._link._receiving, kept._busy] if number == 0 else []
    for lock in held:
        lock.acquire()
    pid = os.fork()
    for lock in held if pid else []:
        lock.release()
    if not pid:
        for attempt in (pool.open, lambda: kept.call("1"), lambda: pool.run([(kept, "1")])):
            try:
                attempt()
            except PoolClosed:
                continue
            os._exit(1)
        pool.close()
        kept.close()
        os._exit(0)
    deadline = time.monotonic() + 20
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            sys.exit("a child hangs")
        time.sleep(0.001)
    assert status == 0, status
stop.set()
for thread in threads:
    thread.join()
assert all(turns), turns
assert pool.restarts == 0
assert kept.call("'still'").output == "'still'"
pool.close()
"""


def test_forked_while_threads_hold_locks_a_process_does_not_hang(tier: str) -> None:
    done = subprocess.run([*FORKING, "-c", LOCKS, tier], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


INTERRUPT = """
import os, signal, sys, time
from trajgym.envs.sandbox import Pool
with Pool(packages=()) as pool, pool.open() as session:
    session.call("x = 1")
    try:
        os.killpg(0, signal.SIGINT)
        time.sleep(9)
    except KeyboardInterrupt:
        print(session.call("x").output, pool.open().call("2").output, pool.restarts)
"""


def test_an_interrupt_at_the_terminal_is_the_trainers_alone() -> None:
    done = subprocess.run(
        [*STRICT, "-c", INTERRUPT], capture_output=True, text=True, timeout=60, start_new_session=True
    )
    assert (done.stdout, done.stderr) == ("1 2 0\n", "")


def children(parent: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry))
    return found


def test_without_the_process_that_was_started_nothing_is_left_either(folder: Path, tier: str) -> None:
    with Pool(isolation=tier, packages=(), limits=Limits()) as pool:
        session = pool.open()
        (zygote,) = children(pool._link.pid)
        ends = [os.pidfd_open(zygote), os.dup(session.pidfd)]
        os.kill(pool._link.pid, signal.SIGKILL)
        result = session.call("import time\ntime.sleep(0.2)\n'done'")
        # Where the zygote changed its user, it has lost the order to die with its parent, and nothing else.
        assert result.kind is Kind.POOL_DIED or result.output == "'done'"
        with pool.open() as another:
            assert another.call("1").ok
    for pidfd in ends:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        assert poller.poll(SECONDS * 1000)
        os.close(pidfd)
