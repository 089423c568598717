"""Sessions in an event loop: nothing blocks it, and neither a cancelled call nor a loop that ends leaves anything."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trajgym.envs.sandbox import Kind, Limits, Pool, Session

SECONDS = 20.0  # for what should happen at once, on a machine that is busy


pytestmark = pytest.mark.usefixtures("nothing_is_left")

# For what depends on how the kernel isolates; the other tests take the strongest way of this machine.
both_ways = pytest.mark.parametrize("pool", ["namespaces", "landlock"], indirect=True, scope="module")


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run ``main`` in a loop that complains of everything, and see that it watches nothing in the end."""
    complaints: list[str] = []

    async def watched() -> Any:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: complaints.append(context["message"]))
        before = len(loop._selector.get_map())  # type: ignore[attr-defined]
        result = await main()
        assert len(loop._selector.get_map()) == before  # type: ignore[attr-defined]
        return result

    result = asyncio.run(watched(), debug=False)
    gc.collect()
    assert complaints == []
    return result


def has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    try:
        return bool(poller.poll(SECONDS * 1000))
    finally:
        os.close(pidfd)


@both_ways
def test_calls_run_side_by_side(pool: Pool) -> None:
    async def one(number: int) -> str:
        async with await pool.aopen(number) as session:
            await session.acall(f"import time\nx = {number}\ntime.sleep(0.3)")
            return (await session.acall("print(x)\nx * x")).output

    async def main() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(20)))

    assert run(main) == [f"{number}\n{number * number}" for number in range(20)]


def test_the_loop_goes_on_while_code_is_busy(pool: Pool) -> None:
    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticker = asyncio.create_task(tick())
        with pool.open(limits=Limits(cpu=0.3, wall=30)) as session:
            assert (await session.acall("while True: pass")).kind is Kind.CPU_TIMEOUT
        ticker.cancel()
        return ticks

    assert run(main) >= 3


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("6 * 7", Kind.OK),
        ("1 / 0", Kind.USER_ERROR),
        ("print('x' * 90_000)", Kind.OK),
        ("print('x' * 2_000_000)", Kind.OUTPUT_LIMIT),
        (f"len('{'x' * 900_000}')", Kind.OK),
        ("#" * 1_000_001, Kind.USER_ERROR),
        ("import time\ntime.sleep(60)", Kind.WALL_TIMEOUT),
        ("import os\nos._exit(1)", Kind.PROCESS_EXIT),
        ("import os\nos.abort()", Kind.CRASH),
    ],
    ids=lambda value: str(value)[:20],
)
def test_every_end_is_the_same_as_without_a_loop(pool: Pool, code: str, kind: Kind) -> None:
    limits = Limits(cpu=0.1, wall=0.5) if kind is Kind.WALL_TIMEOUT else Limits()

    async def main() -> None:
        with pool.open(limits=limits) as session, pool.open(limits=limits) as other:
            found, expected = await session.acall(code), other.call(code)
            assert (found.kind, found.output, found.message) == (expected.kind, expected.output, expected.message)
            assert found.kind is kind
            assert (await session.acall("1")).kind is (Kind.SESSION_DEAD if found.state_lost else Kind.OK)

    run(main)


@both_ways
def test_a_cancelled_call_ends_its_session_and_no_other(pool: Pool) -> None:
    async def main() -> int:
        session, sibling = await pool.aopen(), await pool.aopen()
        await sibling.acall("x = 1")
        pidfd = os.dup(session.pidfd)
        task = asyncio.create_task(session.acall("print('begun')\nwhile True: pass"))
        other = asyncio.create_task(sibling.acall("import time\ntime.sleep(0.5)\nx"))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        result = await session.acall("1")
        assert (result.kind, result.message) == (Kind.SESSION_DEAD, "This session is over: a call was cancelled.")
        assert (await other).output == "1"
        assert (await sibling.acall("x + 1")).output == "2"
        sibling.close()
        return pidfd

    assert has_ended(run(main))


def test_a_call_may_take_no_longer_than_the_caller_says(pool: Pool) -> None:
    async def main() -> None:
        with pool.open() as session:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.acall("import time\ntime.sleep(9)"), 0.1)
            assert session.dead == "a call was cancelled"

    run(main)


def test_one_call_at_a_time(pool: Pool) -> None:
    async def main() -> None:
        async with await pool.aopen() as session:
            first = asyncio.create_task(session.acall("import time\ntime.sleep(0.3)\n'first'"))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="one call at a time"):
                await session.acall("'second'")
            with pytest.raises(RuntimeError, match="one call at a time"):
                session.call("'third'")
            assert (await first).output == "'first'"

    run(main)


def test_a_session_closed_while_it_runs_ends_its_call(pool: Pool) -> None:
    async def main() -> None:
        session = await pool.aopen()
        call = asyncio.create_task(session.acall("import time\ntime.sleep(30)"))
        await asyncio.sleep(0.1)
        session.close()
        result = await call
        assert (result.kind, result.state_lost, session.output) == (Kind.SESSION_DEAD, True, -1)

    run(main)


def test_a_worker_killed_in_a_call_is_a_crash(pool: Pool) -> None:
    async def main() -> None:
        async with await pool.aopen() as session:
            call = asyncio.create_task(session.acall("import time\ntime.sleep(30)"))
            await asyncio.sleep(0.1)
            signal.pidfd_send_signal(session.pidfd, signal.SIGKILL)
            result = await call
            assert (result.kind, result.signal) == (Kind.CRASH, signal.SIGKILL)

    run(main)


def test_a_loop_that_ends_cancels_its_calls(pool: Pool) -> None:
    kept: list[Session] = []

    async def main() -> int:
        kept.append(await pool.aopen())
        running = await pool.aopen()
        kept.append(running)
        pidfd = os.dup(running.pidfd)
        kept.append(asyncio.create_task(running.acall("import time\ntime.sleep(30)")))  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        return pidfd

    assert has_ended(asyncio.run(main()))
    idle, running, _ = kept
    assert idle.call("'idle sessions outlive a loop'").ok
    assert running.call("1").kind is Kind.SESSION_DEAD
    idle.close()
    kept.clear()


@pytest.mark.filterwarnings("ignore:coroutine 'Session.acall' was never awaited")
def test_a_loop_that_is_closed_under_a_call_ends_the_session(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # it tells of the task that was never finished
    session = pool.open()
    pidfd = os.dup(session.pidfd)

    async def main() -> None:
        tasks.append(asyncio.ensure_future(session.acall("import time\ntime.sleep(30)")))
        await asyncio.sleep(0.1)

    tasks: list[asyncio.Future[Any]] = []
    loop.run_until_complete(main())
    loop.close()
    tasks.clear()
    gc.collect()
    assert has_ended(pidfd)
    assert session.call("1").kind is Kind.SESSION_DEAD


def test_opening_can_be_cancelled(pool: Pool) -> None:
    async def main() -> None:
        for _ in range(5):
            task = asyncio.create_task(pool.aopen())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(main)
    gc.collect()
    deadline = time.monotonic() + SECONDS
    while pool._link.members and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert len(pool._link.members) == 0
