"""The parts of the benchmark of the code interpreter: each measures something and adds its lines to the figures."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from interpreter_contenders import (
    ANSWER,
    IMPORTS,
    PROGRAM,
    Contender,
    Sandbox,
    Subprocess,
    WrongOutputError,
    timed,
)
from interpreter_report import Line
from machine import descendants, private_bytes
from rounds import Array, Estimate, estimate, interleave, median, median_ratio, p95

from trajgym.envs.sandbox import Pool, Result, Session
from trajgym.envs.sandbox.tiers import UNSAFE_SWITCH

__all__ = ["Figures", "calls", "layers", "opening", "throughput"]

FEW, MANY = 32, 256  # sessions
PROCESSES = 2  # subprocesses that run at a time, where calls per second are compared
BURST = 20  # calls
BATCH = 8  # subprocesses per round there
SESSIONS = 24  # of each kind, where isolation is switched off
WAYS = ("pool.run", "asyncio")  # to call many sessions at once
MEGABYTE = 1e6


@dataclass
class Figures:
    """What has been measured so far.

    Args:
        lines: In the order of the table.
        seconds: Of every round, by part of the benchmark and by contender.
    """

    lines: list[Line] = field(default_factory=list)
    seconds: dict[str, dict[str, list[Any]]] = field(default_factory=dict)


def calls(figures: Figures, rounds: int, contenders: Sequence[Contender]) -> None:
    """Time the program with every contender; those named ``subprocess`` and ``trajgym`` are compared.

    The others start a process per program and take one turn a round. A session, for which a call is short, takes as
    many in a row as a step of training makes; the first of them finds the processor's caches full of somebody else's
    work, and is shown by itself as well.
    """
    single = {one.name: timed(one.call) for one in contenders}

    def turn(name: str) -> Callable[[], list[float]]:
        return lambda: [single[name]() for _ in range(BURST if name == "trajgym" else 1)]

    seconds = interleave({name: turn(name) for name in single}, rounds)
    figures.seconds["calls"] = seconds
    slow, fast = seconds["subprocess"], seconds["trajgym"]
    first = [calls[0] for calls in fast]
    figures.lines += [
        Line("call, median", "×", estimate(median_ratio, slow, fast), least=50),
        # Against the subprocess's median, not its own 95th percentile: so the target is harder to meet.
        Line("call, p95", "×", estimate(_median_to_p95, slow, fast), least=20),
        Line("call, median", "µs", estimate(_microseconds, fast)),
        Line("  the first after other work, median", "×", estimate(median_ratio, slow, first)),
        Line("  the first after other work, median", "µs", estimate(_microseconds, first)),
    ]


def opening(figures: Figures, rounds: int, baseline: Subprocess, ours: Sandbox) -> None:
    """Time a new session with its first call, and a new process; both import numpy and sympy."""
    code = IMPORTS + PROGRAM
    contenders = {
        "subprocess": timed(baseline.call_with_packages, code),
        "trajgym": timed(ours.open_and_call, code),
    }
    seconds = interleave(contenders, rounds)
    figures.seconds["opening"] = seconds
    ratio = estimate(median_ratio, seconds["subprocess"], seconds["trajgym"])
    figures.lines += [
        Line("open a session and call", "×", ratio, least=20),
        Line("open a session and call", "ms", estimate(lambda s: 1e3 * median(s), seconds["trajgym"])),
    ]


def throughput(figures: Figures, rounds: int, baseline: Subprocess, pool: Pool) -> None:
    """Count calls per second of few and of many sessions at once, and weigh the many."""
    few = _rates(figures, rounds, baseline, pool, FEW, least=2000)
    for way in WAYS:
        for processes, least in ((1, 50.0), (PROCESSES, -math.inf)):
            against = few[_beside(processes)], few[way]
            ratio = estimate(lambda s, t: (FEW / median(t)) / (BATCH / median(s)), *against)
            beside = "" if processes == 1 else f", beside {processes} processes at a time"
            figures.lines.append(Line(f"{FEW} sessions, {way}{beside}", "×", ratio, least=least))
    _rates(figures, rounds, baseline, pool, MANY, least=1000)


def _rates(
    figures: Figures, rounds: int, baseline: Subprocess, pool: Pool, count: int, least: float
) -> dict[str, list[float]]:
    """Run the program in ``count`` sessions at once, each way, and return the seconds of each round."""
    before = descendants(os.getpid())
    with ExitStack() as stack:
        sessions = [stack.enter_context(pool.open(seed)) for seed in range(count)]
        runner = stack.enter_context(asyncio.Runner())
        threads = stack.enter_context(ThreadPoolExecutor(PROCESSES))

        def one_by_one() -> float:
            start = time.perf_counter()
            outputs = [baseline.call(PROGRAM)[0] for _ in range(BATCH)]
            return _checked(outputs, time.perf_counter() - start)

        def subprocesses() -> float:
            start = time.perf_counter()
            outputs = [output for output, _ in threads.map(baseline.call, [PROGRAM] * BATCH)]
            return _checked(outputs, time.perf_counter() - start)

        def pool_run() -> float:
            start = time.perf_counter()
            results = pool.run([(session, PROGRAM) for session in sessions])
            return _checked([result.text for result in results], time.perf_counter() - start)

        def gather() -> float:
            start = time.perf_counter()
            results = runner.run(_gather(sessions))
            return _checked([result.text for result in results], time.perf_counter() - start)

        baselines = {_beside(1): one_by_one, _beside(PROCESSES): subprocesses}
        seconds = interleave({**baselines, **dict(zip(WAYS, (pool_run, gather), strict=True))}, rounds)
        figures.seconds[f"{count} sessions"] = seconds
        for way in WAYS:
            rate = estimate(lambda s: count / median(s), seconds[way])
            figures.lines.append(Line(f"{count} sessions, {way}", "/s", rate, least=least))
        if count == MANY:
            figures.lines.append(_memory(count, descendants(os.getpid()) - before))
    return seconds


def _beside(processes: int) -> str:
    return f"subprocess, {processes} at a time"


async def _gather(sessions: Sequence[Session]) -> list[Result]:
    return await asyncio.gather(*(session.acall(PROGRAM) for session in sessions))


def _checked(outputs: Sequence[str], seconds: float) -> float:
    wrong = [output for output in outputs if ANSWER not in output]
    if wrong:
        raise WrongOutputError(f"expected {ANSWER!r} in every output, got {wrong[0][-300:]!r}")
    return seconds


def _memory(sessions: int, processes: set[int]) -> Line:
    """Private memory per session: that of all the processes that opening the sessions has started."""
    what, most = f"{sessions} sessions, memory each", 8.0
    try:
        megabytes = sum(private_bytes(process) for process in processes) / sessions / MEGABYTE
    except OSError as error:
        return Line(what, "MB", None, most=most, note=f"/proc does not tell ({error}); root may look")
    if not processes:
        return Line(what, "MB", None, most=most, note="no process was started")
    return Line(what, "MB", Estimate(megabytes, megabytes, megabytes), most=most)


def layers(figures: Figures, rounds: int, pool: Pool) -> None:
    """Time calls one right after the other, in sessions that are isolated and in others that are not."""
    with _unsafe_pool() as bare:
        # Several sessions of each, in turn: two of one kind can differ by more than the two kinds do.
        contenders = {
            name: itertools.cycle([timed(Sandbox(name, kind).call) for _ in range(SESSIONS)])
            for name, kind in (("isolated", pool), ("bare", bare))
        }
        seconds = interleave({name: lambda turn=turn: next(turn)() for name, turn in contenders.items()}, rounds)  # type: ignore[misc]
    figures.seconds["layers"] = seconds
    percent = estimate(lambda s, t: 100 * (median(s) / median(t) - 1), seconds["isolated"], seconds["bare"])
    figures.lines += [
        Line("call, nothing else between, median", "µs", estimate(_microseconds, seconds["isolated"])),
        Line("  what isolation adds to it", "%", percent, most=10),
    ]


@contextmanager
def _unsafe_pool() -> Iterator[Pool]:
    """A pool without isolation, for programs of our own."""
    previous = os.environ.get(UNSAFE_SWITCH)
    os.environ[UNSAFE_SWITCH] = "1"
    try:
        with Pool(isolation="none", allow_unsafe=True) as pool:
            yield pool
    finally:
        if previous is None:
            del os.environ[UNSAFE_SWITCH]
        else:
            os.environ[UNSAFE_SWITCH] = previous


def _microseconds(seconds: Array) -> Array:
    return 1e6 * median(seconds)


def _median_to_p95(slow: Array, fast: Array) -> Array:
    return median(slow) / p95(fast)
