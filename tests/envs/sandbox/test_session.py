"""A session from the host's side: limits that hold, seeds, and every way in which a call or a session can end."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from trajgym.envs.sandbox import IsolationUnavailable, Kind, Limits, Pool, Session
from trajgym.envs.sandbox import session as session_file
from trajgym.errors import ConfigError

MEBIBYTE = 1 << 20
QUICK = Limits(cpu=0.1, wall=0.5)
SECONDS = 20.0  # for what should happen at once, on a machine that is busy


Watch = Callable[[Session], Callable[[], bool]]

pytestmark = pytest.mark.usefixtures("nothing_is_left")

# For what depends on how the kernel isolates; the other tests take the strongest way of this machine.
both_ways = pytest.mark.parametrize("pool", ["namespaces", "landlock"], indirect=True, scope="module")


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Keep an eye on a session's worker; what is returned tells whether it has ended."""
    pidfds = []

    def begin(session: Session) -> Callable[[], bool]:
        pidfds.append(os.dup(session.pidfd))
        poller = select.poll()
        poller.register(pidfds[-1], select.POLLIN)
        return lambda: bool(poller.poll(SECONDS * 1000))

    yield begin
    for pidfd in pidfds:
        os.close(pidfd)


@both_ways
def test_a_result_tells_what_it_took_and_what_kept_the_code_in(pool: Pool) -> None:
    with pool.open() as session:
        assert session.call("").output == ""
        result = session.call("import time; time.sleep(0.05); sum(range(10**6))")
    assert (result.kind, result.output, result.isolation) == (Kind.OK, "499999500000", pool.isolation)
    assert result.seconds >= 0.05
    assert 0 < result.cpu_seconds < result.seconds


DRAWS = """
import os, random, secrets, uuid
print(random.random(), secrets.token_hex(4), uuid.uuid4(), os.urandom(4).hex(), random.SystemRandom().random())
"""


@both_ways
def test_the_same_seed_gives_the_same_and_another_seed_something_else(pool: Pool) -> None:
    def draw(seed: int) -> str:
        with pool.open(seed) as session:
            return session.call(DRAWS).output + session.call(DRAWS).output + session.call("hash('text')").output

    assert draw(5) == draw(5)
    drawn = {draw(seed) for seed in (0, 1, -1, 2**31, 2**32, 2**63 - 1, 10**40, -(10**40))}
    assert len(drawn) == 8


@both_ways
def test_siblings_do_not_share_their_random_numbers(pool: Pool) -> None:
    with pool.open(7) as alone:
        expected = [alone.call(DRAWS).output for _ in range(3)]
    with pool.open(7) as one, pool.open(7) as other:
        found = []
        for _ in range(3):
            found.append(one.call(DRAWS).output)
            other.call(DRAWS)
            other.call("random.seed(0); [random.random() for _ in range(99)]")
    assert found == expected


@pytest.mark.parametrize("seed", ["1", None, 1.0])
def test_a_seed_is_a_whole_number(pool: Pool, seed: int) -> None:
    with pytest.raises(ConfigError, match="seed must be a whole number"):
        pool.open(seed)


@both_ways
def test_each_session_has_its_own_limits(pool: Pool) -> None:
    small = Limits(cpu=0.1, wall=60, memory=64 * MEBIBYTE, output=100, output_bytes=4096)
    with pool.open(limits=small) as one, pool.open() as other:
        assert one.call("b = bytearray(100 << 20)").kind is Kind.MEMORY_LIMIT
        assert other.call("b = bytearray(100 << 20)").kind is Kind.OK
        assert one.call("'x' * 300").dropped == 202
        assert other.call("'x' * 300").dropped == 0
        busy, calm = pool.run([(one, "while True: pass"), (other, "sum(range(10**6))")])
        assert (busy.kind, busy.state_lost, calm.kind) == (Kind.CPU_TIMEOUT, True, Kind.OK)
        assert one.call("1").kind is Kind.SESSION_DEAD
        assert other.call("len(b)").output == str(100 << 20)
    assert (small.cpu, busy.message) == (0.1, "More than 0.1 s of processor time.")


@both_ways
def test_a_session_of_limited_processor_time_ends(pool: Pool) -> None:
    with pool.open(limits=Limits(cpu=0.9, wall=60, session_cpu=1.0)) as session:
        first = session.call("import time\nt = time.process_time()\nwhile time.process_time() < t + 0.6: pass")
        second = session.call("while True: pass")
    assert (first.kind, second.kind, second.state_lost) == (Kind.OK, Kind.CPU_TIMEOUT, True)
    assert second.message == "More than 1 s of processor time in this session."


