"""A pool: what it refuses, what it does when its machinery dies or the machine has no more to give, threads."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trajgym.envs.sandbox import IsolationUnavailable, Kind, Pool, PoolClosed, link, selftest
from trajgym.errors import ConfigError, UnknownNameError

SECONDS = 20.0  # for what should happen at once, on a machine that is busy


# For what depends on how the kernel isolates; the other tests take the strongest way of this machine.
both_ways = pytest.mark.parametrize("pool", ["namespaces", "landlock"], indirect=True)


def make(tier: str | None, **options: object) -> Pool:
    try:
        return Pool(isolation=tier, packages=(), **options)  # type: ignore[arg-type]
    except IsolationUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with make(getattr(request, "param", None)) as pool:
        yield pool


def is_running(pid: int) -> bool:
    """Whether a process is there and more than a corpse that its parent has not looked at yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descriptors() -> list[str]:
    gc.collect()
    return os.listdir("/proc/self/fd")


def test_it_says_what_it_is_and_closes_twice(pool: Pool) -> None:
    with pool.open() as session:
        assert repr(pool) == f"<Pool, isolation {pool.isolation}, 1 sessions>"
        assert session.isolation == pool.isolation
    pool.close()
    pool.close()
    with pytest.raises(PoolClosed, match="This pool is closed"):
        pool.open()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"isolation": "vm"}, UnknownNameError, "isolation"),
        ({"min_isolation": "vm"}, UnknownNameError, "min_isolation"),
        ({"isolation": "none"}, ConfigError, "allow_unsafe=True"),
        ({"isolation": "landlock", "min_isolation": "namespaces"}, ConfigError, "weaker"),
        ({"without": ["seccomp"]}, ConfigError, "allow_unsafe=True"),
        ({"packages": ["nunpy"]}, ConfigError, "Did you mean 'numpy'"),
        ({"packages": ["sympy"]}, ConfigError, r"mpmath.* Name what they need as well: \('sympy',\)"),
    ],
)
def test_it_refuses_what_cannot_be(options: dict[str, object], error: type[Exception], message: str) -> None:
    before = descriptors()
    with pytest.raises(error, match=message):
        Pool(**options)  # type: ignore[arg-type]
    assert descriptors() == before


@both_ways
def test_closed_while_sessions_run_it_ends_their_calls(pool: Pool) -> None:
    sessions = [pool.open() for _ in range(5)]
    timer = threading.Timer(0.3, pool.close)
    timer.start()
    results = pool.run([(session, "print('begun')\nimport time\ntime.sleep(30)") for session in sessions])
    timer.join()
    assert {result.kind for result in results} == {Kind.POOL_DIED}
    assert all(result.state_lost and result.message == "the pool was closed." for result in results)
    assert all(session.call("1").kind is Kind.POOL_DIED for session in sessions)
    assert [session.output for session in sessions] == [-1] * 5


@both_ways
def test_after_its_death_calls_fail_and_the_next_session_brings_it_back(
    pool: Pool, caplog: pytest.LogCaptureFixture, zygote: Callable[[Pool], int]
) -> None:
    before = descriptors()
    idle, busy, closed = pool.open(), pool.open(), pool.open()
    closed.close()
    killer = threading.Timer(0.3, os.kill, (zygote(pool), signal.SIGKILL))
    killer.start()
    result = busy.call("print('half')\nimport time\ntime.sleep(30)\nprint('whole')")
    killer.join()
    assert (result.kind, result.state_lost, result.ok) == (Kind.POOL_DIED, True, False)
    assert result.output == "half\n"
    assert result.message == "the interpreter's pool died."
    assert idle.call("1").kind is Kind.POOL_DIED
    assert pool.restarts == 0
    with caplog.at_level(logging.WARNING, logger="trajgym.envs.sandbox.pool"), pool.open() as session:
        assert session.call("6 * 7").output == "42"
        assert session.isolation == pool.isolation
    assert "the interpreter's pool died; it is built anew" in caplog.text
    assert pool.restarts == 1
    for session in (idle, busy, closed):
        assert session.call("1").kind in (Kind.POOL_DIED, Kind.SESSION_DEAD)
        session.close()
    del session, idle, busy, closed, result
    assert len(descriptors()) == len(before)


def test_where_it_cannot_come_back_it_says_why_and_tries_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, kill: Callable[[Pool], None]
) -> None:
    kill(pool)
    with monkeypatch.context() as patch:
        patch.setattr(selftest, "misses", lambda session, packages: ["reads a file of the host"])
        with pytest.raises(IsolationUnavailable, match="its self-test failed: reads a file of the host"):
            pool.open()
    with pool.open() as session:
        assert session.call("1").ok


