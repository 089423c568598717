"""The benchmark of environments, many at once: who takes mixed steps, and what is said about growth."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
BESIDE = ("rounds", "machine", "interpreter_peers", "envs_driver", "envs_peers", "envs_parts")


@pytest.fixture(scope="module")
def parts() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("envs_parts")
    for name in BESIDE:
        sys.modules.pop(name, None)


class Asked:
    """A contender whose figures are made up."""

    name = "asked"
    title = "Asked 1.0"
    lacks: dict[str, str] = {}  # noqa: RUF012
    process = SimpleNamespace(pid=os.getpid())

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.flown: list[tuple[int, list[str]]] = []

    error = ""

    def attempt(self, **request: Any) -> dict[str, Any]:
        return self.ask(**request)

    def ask(self, **request: Any) -> dict[str, Any]:
        if request["do"] != "fly":
            return {}
        self.flown.append((request["count"], request["kinds"]))
        return {"times": [[self.seconds if kind == "python" else 1e-6] * 2 for kind in request["kinds"]]}


def test_sizes_that_need_too_much_memory_are_left_out(parts: ModuleType) -> None:
    row = parts.Growth(10, {"final": [1e-6, 1e-6]}, megabytes=300, idle=100)
    got = parts._size(Asked(0.0), 100, row, 500, 1)
    assert not got.times
    assert got.note == "not run: 100 would take about 2,100 MB of memory, 500 are allowed"


def test_steps_that_take_too_long_are_left_out(parts: ModuleType) -> None:
    asked = Asked(1.0)
    rows = parts.growth([asked], (10, 100, 1000), 1e9, passes=1)["asked"]
    assert [("python" in row.times, bool(row.note)) for row in rows] == [(True, False), (False, True), (False, True)]
    assert "python left out: 1 passes would take more than 60 s" in rows[1].note
    assert not any("python" in kinds for count, kinds in asked.flown if count > 10)


def test_a_mixed_step_is_one_step_of_different_kinds(parts: ModuleType) -> None:
    driver = importlib.import_module("envs_driver")
    taken: list[list[str]] = []

    class Made:
        def together(self, fleet: Any, kinds: list[str]) -> list[str]:
            taken.append(kinds)
            return kinds

        def renew(self, fleet: Any) -> str:
            return "anew"

        def text(self, outcome: str) -> str:
            return str(driver.VALUE)

        def reward(self, outcome: str) -> float:
            assert outcome == "final"
            return 1.0

    works = driver.Driver(Made())
    assert len(works.fly(4, ["calculator", "mixed"])["times"]) == 2
    assert taken == [["calculator"] * 4, ["calculator", "python", "final", "calculator"]]
    assert works._fleet == "anew"


def test_who_lacks_a_kind_takes_no_mixed_step(parts: ModuleType) -> None:
    asked = Asked(1e-3)
    asked.lacks = {"python": "it has none"}
    fleet = parts.fleets([asked], 4, 2)["asked"]
    assert not fleet.mixed
    assert len(fleet.final) == 2
    assert not any("mixed" in kinds for _, kinds in asked.flown)


def test_growth_is_told_from_64_to_the_most_that_were_measured(parts: ModuleType) -> None:
    quick, slow = [1e-6, 1e-6], [1e-6, 1.5e-6]  # in processor time alone
    rows = [
        parts.Growth(16, {"final": [9.0, 9.0], "python": [9.0, 9.0]}, 100.0, 0.0),
        parts.Growth(64, {"final": quick, "python": quick}, 74.0, 10.0),
        parts.Growth(256, {"final": quick, "python": slow}, 300.0, 44.0),
        parts.Growth(1024, {"final": quick}, 2000.0, 0.0, note="python left out: it takes long"),
        parts.Growth(4096, note="not run: too big"),
    ]
    said = [(one.what, one.few, one.many, one.ratio, one.linear) for one in parts.slopes(rows)]
    assert said == [
        ("final", 64, 1024, 1.0, True),
        ("python", 64, 256, 1.5, False),
        ("memory", 64, 256, 1.0, True),  # with 1,024 no interpreter was open
    ]
    assert parts.slopes(rows[:2]) == []
    assert parts.slopes([]) == []


def test_memory_that_an_episode_hardly_adds_to_is_not_compared(parts: ModuleType) -> None:
    rows = [parts.Growth(count, {"final": [1.0, 1.0]}, 100.0 + count * 1e-3, 100.0) for count in (64, 1024)]
    assert [one.what for one in parts.slopes(rows)] == ["final"]


def test_a_process_that_ends_as_the_clock_stops_takes_no_time_away(
    parts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = importlib.import_module("envs_driver")
    monkeypatch.setattr(driver, "descendants", lambda ancestor: {7})
    monkeypatch.setattr(driver, "_processor", lambda pid: 1000.0)
    clock = driver.Clock()
    monkeypatch.setattr(driver, "_processor", lambda pid: None)  # it is listed, and gone when it is asked
    assert all(seconds >= 0.0 for seconds in clock.stop())