@pytest.mark.parametrize(
    ("extra", "kind"), [(-1, Kind.OK), (0, Kind.OK), (1, Kind.OUTPUT_LIMIT), (9999, Kind.OUTPUT_LIMIT)]
)
def test_output_of_exactly_the_limit_in_bytes_is_allowed(pool: Pool, extra: int, kind: Kind) -> None:
    with pool.open(limits=Limits(output_bytes=100_000)) as session:
        result = session.call(f"import os\nos.write(1, b'x' * {100_000 + extra}) and None")
        assert result.kind is kind
        assert result.state_lost == (kind is Kind.OUTPUT_LIMIT)
        assert result.output.startswith("xxx")


def test_output_of_exactly_the_limit_in_characters_is_shown_whole(pool: Pool) -> None:
    with pool.open(limits=Limits(output=200)) as session:
        for code, length in {
            "print('ä' * 199)": 200,
            "print('ä' * 200)": 201,
            "'x' * 198": 200,
            "'x' * 199": 201,
            "print('a' * 99); 'x' * 98": 200,
            "print('a' * 99); 'x' * 98 + 'y'": 201,
            "'x' * 99_998": 100_000,
        }.items():
            result = session.call(code)
            assert (code, result.kind, result.dropped) == (code, Kind.OK, max(length - 200, 0))
            head, *rest = result.output.split(f"\n[… {result.dropped} characters dropped …]\n")
            assert len(head + "".join(rest)) == min(length, 200)


def test_code_may_be_long_but_not_endless(pool: Pool) -> None:
    with pool.open() as session:
        for letter in ("x", "終", "🙂"):
            assert session.call(f"len('{letter * 900_000}')").output == "900000"
        result = session.call("#" * 1_000_001)
        assert (result.kind, result.error_type, result.state_lost) == (Kind.USER_ERROR, "invalid_source", False)
        assert "1,000,001" in result.message
        assert session.call("#" * 999_999 + "\n").kind is Kind.OK
        assert session.call("'still ' + 'here'").output == "'still here'"


def test_a_worker_that_does_not_read_its_request_runs_into_the_wall(pool: Pool, watch: Watch) -> None:
    with pool.open(limits=QUICK) as session:
        ended = watch(session)
        session.call("x = 1")
        signal.pidfd_send_signal(session.pidfd, signal.SIGSTOP)
        result = session.call("#" * 900_000)
        assert (result.kind, result.state_lost, result.output) == (Kind.WALL_TIMEOUT, True, "")
        assert ended()


@both_ways
def test_a_slow_answer_is_a_timeout_that_keeps_what_was_written(pool: Pool, watch: Watch) -> None:
    with pool.open(limits=QUICK) as session:
        ended = watch(session)
        result = session.call("import time\nprint('begun')\ntime.sleep(60)\nprint('done')")
        assert (result.kind, result.state_lost, result.output) == (Kind.WALL_TIMEOUT, True, "begun\n")
        assert 0.5 <= result.seconds < SECONDS
        assert ended()
        assert session.call("1").kind is Kind.SESSION_DEAD


@both_ways
def test_a_killed_worker_is_a_crash(pool: Pool) -> None:
    with pool.open() as session:
        killer = threading.Timer(0.2, signal.pidfd_send_signal, (session.pidfd, signal.SIGKILL))
        killer.start()
        result = session.call("print('begun')\nimport time\ntime.sleep(30)\nprint('done')")
        killer.join()
    assert (result.kind, result.signal, result.state_lost) == (Kind.CRASH, signal.SIGKILL, True)
    assert result.output == "begun\n"
    assert result.message == "The interpreter crashed (SIGKILL)."


@both_ways
def test_a_worker_killed_between_two_calls_is_a_crash_as_well(pool: Pool, watch: Watch) -> None:
    with pool.open() as session:
        ended = watch(session)
        session.call("x = 1")
        signal.pidfd_send_signal(session.pidfd, signal.SIGKILL)
        assert ended()
        result = session.call("x")
    assert (result.kind, result.state_lost, result.output) == (Kind.CRASH, True, "")


