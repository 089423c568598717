"""What docs/security.md and the docstrings promise, where a busy host or a sly program might break it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from trajgym.envs.sandbox import IsolationUnavailable, Kind, Limits, Pool
from trajgym.envs.sandbox import session as session_file
from trajgym.errors import ConfigError

BURN = "import time\nwhile time.process_time() < {}: pass\n"


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    try:
        pool = Pool(isolation=request.param)
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    with pool:
        yield pool


def test_a_host_that_looks_late_lets_no_call_off_its_limit(pool: Pool) -> None:
    async def late() -> Kind:
        async with await pool.aopen(limits=Limits(cpu=0.1)) as session:
            call = asyncio.create_task(session.acall(BURN.format(0.4)))
            await asyncio.sleep(0)
            time.sleep(3)  # the loop is busy: the reply waits to be read
            return (await call).kind

    assert asyncio.run(late()) is Kind.CPU_TIMEOUT


def test_the_processor_time_of_an_ended_interpreter_is_known(pool: Pool) -> None:
    with pool.open() as session:
        result = session.call(BURN.format(0.3) + "import os\nos._exit(1)")
    assert result.kind is Kind.PROCESS_EXIT
    assert 0.25 < result.cpu_seconds < 2


def test_a_session_out_of_processor_time_is_called_that(pool: Pool) -> None:
    with pool.open(limits=Limits(cpu=5, session_cpu=1)) as session:
        assert session.call("while True: pass").kind is Kind.CPU_TIMEOUT
    with pool.open(limits=Limits(cpu=5, session_cpu=1)) as session:
        assert session.call("import os\nos._exit(9)").kind is Kind.PROCESS_EXIT


def test_signals_of_a_session_do_not_use_up_those_of_its_user(pool: Pool) -> None:
    with pool.open() as session:
        assert session.call("import resource\nresource.getrlimit(resource.RLIMIT_SIGPENDING)").output == "(64, 64)"


def test_what_is_random_follows_the_seed_in_every_library(pool: Pool) -> None:
    code = (
        "import random, secrets, numpy, sympy\n"
        "random.random(), secrets.token_hex(4), numpy.random.random(), numpy.random.default_rng().random(), "
        "sympy.randprime(1, 10**9)"
    )

    def drawn(seed: int) -> list[str]:
        with pool.open(seed) as session:
            return session.call(code).output.strip("()").split(", ")

    assert drawn(1) == drawn(1)
    for other in (2, -1):
        assert all(one != two for one, two in zip(drawn(1), drawn(other), strict=True))


def test_careless_arguments_are_told_and_hurt_nobody(pool: Pool) -> None:
    with pool.open() as one, pool.open() as other:
        for code in (b"1", None, 5, ["1"], {"a": 1}):
            with pytest.raises(ConfigError, match="Code is text"):
                one.call(code)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="Code is text"):
            pool.run([(one, "1"), (other, None)])  # type: ignore[list-item]
        assert [r.output for r in pool.run(zip([one, other], ["1 + 1", "2 + 2"], strict=True))] == ["2", "4"]
    for seed in (1 << 300, -(1 << 300)):
        with pytest.raises(ConfigError, match="256 bits"):
            pool.open(seed)


def test_no_isolation_is_no_isolation_that_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAJGYM_ALLOW_UNSAFE", "1")
    with pytest.raises(ConfigError, match="weaker than min_isolation"):
        Pool(isolation="none", min_isolation="namespaces", allow_unsafe=True)


def test_only_code_that_was_not_run_is_called_refused(pool: Pool) -> None:
    with pool.open() as session:
        spoofed = session.call("class invalid_source(Exception): pass\nprint('did run')\nraise invalid_source('x')")
        assert (spoofed.error_type, spoofed.refused) == ("invalid_source", False)
        refused = session.call("!ls")
        assert (refused.error_type, refused.refused) == ("unsupported_magic", True)


def test_removing_scratch_does_not_hold_up_the_end_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def remove_slowly(folder: str | None) -> None:
        begun.set()
        assert may_end.wait(60)

    try:
        pool = Pool(isolation="landlock", limits=Limits(scratch=1 << 20), packages=())
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    with pool:
        session = pool.open()
        assert session.call("import os\nos.mkdir('folder')").ok
        monkeypatch.setattr(session_file, "_remove", remove_slowly)
        session.close()  # waits for nobody who waits for what comes next
        assert begun.wait(60)
        may_end.set()
