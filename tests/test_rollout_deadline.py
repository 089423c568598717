"""Deadlines: who hangs or is slow beside the own group is left out, and nobody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import pytest

from trajgym.envs.spaces import Unicode
from trajgym.errors import ConfigError
from trajgym.policies.base import TextPolicy
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.rollout_deadline import GroupClock
from trajgym.types import Message, StopReason, Task

LIMIT = 0.6  # seconds


class Waiting(gymnasium.Env[str, str]):
    """Ends after ``turns``; waits in the places and for as long as it is told, by seed."""

    over: threading.Event
    waits: dict[tuple[str, int], float]  # (method, seed) → seconds
    turns: dict[int, int]

    def __init__(self) -> None:
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self.closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed, self.count = seed or 0, 0
        self.over.wait(self.waits.get(("reset", self.seed), 0.0))
        return f"seed {seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.over.wait(self.waits.get(("step", self.seed), 0.0))
        self.count += 1
        return "go on", 1.0, self.count >= self.turns.get(self.seed, 1), False, {}

    def close(self) -> None:
        self.closed += 1


class Chatter(TextPolicy):
    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        return "hm"


@pytest.fixture(autouse=True)
def over(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    event = threading.Event()
    monkeypatch.setattr(Waiting, "over", event, raising=False)
    monkeypatch.setattr(Waiting, "waits", {}, raising=False)
    monkeypatch.setattr(Waiting, "turns", {}, raising=False)
    yield event
    event.set()


def episodes(count: int) -> list[Episode]:
    return [Episode(s, s) for s in range(count)]


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(("threads", "method"), [(1, "step"), (8, "reset")])
def test_who_hangs_is_left_behind(
    deterministic: bool, threads: int, method: str, over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it held the only thread; later rollouts go on beside it, and it is closed once it comes back."""
    made: list[Waiting] = []

    def make() -> Waiting:
        made.append(Waiting())
        return made[-1]

    monkeypatch.setattr(Waiting, "waits", {(method, 2): 60.0})
    pool = EnvPool(make, threads=threads, deadline=LIMIT)
    found = collect(Chatter(), pool, episodes(5), deterministic=deterministic, group_size=5)
    assert [t.valid for t in found] == [True, True, False, True, True]
    assert found[2].fault == f"Straggler: {method}() had not returned after 0.6 s."
    assert [s.stop_reason for s in found[2].steps] == ([StopReason.FAULT] if method == "step" else [])
    hangs = next(env for env in made if env.seed == 2)
    assert hangs.closed == 0  # somebody is in it

    monkeypatch.setattr(Waiting, "waits", {})
    assert all(t.valid for t in collect(Chatter(), pool, episodes(5), group_size=5))
    assert (len(made), hangs.seed) == (6, 2)  # it is not used again
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 30, "it did not wait for the one that hangs"
    over.set()
    end = time.monotonic() + 30
    while not hangs.closed and time.monotonic() < end:
        time.sleep(0.01)
    assert [env.closed for env in made] == [1] * 6


@pytest.mark.parametrize("deterministic", [True, False])
def test_who_is_slow_beside_the_group_is_closed(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of it takes too long, but all together do."""
    monkeypatch.setattr(Waiting, "turns", {3: 100})
    monkeypatch.setattr(Waiting, "waits", {("step", 3): 0.1})
    with EnvPool(Waiting, deadline=LIMIT) as pool:
        found = collect(Chatter(), pool, episodes(4), deterministic=deterministic, group_size=4)
    assert [t.valid for t in found] == [True, True, True, False]
    assert found[3].fault == "Straggler: Not over 0.6 s after half of its group."
    assert 1 <= len(found[3].steps) < 20
    assert found[3].steps[0].reward == 1.0  # what it had done is kept for people to look at


def test_a_group_waits_for_those_whom_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two is nothing to compare with: the other may take its time. So may a whole group that is slow."""
    slow = (1, 2, 3)
    monkeypatch.setattr(Waiting, "turns", dict.fromkeys(slow, 10))
    monkeypatch.setattr(Waiting, "waits", {("step", s): 0.1 for s in slow})
    with EnvPool(Waiting, deadline=LIMIT) as pool:
        found = collect(Chatter(), pool, episodes(4), group_size=2)
    assert [t.fault for t in found] == [None] * 4


def test_who_waits_for_others_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """In lockstep one that hangs holds up those with many turns, whose group is half over by then."""
    monkeypatch.setattr(Waiting, "turns", {2: 30, 3: 30, 4: 2})
    monkeypatch.setattr(Waiting, "waits", {("step", 4): 60.0})
    with EnvPool(Waiting, deadline=LIMIT) as pool:
        found = collect(Chatter(), pool, episodes(5), deterministic=True, group_size=4)
    assert [t.valid for t in found] == [True, True, True, True, False]
    # The same for a call that waits for the only thread.
    monkeypatch.setattr(Waiting, "turns", {3: 2})
    monkeypatch.setattr(Waiting, "waits", {("step", 2): 60.0})
    with EnvPool(Waiting, threads=1, deadline=LIMIT) as pool:
        found = collect(Chatter(), pool, episodes(4), group_size=4)
    assert [t.valid for t in found] == [True, True, False, True]


def test_without_a_deadline_everybody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Waiting, "waits", {("step", 0): 1.2})
    ticks: list[int] = []
    with EnvPool(Waiting) as pool:
        found = collect(Chatter(), pool, episodes(2), on_tick=ticks.append, group_size=2)
    assert [t.valid for t in found] == [True, True]
    assert ticks.count(1) >= 2  # Ctrl-C would have been heard meanwhile


@pytest.mark.parametrize("deadline", [0, -1.0, float("nan"), float("inf")])
def test_a_deadline_is_a_time(deadline: float) -> None:
    with pytest.raises(ConfigError, match="deadline must be a finite number of seconds above 0"):
        EnvPool(Waiting, deadline=deadline)


def test_the_clock_of_a_group() -> None:
    clock = GroupClock(episodes=7, size=5)
    for member in range(4):
        clock.begins(member, 0.0)
    for member in range(3):
        clock.ends(member, valid=member > 0, now=1.0)
    assert clock.waits(3, 9.0) == 0.0  # one has not begun
    clock.begins(4, 10.0)
    assert (clock.waits(3, 9.0), clock.waits(3, 12.0)) == (0.0, 2.0)
    clock.held_up(3, 8.0, 11.0)
    assert (clock.waits(3, 12.0), clock.waits(4, 12.0)) == (1.0, 2.0)

    for member in (5, 6):  # the last group is smaller, and two is all it has
        clock.begins(member, 0.0)
    clock.ends(5, valid=True, now=1.0)
    assert clock.waits(6, 99.0) == 0.0


def test_faults_are_nobody_to_compare_with() -> None:
    clock = GroupClock(episodes=4, size=4)
    for member in range(4):
        clock.begins(member, 0.0)
    for member in range(3):
        clock.ends(member, valid=member == 0, now=1.0)
    assert clock.waits(3, 99.0) == 0.0