@both_ways
def test_a_zygote_that_hangs_fails_in_bounded_time_and_is_replaced(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, zygote: Callable[[Pool], int]
) -> None:
    monkeypatch.setattr(link, "_EVENT_SECONDS", 0.5)
    monkeypatch.setattr(link, "_CLOSE_SECONDS", 0.5)
    before = descriptors()
    idle = pool.open()
    hung = zygote(pool)
    os.kill(hung, signal.SIGSTOP)
    with pytest.raises(IsolationUnavailable, match=r"pool did not answer within 0\.5 s"):
        pool.open()
    assert idle.call("1").kind is Kind.POOL_DIED
    monkeypatch.setattr(link, "_EVENT_SECONDS", SECONDS)
    with pool.open() as session:
        assert session.call("1").ok
    idle.close()
    assert (pool.restarts, len(descriptors())) == (1, len(before))
    deadline = time.monotonic() + SECONDS
    while is_running(hung):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_requests_that_a_hung_zygote_does_not_take_fail_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch, zygote: Callable[[Pool], int]
) -> None:
    with make("landlock") as pool:
        monkeypatch.setattr(link, "_EVENT_SECONDS", 0.05)
        monkeypatch.setattr(link, "_CLOSE_SECONDS", 0.05)
        os.kill(zygote(pool), signal.SIGSTOP)
        for _ in range(8):  # more than the channel holds
            pool._link._send(b"x" * 60_000, [])


@both_ways
def test_two_pools_live_side_by_side(pool: Pool, kill: Callable[[Pool], None]) -> None:
    with make(pool.isolation) as other, pool.open() as here, other.open() as there:
        assert [r.output for r in pool.run([(here, "x = 1; 'here'"), (there, "x = 2; 'there'")])] == [
            "'here'",
            "'there'",
        ]
        kill(other)
        assert there.call("x").kind is Kind.POOL_DIED
        assert here.call("x").output == "1"
        other.close()
        assert here.call("x").output == "1"


def test_many_threads_share_it(pool: Pool) -> None:
    def work(number: int) -> list[str]:
        shown = []
        for turn in range(3):
            with pool.open(number) as session:
                session.call(f"x = {number}")
                shown.append(session.call(f"x * 100 + {turn}").output)
        return shown

    before = descriptors()
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(work, range(32)))
    assert found == [[str(number * 100 + turn) for turn in range(3)] for number in range(32)]
    assert len(descriptors()) == len(before)


def test_many_threads_find_it_dead_and_one_brings_it_back(pool: Pool, kill: Callable[[Pool], None]) -> None:
    kill(pool)

    def work(number: int) -> str:
        with pool.open() as session:
            return session.call(f"{number} + 1").output

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(16))) == [str(number + 1) for number in range(16)]
    assert pool.restarts == 1


@contextlib.contextmanager
def few_files(free: int) -> Iterator[None]:
    """Leave so many descriptors to take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unused = sorted(set(range(1_000)) - {int(name) for name in os.listdir("/proc/self/fd")})
    resource.setrlimit(resource.RLIMIT_NOFILE, (unused[free], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_where_files_run_out_a_session_is_refused_and_nothing_leaks(pool: Pool) -> None:
    before = descriptors()
    outcomes = []
    for free in range(8):
        try:
            with few_files(free):
                session = pool.open()
        except IsolationUnavailable as error:
            outcomes.append(str(error))
        else:
            outcomes.append(session.call("'fine'").output)
            session.close()
            del session
        assert descriptors() == before
    # Three last; the worker's ends are in use for a moment, too.
    assert all("raise `ulimit -n`" in outcome for outcome in outcomes[:3])
    assert outcomes[5:] == ["'fine'"] * 3
    assert pool.restarts == 0


def test_where_files_run_out_a_pool_is_refused_and_nothing_leaks() -> None:
    before = descriptors()
    refused = []
    for free in (0, 1, 2, 4, 8):
        try:
            with few_files(free):
                Pool(packages=()).close()
        except IsolationUnavailable as error:
            refused.append(str(error))
        assert descriptors() == before
    assert len(refused) >= 3
    assert all("Too many open files" in reason for reason in refused)


PROCESSES = """
import time
from trajgym.envs.sandbox import IsolationUnavailable, Pool
with Pool(packages=()) as pool:
    sessions = []
    try:
        for _ in range(80):
            sessions.append(pool.open())
    except IsolationUnavailable as error:
        print(error)
    print(len(sessions), all(session.call("1").ok for session in sessions))
    for session in sessions:
        session.close()
    for _ in range(1000):  # until they are gone
        try:
            session = pool.open()
        except IsolationUnavailable:
            time.sleep(0.01)
        else:
            break
    print(session.call("'again'").output, pool.restarts)
"""


def test_where_processes_run_out_a_session_is_refused() -> None:
    make(None).close()

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (40, 40))

    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PROCESSES],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=few,
    )
    refused, opened, again = done.stdout.splitlines()
    assert refused.startswith("No worker could be started: ")
    assert "Resource temporarily unavailable" in refused
    count, fine = opened.split()
    assert 10 < int(count) < 40
    assert fine == "True"
    assert again == "'again' 0"
    assert done.stderr == ""
