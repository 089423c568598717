"""Tables that say when the best is not better, importances, and pictures."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any, Literal

import pytest

from trajgym.trainers.tune_report import as_table, difference, importance, verdict, without_effect, write_tune_report
from trajgym.trainers.tune_study import SeedRun, Trial, finished


def trial(
    number: int,
    right: list[bool],
    *,
    status: Literal["done", "failed", "pruned"] = "done",
    weights: str | None = None,
    **parameters: Any,
) -> Trial:
    solved = {f"t{i}": bool(r) for i, r in enumerate(right)}
    run = SeedRun(0, "trials", str(number) if weights is None else weights, parameters, solved, training=0.5)
    runs = [run] if status == "done" else []
    return Trial(number, parameters, status, "" if runs else "OutOfMemory: | no\nroom", runs)


def test_a_clear_winner_and_a_tie() -> None:
    good, bad = [True] * 45 + [False] * 5, [True] * 20 + [False] * 30
    clear = [trial(0, bad, gamma=0.9), trial(1, good, gamma=1.0)]
    assert "Trial 1 is 50.0 points ahead of trial 0" in verdict(clear)
    assert "better by more than chance" in verdict(clear)
    close = [trial(0, good, gamma=0.9), trial(1, [*good[:-1], True], gamma=1.0)]
    assert "not distinguishable on 50 tasks. In all, 1 of 1 other" in verdict(close)
    assert finished(close)[0].number == 1
    assert "nothing to compare" in verdict([close[0]])


@pytest.mark.parametrize("tasks", [1, 5])
def test_a_handful_of_tasks_tells_nothing_apart(tasks: int) -> None:
    """All of them go one way, so that the bootstrap sees no spread and is certain."""
    few = [trial(0, [False] * tasks, gamma=0.9), trial(1, [True] * tasks, gamma=1.0)]
    assert difference(few[1], few[0])[1] == 1.0
    assert f"not distinguishable on {tasks} tasks. In all, 1 of 1 other" in verdict(few)
    assert "better by more than chance" in verdict([trial(0, [False] * 6, gamma=0), trial(1, [True] * 6, gamma=1)])


def test_differences_are_taken_on_the_same_tasks() -> None:
    first, second = trial(0, [True, True, False] * 20, gamma=1), trial(1, [True, False, False] * 20, gamma=2)
    gap, low, high = difference(first, second)
    assert gap == pytest.approx(1 / 3)
    assert 0.2 < low < gap < high < 0.46


def test_several_seeds_are_averaged() -> None:
    several = trial(0, [True, False], gamma=1)
    several.runs.append(SeedRun(1, "", "x", {}, {"t0": True, "t1": True}))
    assert several.value == 0.75
    assert several.rates == {"t0": 1.0, "t1": 0.5}
    low, high = several.interval
    assert (low, high) == (0.5, 1.0)


def test_importance_tells_what_matters() -> None:
    rng = random.Random(0)
    trials = []
    for number in range(27):
        rate, rank = 10.0 ** -(number % 9), rng.choice([8, 16])
        share = 10 if number % 9 < 3 else 50 if number % 9 < 6 else 90
        solved = share + rng.randint(-5, 5)
        trials.append(trial(number, [i < solved for i in range(100)], learning_rate=rate, lora_rank=rank, same=1))
    strong, weak = importance(trials, "learning_rate"), importance(trials, "lora_rank")
    assert strong is not None
    assert weak is not None
    assert strong > 0.95
    assert weak < 0.2
    assert importance(trials, "same") is None
    assert importance(trials[:1], "learning_rate") is None


def test_parameters_without_effect_are_found() -> None:
    same = [trial(0, [True], weights="w", a=1), trial(1, [True], weights="w", a=2), trial(2, [True], weights="v", a=3)]
    assert without_effect(same) == [(0, 1)]
    assert "Trials 0 and 1 have other parameters and the same weights" in as_table(same)


def test_everything_is_written(tmp_path: Path) -> None:
    trials = [
        trial(0, [True, False] * 10, rate=1e-4, reward="dense"),
        trial(1, [], status="failed", rate=1e-3, reward="sparse"),
        trial(2, [True] * 15 + [False] * 5, rate=1e-5, reward="sparse"),
        trial(3, [], status="pruned", rate=1e-6, reward="dense"),
    ]
    write_tune_report(tmp_path, trials, ["rate", "reward"])
    report = (tmp_path / "report.md").read_text()
    lines = [line for line in report.split("\n") if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in lines] == ["| trial", "| ---", "| 2", "| 0", "| 1", "| 3"]
    assert "OutOfMemory: / no room" in report
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert [row["status"] for row in rows] == ["done", "failed", "done", "pruned"]
    assert float(rows[2]["accuracy"]) == 0.75
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["trial"] == 2
    assert best["parameters"] == {"rate": 1e-5, "reward": "sparse"}
    assert best["interval"][0] < 0.75 < best["interval"][1]
    for name in ("best.png", "importance.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