def test_a_killed_worker_is_noticed_while_another_process_holds_its_end_of_the_channel(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[socket.socket] = []

    def socketpair() -> tuple[socket.socket, socket.socket]:
        pair = real()
        held.append(pair[1].dup())
        return pair

    real = socket.socketpair
    monkeypatch.setattr(socket, "socketpair", socketpair)
    with pool.open(limits=Limits(cpu=0.2, wall=60.0)) as session:
        killer = threading.Timer(0.2, signal.pidfd_send_signal, (session.pidfd, signal.SIGKILL))
        killer.start()
        result = session.call("import time\ntime.sleep(50)")
        killer.join()
    for end in held:
        end.close()
    assert (result.kind, result.signal) == (Kind.CRASH, signal.SIGKILL)


def test_an_interrupted_call_ends_its_session_and_no_other(pool: Pool, watch: Watch) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with pool.open() as session, pool.open() as sibling:
        sibling.call("x = 1")
        ended = watch(session)
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(KeyboardInterrupt):
                session.call("import time\ntime.sleep(30)")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert ended()
        result = session.call("1")
        assert (result.kind, result.message) == (Kind.SESSION_DEAD, "This session is over: a call was interrupted.")
        assert sibling.call("x").output == "1"


def test_one_call_at_a_time(pool: Pool) -> None:
    with pool.open() as session, pool.open() as other:
        results = []
        thread = threading.Thread(target=lambda: results.append(session.call("import time; time.sleep(0.5); 'slept'")))
        thread.start()
        deadline = time.monotonic() + SECONDS
        while not session.calls and time.monotonic() < deadline:
            time.sleep(0.001)
        with pytest.raises(RuntimeError, match="one call at a time"):
            session.call("'barged in'")
        with pytest.raises(RuntimeError, match="one call at a time"):
            pool.run([(other, "1"), (session, "2")])
        thread.join()
        assert [result.output for result in results] == ["'slept'"]
        with pytest.raises(RuntimeError, match="one call at a time"):
            pool.run([(other, "1"), (other, "2")])
        assert [result.output for result in pool.run([(other, "3"), (session, "4")])] == ["3", "4"]
        assert pool.run([]) == []


@pytest.mark.parametrize("closer", ["close", "end"])
def test_a_session_closed_while_it_runs_ends_its_call(pool: Pool, watch: Watch, closer: str) -> None:
    session = pool.open()
    ended = watch(session)
    stop = session.close if closer == "close" else lambda: session.end("somebody said so")
    timer = threading.Timer(0.2, stop)
    timer.start()
    result = session.call("print('begun')\nimport time\ntime.sleep(30)")
    timer.join()
    assert (result.kind, result.state_lost, result.output) == (Kind.SESSION_DEAD, True, "begun\n")
    assert ended()
    assert session.output == -1  # nothing is left open, although the call was in the way


def test_a_closed_session_answers_so(pool: Pool, watch: Watch) -> None:
    session = pool.open()
    ended = watch(session)
    assert "open" in repr(session)
    with session as same:
        assert same is session
    session.close()
    assert ended()
    result = session.call("1")
    assert (result.kind, result.state_lost) == (Kind.SESSION_DEAD, False)
    assert result.message == "This session is over: the session was closed."
    assert "ended: the session was closed" in repr(session)


@both_ways
def test_a_dropped_session_ends(pool: Pool, watch: Watch) -> None:
    session = pool.open()
    ended = watch(session)
    del session
    gc.collect()
    assert ended()


@both_ways
def test_calls_in_many_sessions_at_once_end_each_in_its_own_way(pool: Pool) -> None:
    codes = {
        "import time\ntime.sleep(0.2)\n'slow'": Kind.OK,
        "1 / 0": Kind.USER_ERROR,
        "while True: pass": Kind.CPU_TIMEOUT,
        "import os\nos._exit(3)": Kind.PROCESS_EXIT,
        "exit(4)": Kind.EXIT,
        "'fast'": Kind.OK,
        "import time\ntime.sleep(50)": Kind.WALL_TIMEOUT,
        "print('x' * 2_000_000)": Kind.OUTPUT_LIMIT,
        "import os\nos.close(3)\nwhile True: pass": Kind.PROCESS_EXIT,
    }
    sessions = [pool.open(limits=Limits(cpu=0.2, wall=1 if "sleep(50)" in code else 60)) for code in codes]
    results = pool.run(list(zip(sessions, codes, strict=True)))
    assert [result.kind for result in results] == list(codes.values())
    assert [result.exit_code for result in results if result.exit_code is not None] == [3, 4]
    assert max(result.seconds for result in results) < SECONDS
    for session, result in zip(sessions, results, strict=True):
        assert (session.dead is not None) == result.state_lost
        session.close()


@both_ways
def test_a_jail_that_cannot_be_built_is_reported_at_once(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_file, "_HELLO_SECONDS", 300.0)
    unbuildable = Limits()
    object.__setattr__(unbuildable, "session_cpu", 1e30)  # more than the kernel can count, so not allowed otherwise
    with pytest.raises(IsolationUnavailable, match="could not build its jail: OverflowError"):
        pool.open(limits=unbuildable)


def test_descriptors_are_not_inherited_by_other_programs(pool: Pool) -> None:
    with pool.open() as session:
        held = (session.control.fileno(), session.output, session.pidfd)
        assert not any(os.get_inheritable(descriptor) for descriptor in held)


@both_ways
def test_the_python_that_runs_is_this_one(pool: Pool) -> None:
    with pool.open() as session:
        assert session.call("import sys; sys.version").output == repr(sys.version)
