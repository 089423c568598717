"""Many sessions at once, and many after one another: each keeps its own state, and nothing grows."""

from __future__ import annotations

import gc
import os
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from trajgym.envs.sandbox import IsolationUnavailable, Kind, Limits, Pool

MEBIBYTE = 1 << 20
SECONDS = 20.0  # for what should happen at once, on a machine that is busy
FILES_PER_SESSION = 3


@pytest.fixture(params=["namespaces", "landlock"])
def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    with tempfile.TemporaryDirectory(prefix="trajgym-tests-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)  # every user may enter
        monkeypatch.setattr(tempfile, "tempdir", folder)
        try:
            pool = Pool(isolation=request.param, packages=(), limits=Limits(scratch=MEBIBYTE, cpu=5.0, wall=300.0))
        except IsolationUnavailable as error:
            pytest.skip(str(error))
        with pool:
            yield pool
        assert os.listdir(folder) == []


@dataclass(frozen=True)
class Held:
    """What this process and the zygote hold."""

    files: int
    threads: int
    mounts: int
    temporary: int
    zygote_files: int
    zygote_mounts: int
    workers: int

    @classmethod
    def now(cls, zygote: int) -> Held:
        gc.collect()
        return cls(
            files=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            mounts=_lines("/proc/self/mountinfo"),
            temporary=sum(len(folders) + len(files) for _, folders, files in os.walk(tempfile.gettempdir())),
            zygote_files=len(os.listdir(f"/proc/{zygote}/fd")) if os.access(f"/proc/{zygote}/fd", os.R_OK) else 0,
            zygote_mounts=_lines(f"/proc/{zygote}/mountinfo"),
            workers=len(_children(zygote)),
        )

    @classmethod
    def once_it_is(cls, expected: Held, zygote: int) -> Held:
        """Wait for the last workers to be gone."""
        deadline = time.monotonic() + SECONDS
        while (found := cls.now(zygote)) != expected and time.monotonic() < deadline:
            time.sleep(0.01)
        return found


def _lines(path: str) -> int:
    return Path(path).read_text().count("\n")


def _children(parent: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry))
    return found


def _resident(pid: int) -> float:
    """Memory of a process in mebibytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / MEBIBYTE


def _open_and_close(pool: Pool, number: int) -> None:
    """Live a short life, of a kind that depends on the number."""
    session = pool.open(number)
    if number % 10 == 0:
        assert session.call("x = 6").ok
        assert session.call(f"open('file', 'w').write('{number}')\nx * 7").output == "42"
    elif number % 10 == 1:
        assert session.call("import os\nos._exit(1)").kind is Kind.PROCESS_EXIT
    session.close()


def _cycle(pool: Pool, count: int) -> None:
    (zygote,) = _children(pool._link.pid)
    _open_and_close(pool, 0)
    before = Held.now(zygote)
    for number in range(count):
        _open_and_close(pool, number)
    assert Held.once_it_is(before, zygote) == before
    assert pool.restarts == 0


def test_after_three_hundred_sessions_nothing_is_left(pool: Pool) -> None:
    _cycle(pool, 300)


@pytest.mark.slow
def test_after_ten_thousand_sessions_nothing_has_grown(pool: Pool) -> None:
    (zygote,) = _children(pool._link.pid)
    _cycle(pool, 1_000)
    before = _resident(os.getpid()), _resident(zygote)
    _cycle(pool, 9_000)
    grown = _resident(os.getpid()) - before[0], _resident(zygote) - before[1]
    assert max(grown) < 4, f"trainer and zygote grew by {grown} MiB"


def _at_once(pool: Pool, count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES_PER_SESSION * count + 200
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"{count} sessions take {needed} open files; `ulimit -Hn` is {hard}")
    (zygote,) = _children(pool._link.pid)
    before = Held.now(zygote)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    try:
        sessions = [pool.open(number) for number in range(count)]
        for code, shown in (
            ("x = {0}", ""),
            ("x * x", "{1}"),
            ("open('file', 'w').write(str(x)); x += 1", ""),
            ("x", "{2}"),
        ):
            results = pool.run([(session, code.format(number)) for number, session in enumerate(sessions)])
            assert [r.output for r in results] == [shown.format(n, n * n, n + 1) for n in range(count)]
        victims = sessions[::10]
        results = pool.run([(session, "import os; os.abort()") for session in victims])
        assert {result.kind for result in results} == {Kind.CRASH}
        results = pool.run([(session, "open('file').read()") for session in sessions])
        for number, (session, result) in enumerate(zip(sessions, results, strict=True)):
            if session in victims:
                assert result.kind is Kind.SESSION_DEAD
            else:
                assert result.output == repr(str(number))
            session.close()
        del session, victims
        sessions.clear()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert Held.once_it_is(before, zygote) == before


def test_a_hundred_sessions_at_once_keep_their_own_state(pool: Pool) -> None:
    _at_once(pool, 100)


@pytest.mark.slow
def test_a_thousand_sessions_at_once_keep_their_own_state(pool: Pool) -> None:
    _at_once(pool, 1_000)
