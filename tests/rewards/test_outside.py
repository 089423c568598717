"""Calls to elsewhere: together, once, in time, or a fault of ours."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from trajgym.errors import ConfigError, EnvironmentFault
from trajgym.rewards.outside import Outside


class Model:
    """Doubles numbers, and keeps what it was asked."""

    def __init__(self, answer: Callable[[list[int]], Any] | None = None) -> None:
        self.asked: list[list[int]] = []
        self.answer = answer or (lambda numbers: [2 * n for n in numbers])

    def __call__(self, numbers: list[int]) -> Any:
        self.asked.append(numbers)
        return self.answer(numbers)


def outside(model: Callable[[list[int]], Any], **options: Any) -> Outside[int, int]:
    return Outside(model, **{"linger": 0.0, "cooldown": 0.0, **options})


def test_equal_requests_are_made_once_and_remembered() -> None:
    model = Model()
    call = outside(model)
    assert call([1, 2, 1, 3, 2]) == [2, 4, 2, 6, 4]
    assert call([3, 4]) == [6, 8]
    assert call([]) == []
    assert model.asked == [[1, 2, 3], [4]]


def test_batches_have_a_size() -> None:
    model = Model()
    assert outside(model, batch_size=3)(list(range(8))) == [2 * n for n in range(8)]
    assert model.asked == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_the_oldest_replies_are_forgotten() -> None:
    model = Model()
    call = outside(model, remembered=2)
    assert call([1, 2, 3]) == [2, 4, 6]
    call([3])
    call([1])
    assert model.asked == [[1, 2, 3], [1]]


def test_threads_travel_together() -> None:
    model = Model()
    call = outside(model, linger=0.5, batch_size=64)
    start = threading.Barrier(16)

    def one(number: int) -> list[int]:
        start.wait()
        return call([number % 8])

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(one, range(16))) == [[2 * (n % 8)] for n in range(16)]
    assert len(model.asked) == 1
    assert sorted(model.asked[0]) == list(range(8))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda numbers: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda numbers: [1], "ValueError: 1 replies to 2 requests"),
        (lambda numbers: None, "TypeError"),
        (lambda numbers: time.sleep(30), r"TimeoutError: no answer within 0\.05 s"),
        (lambda numbers: (_ for _ in ()).throw(TimeoutError("theirs")), "TimeoutError: theirs"),
        (lambda numbers: (_ for _ in ()).throw(SystemExit(3)), "SystemExit"),
    ],
    ids=["raises", "too few", "nothing", "late", "its own timeout", "exits"],
)
def test_an_outage_is_our_fault(answer: Any, why: str) -> None:
    model = Model(answer)
    with pytest.raises((EnvironmentFault, SystemExit), match=f"The oracle is out of order: {why}|3"):
        outside(model, name="oracle", timeout=0.05)([1, 2])
    assert len(model.asked) >= 1


def test_a_call_is_tried_again() -> None:
    moods = iter([RuntimeError("busy"), None, RuntimeError("busy"), RuntimeError("gone")])

    def moody(numbers: list[int]) -> list[int]:
        if mood := next(moods):
            raise mood
        return numbers

    call = outside(moody, attempts=2)
    assert call([1]) == [1]
    with pytest.raises(EnvironmentFault, match="gone"):
        call([2])


def test_after_an_outage_nobody_waits_and_nothing_is_remembered() -> None:
    down = True

    def flaky(numbers: list[int]) -> list[int]:
        if down:
            raise OSError("no route")
        return numbers

    model = Model(flaky)
    call = outside(model, attempts=1, cooldown=0.3)
    for _ in range(3):
        with pytest.raises(EnvironmentFault, match="no route"):
            call([1])
    assert len(model.asked) == 1
    down = False
    time.sleep(0.35)
    assert call([1]) == [1]


def test_everyone_who_waits_learns_of_the_outage() -> None:
    call = outside(Model(lambda numbers: 1 / 0), linger=0.2)

    def one(number: int) -> str:
        with pytest.raises(EnvironmentFault) as caught:
            call([number])
        return str(caught.value)

    with ThreadPoolExecutor(8) as threads:
        assert all("ZeroDivisionError" in why for why in threads.map(one, range(8)))


def twice(numbers: list[int]) -> list[int]:
    return [2 * n for n in numbers]


def test_it_can_be_sent_to_another_process() -> None:
    call = outside(twice)
    call([1])
    assert pickle.loads(pickle.dumps(call))([1, 2]) == [2, 4]


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"attempts": 1.5},
        {"remembered": True},
        {"linger": -1.0},
        {"timeout": 0.0},
        {"cooldown": "1"},
        {"linger": False},
    ],
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Outside(twice, **options)


def test_it_needs_a_function() -> None:
    with pytest.raises(ConfigError, match="judge is a function"):
        Outside("http://judge")  # type: ignore[arg-type]
