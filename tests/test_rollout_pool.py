"""The pool's threads: as many as are needed, none that anybody must wait for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest

from trajgym import rollout, rollout_pool
from trajgym.envs.spaces import Unicode
from trajgym.errors import ConfigError
from trajgym.policies.base import TextPolicy
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.types import Message, Task


class Quiet(gymnasium.Env[str, str]):
    def __init__(self) -> None:
        self.observation_space = Unicode()
        self.action_space = Unicode()


def threads() -> int:
    return sum(thread.name == "trajgym-env" for thread in threading.enumerate())


def test_as_many_threads_as_there_are_calls_at_once() -> None:
    gate = threading.Barrier(4, timeout=60)

    def meet() -> tuple[int]:
        return (gate.wait(),)

    before = threads()
    with EnvPool(Quiet, threads=4) as pool:
        calls = [pool.submit(lambda: (7,)) for _ in range(1)]
        assert calls[0].result(60) == (7,)
        met = [pool.submit(meet) for _ in range(8)]  # twice four
        assert sorted(call.result(60)[0] for call in met) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert threads() - before == 4
    assert threads() == before


def test_without_threads_calls_run_where_they_are_asked_for() -> None:
    def whose() -> tuple[str]:
        return (threading.current_thread().name,)

    def fail() -> tuple[str]:
        raise ValueError("broken")

    before = threads()
    with EnvPool(Quiet, threads=0) as pool:
        assert pool.submit(whose).result(0) == (threading.current_thread().name,)
        with pytest.raises(ValueError, match="broken"):
            pool.submit(fail).result(0)
        assert threads() == before


def test_nobody_can_be_left_behind_without_threads() -> None:
    with pytest.raises(ConfigError, match="threads must be at least 1 with a deadline, got 0"):
        EnvPool(Quiet, threads=0, deadline=1.0)
    with pytest.raises(ConfigError, match="threads must be at least 0, got -1"):
        EnvPool(Quiet, threads=-1)


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_same_episodes_with_threads_and_without(deterministic: bool) -> None:
    from trajgym.envs.make import make
    from trajgym.policies.scripted import ExpertPolicy

    plans = [Episode(seed, seed) for seed in range(6)]
    played = []
    for count in (0, 4):
        with EnvPool(lambda: make("ArithmeticTool-v0"), threads=count) as pool:
            played.append(collect(ExpertPolicy(capacity=3), pool, plans, deterministic=deterministic))
    assert [t.steps[-1].reward > 0 for t in played[0]] == [True] * 6
    assert played[0] == played[1]


def test_a_call_that_is_left_gives_its_place_to_others() -> None:
    over, entered = threading.Event(), threading.Event()

    def hang() -> tuple[Any, ...]:
        entered.set()
        return (over.wait(60),)

    closed: list[str] = []

    class Named(Quiet):
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)

    with EnvPool(Quiet, threads=1) as pool:
        hangs, waits = pool.submit(hang), pool.submit(lambda: (1,))
        never = pool.submit(lambda: (2,))
        assert entered.wait(60)
        pool.leave(never, Named("never begun"))
        assert closed == ["never begun"]
        pool.leave(hangs, Named("hangs"))
        pool.leave(hangs, Named("hangs, and is left twice"))
        assert waits.result(60) == (1,)
        assert pool.submit(lambda: (3,)).result(60) == (3,)
        assert closed == ["never begun"]
        over.set()
        assert hangs.result(60) == (True,)
        pool.leave(waits, Named("had answered"))
        assert "had answered" in closed
        assert pool.submit(lambda: (4,)).result(60) == (4,)
    assert never.cancelled()
    assert sorted(closed) == ["had answered", "hangs", "hangs, and is left twice", "never begun"]


class Hanging(Quiet):
    over = threading.Event()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.over.wait(60)
        return "", {}


class Chatter(TextPolicy):
    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        return "hm"


def test_who_stops_does_not_wait_for_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No deadline is set: this is Ctrl-C while nothing else happens."""

    class Stop(Exception):
        pass

    def stop(done: int) -> None:
        raise Stop

    monkeypatch.setattr(rollout, "_GRACE", 0.1)
    monkeypatch.setattr(rollout_pool, "_GRACE", 0.1)
    begin = time.monotonic()
    with pytest.raises(Stop), EnvPool(Hanging) as pool:
        collect(Chatter(), pool, [Episode(0, 0)], on_tick=stop)
    assert time.monotonic() - begin < 30
    Hanging.over.set()


HANGS = """
import sys, threading
from test_rollout_pool import Chatter, Hanging
from trajgym.rollout import EnvPool, Episode, collect
Hanging.over.wait = lambda seconds: threading.Event().wait()
with EnvPool(Hanging, deadline=0.2) as pool:
    (trajectory,) = collect(Chatter(), pool, [Episode(0, 0)])
print(trajectory.fault)
"""


def test_a_process_ends_although_a_thread_hangs_for_ever() -> None:
    code = f"import sys; sys.path.insert(0, {str(sys.modules[__name__].__file__).rsplit('/', 1)[0]!r})\n{HANGS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.returncode) == ("Straggler: reset() had not returned after 0.2 s.\n", 0), done.stderr
