"""The learning benchmark: what its figures mean, and one run small enough to be no training at all."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = ("cells", "demonstrators", "models", "report", "runs")


@pytest.fixture(scope="module")
def learning() -> Iterator[SimpleNamespace]:
    names = ["learning", *(f"learning_{part}" for part in MODULES)]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield SimpleNamespace(**{name.removeprefix("learning_"): importlib.import_module(name) for name in names})
    for name in (*names, "rounds"):
        sys.modules.pop(name, None)


def result(turns: list[float], success: list[float], **changes: Any) -> dict[str, Any]:
    curve = [{"env_steps": t, "success": s, "return": 2 * s} for t, s in zip(turns, success, strict=True)]
    cell = {"setting": "long", "method": "trajectory", "reward": "sparse", "gamma": 1.0, "seed": 0, "rate": 1e-3}
    return {**cell, "model": "0a1b", "budget": turns[-1], "curve": curve, **changes}


def test_what_a_run_comes_to(learning: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning.report, "_SMOOTH", 3)
    monkeypatch.setattr(learning.report, "_LAST", 4)
    target = learning.cells.SETTINGS["long"].target
    found = learning.report.summarise(result([10, 20, 30, 50], [0.0, 1.0, 1.0, 1.0]))
    # Three updates in a row are enough, though the first of them was a failure: two thirds are more than the target.
    assert target <= 2 / 3
    assert (found.steps, found.reached) == (30, True)
    assert found.area == pytest.approx(0.8), "10 of 50 turns brought nothing"
    assert (found.success, found.earned) == (0.75, 1.5)


def test_a_run_that_never_gets_there_counts_with_its_whole_budget(
    learning: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning.report, "_SMOOTH", 3)
    found = learning.report.summarise(result([10, 20, 30, 40], [0.0, 0.1, 0.0, 0.1]))
    assert (found.steps, found.reached) == (40, False)
    # What lies behind the budget counts neither for the target nor for the area.
    late = learning.report.summarise(result([10, 20, 30, 40], [0.0, 0.0, 1.0, 1.0], budget=25))
    assert (late.steps, late.reached, late.area) == (25, False, pytest.approx(0.2))


def test_the_reference_plays_twice_as_long_and_is_measured_on_equal_turns(
    learning: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = learning.cells
    budget = cells.SETTINGS["long"].budget
    longer = {cell.name for cell in cells.cells(1, ["long-*"]) if cell.budget > budget}
    assert longer == {"long-trajectory-sparse-g1-s0", "long-trajectory-sparse-g0.9-s0"}
    assert all(cell.budget <= cells.SETTINGS[cell.setting].budget for cell in cells.search_cells(1))
    monkeypatch.setattr(learning.report, "_SMOOTH", 1)
    monkeypatch.setattr(learning.report, "_LAST", 1)
    half = budget / 2
    found = learning.report.summarise(result([half, budget, 3 * half, 2 * budget], [0.0, 0.1, 0.9, 0.9]))
    assert (found.steps, found.reached) == (3 * half, True)
    assert (found.area, found.success, found.earned) == (pytest.approx(0.05), 0.1, 0.2)


def test_cells_say_everything_in_their_names(learning: SimpleNamespace) -> None:
    cells = learning.cells
    everything = cells.cells(5)
    kinds = sum(len(cells.kinds(setting)) for setting in cells.SETTINGS)
    usual = {(r, g, m) for r in ("sparse", "dense", "hybrid") for g in (1.0, 0.9) for m in cells.METHODS}
    usual -= {("sparse", g, "earned") for g in (1.0, 0.9)}
    assert usual == set(cells.kinds("detour"))
    usual = {kind for kind in usual if kind[2] != "trajectory_batch"}
    assert all(usual <= set(cells.kinds(setting)) for setting in ("short", "long"))
    assert len({cell.name for cell in everything}) == len(everything) == 5 * kinds
    assert [cell.seed for cell in everything[: kinds + 1]] == [0] * kinds + [1], "a whole sweep of a seed comes first"
    (one,) = cells.cells(5, ["long-return_to_go-hybrid-g0.9-s3"], {"long-return_to_go-hybrid": 4e-3})
    assert (one.setting, one.method, one.reward, one.gamma, one.seed, one.rate) == (
        *("long", "return_to_go", "hybrid", 0.9, 3),
        4e-3,
    )
    searched = cells.search_cells(1, ["short-*"])
    assert len({cell.name for cell in searched}) == len(searched)
    assert not {cell.seed for cell in searched} & {cell.seed for cell in everything}


@pytest.mark.filterwarnings("ignore::trajgym.trainers.advantages.BiasWarning")
def test_every_cell_is_a_run_that_the_trainer_accepts(learning: SimpleNamespace, tmp_path: Path) -> None:
    from trajgym.envs.make import make
    from trajgym.trainers.config import load_config
    from trajgym.trainers.credit import Credit

    for cell in learning.cells.cells(1):
        options = learning.cells.options(cell, tmp_path, updates=3, output_dir=tmp_path, resume=False)
        config = load_config(options)
        Credit(config)
        assert (config.gamma, config.learning_rate, config.seed) == (cell.gamma, cell.rate, 0)
    for name in learning.cells.SETTINGS:
        setting = learning.cells.SETTINGS[name]
        assert setting.model in learning.models.STUDENTS
        make(setting.env, **setting.env_kwargs).close()


def test_the_rate_with_the_largest_area_is_taken(learning: SimpleNamespace) -> None:
    seed = learning.cells.SEARCH_SEED
    results = [
        result([10, 20], [0.1, 0.2], seed=seed, rate=1e-3),
        result([10, 20], [0.3, 0.4], seed=seed, rate=4e-3),
        result([10, 20], [0.9, 0.9], seed=0, rate=2e-3),
        result([10, 20], [0.2, 0.2], seed=seed, rate=2e-3, method="rebn"),
    ]
    assert learning.report.best_rates(results) == {"long-trajectory-sparse": 4e-3, "long-rebn-sparse": 2e-3}


def test_each_method_has_the_best_rate_of_each_reward(learning: SimpleNamespace) -> None:
    seed = learning.cells.SEARCH_SEED
    areas = {("sparse", 1e-4): 0.1, ("sparse", 3e-4): 0.2, ("hybrid", 1e-4): 0.9, ("hybrid", 3e-4): 0.1}
    results = [result([10], [area], seed=seed, rate=rate, reward=reward) for (reward, rate), area in areas.items()]
    best = learning.report.best_rates(results)
    assert best == {"long-trajectory-sparse": 3e-4, "long-trajectory-hybrid": 1e-4}
    rates = {(c.method, c.reward): c.rate for c in learning.cells.cells(1, ["long-*-g1-s0"], best)}
    assert rates["trajectory", "sparse"] == 3e-4
    assert rates["trajectory", "hybrid"] == 1e-4
    assert rates["ppo", "sparse"] == learning.cells.RATES[0]


def test_the_report_shows_what_is_there_and_names_what_is_missing(
    learning: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning.report, "_SMOOTH", 3)
    results = [result([10, 20, 30, 40], [0.5, 0.9, 0.9, 0.9], method="return_to_go", seed=s) for s in range(2)]
    results += [result([20, 40, 60, 80], [0.5, 0.9, 0.9, 0.9], seed=s) for s in range(2)]
    text = learning.report.table(results, 2)
    row = next(line for line in text.splitlines() if "return_to_go |" in line)
    assert "30 (2/2)" in row
    compared = "| 2/2 | 2.00 | +0.00 | 2.00 | +0.00 |"
    assert f"| sparse | 1 | return_to_go {compared}" in text
    assert "long-ppo-dense-g0.9: 2" in text
    assert "long-trajectory-sparse-g1:" not in text
    assert "long-rebn-process" not in text
    assert "Models that the runs began with: arithmetic 0a1b." in text
    learning.report.figure(results, tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 1000


def test_runs_beyond_the_usual_number_are_told_by_themselves(
    learning: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning.report, "_SMOOTH", 3)
    results = [result([10 * k, 20 * k, 30 * k, 40 * k], [0.5, 0.9, 0.9, 0.9], seed=k - 1) for k in (1, 2, 3)]
    assert "over the seeds from 2 on alone: trajectory, sparse, γ = 1: 90." in learning.report.table(results, 2)
    assert "alone" not in learning.report.table(results, 3)


def test_runs_at_another_rate_than_the_chosen_one_are_missing(
    learning: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning.report, "_SMOOTH", 3)
    seed = learning.cells.SEARCH_SEED
    found = [result([10, 20], [0.3, 0.4], seed=seed, rate=3e-4), result([10, 20], [0.1, 0.1], seed=seed, rate=1e-3)]
    text = learning.report.table([*found, result([10, 20], [0.9, 0.9])], 1)  # at 1e-3
    assert "long-trajectory-sparse-g1: 1" in text
    assert "Not all of them were tried for long-trajectory-sparse." in text
    found.append(result([10, 20], [0.0, 0.0], seed=seed, rate=1e-4))
    text = learning.report.table([*found, result([10, 20], [0.9, 0.9], rate=3e-4)], 1)
    assert "long-trajectory-sparse-g1:" not in text
    assert "Not all" not in text


def test_no_ratio_flatters_a_method_that_was_cut_off(
    learning: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning.report, "_SMOOTH", 3)
    reached, never = [0.5, 0.9, 0.9, 0.9], [0.0, 0.1, 0.0, 0.1]
    results = [result([20, 40, 60, 80], reached, seed=s) for s in range(2)]
    results += [result([10, 20, 30, 40], never, method="return_to_go", reward="dense", seed=s) for s in range(2)]
    results += [result([10, 20, 30, 40], reached, method="return_to_go", reward="hybrid", seed=s) for s in range(2)]
    results += [result([20, 40, 60, 80], never, reward="hybrid", seed=s) for s in range(2)]
    results += [result([20, 40, 60, 80], never, method="earned", reward="hybrid", seed=s) for s in range(2)]
    text = learning.report.table(results, 2)
    # Ours had 40 turns and would have needed more, theirs needed 60: at most one and a half times.
    assert "| dense | 1 | return_to_go | 0/2 | ≤ 1.50 | " in text
    assert "| hybrid | 1 | earned | 0/2 | ≤ 0.75 | -0.75 | – | " in text
    assert "| hybrid | 1 | return_to_go | 2/2 | 2.00 | " in text
    assert "| ≥ 2.67 | " in text


@pytest.mark.parametrize("student", ["arithmetic", "detour"])
def test_a_demonstrator_without_its_habit_is_the_expert(learning: SimpleNamespace, student: str) -> None:
    from trajgym.envs.make import make
    from trajgym.rollout import EnvPool, Episode, collect

    recipe = learning.models.STUDENTS[student]
    shares = {}
    for habit in (0.0, 0.5):
        with EnvPool(lambda: make(recipe.env, **recipe.env_kwargs, reward="sparse"), threads=1) as pool:
            played = collect(recipe.demonstrator(habit), pool, [Episode(i, i) for i in range(40)], deterministic=True)
        shares[habit] = sum(t.total_reward == 1.0 for t in played) / len(played)
    assert shares[0.0] == 1.0
    assert 0.0 < shares[0.5] < 0.7


def test_a_run_leaves_a_result_and_goes_on_where_it_was(
    learning: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lesson = learning.models.Lesson(16, (1, 1))
    student = learning.models.Student(
        "Detour-v0", learning.demonstrators.Walking, (lesson,), {"system": ""}, width=32, layers=1
    )
    model = learning.models.prepare("detour", tmp_path / "models", student=student)
    assert learning.models.prepare("detour", tmp_path / "models") == model, "it is made once"

    monkeypatch.setitem(learning.cells.SHARED, "groups_per_update", 2)
    (cell,) = learning.cells.cells(1, ["detour-return_to_go-dense-g1-s0"])
    path = learning.runs.run_cell(cell, tmp_path, budget=40, part=1)
    found = json.loads(path.read_text(encoding="utf-8"))
    turns = [row["env_steps"] for row in found["curve"]]
    assert len(turns) > 1, "a second part was needed"
    assert turns[-1] >= 40 > turns[-2]
    assert not (tmp_path / "runs" / cell.name).exists()
    written = path.stat().st_mtime_ns
    assert learning.runs.run_cell(cell, tmp_path, budget=40).stat().st_mtime_ns == written, "done is not done again"
    assert learning.runs.load_results(tmp_path) == [found]

    # Killed after the first part, a run ends as the other did.
    again = tmp_path / "again"
    (again / "models").mkdir(parents=True)
    (again / "models" / "detour").symlink_to(model)
    from trajgym.trainers.config import load_config
    from trajgym.trainers.grpo import train

    copy = again / "models" / "detour"
    options = learning.cells.options(cell, copy, updates=1, output_dir=again / "runs", resume=False)
    train(load_config(options))
    rest = json.loads(learning.runs.run_cell(cell, again, budget=40, part=5).read_text(encoding="utf-8"))
    assert [row["env_steps"] for row in rest["curve"]] == turns
    assert [row["success"] for row in rest["curve"]] == [row["success"] for row in found["curve"]]


def test_published_results_count_as_done(learning: SimpleNamespace, tmp_path: Path) -> None:
    ours, theirs, published = tmp_path / "ours", tmp_path / "theirs", tmp_path / "results"
    learning.runs.restore(published, ours)
    assert learning.runs.load_results(ours) == [], "nothing is published yet"
    (ours / "cells").mkdir(parents=True)
    rows = {"long-a": result([10, 20], [0.1, 0.25], seconds=3.4), "long-b": result([5], [0.5], seconds=1.0, seed=1)}
    for name, row in rows.items():
        (ours / "cells" / f"{name}.json").write_text(json.dumps(row), encoding="utf-8")
    (ours / "models" / "house").mkdir(parents=True)
    (ours / "models" / "house" / "config.json").write_text("{}", encoding="utf-8")
    learning.runs.publish(ours, published)
    assert len((published / "runs.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    (theirs / "cells").mkdir(parents=True)
    newer = result([70], [0.7], seconds=2.0)
    (theirs / "cells" / "long-a.json").write_text(json.dumps(newer), encoding="utf-8")
    learning.runs.restore(published, theirs)
    assert learning.runs.load_results(theirs) == [newer, {**rows["long-b"], "seconds": 1}]
    assert (theirs / "models" / "house" / "config.json").read_text(encoding="utf-8") == "{}"
    (theirs / "cells" / "long-a.json").write_text(json.dumps({**newer, "budget": 7}), encoding="utf-8")
    learning.runs.restore(published, theirs)
    assert learning.runs.load_results(theirs)[0]["budget"] == 20, "of two, the one that played longer"
    learning.runs.restore(published, theirs)
    learning.runs.publish(theirs, published)
    assert len((published / "runs.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_the_page_shows_what_is_published(learning: SimpleNamespace, tmp_path: Path) -> None:
    module = learning.learning
    assert f"{module.BEGIN}\n{module.shown()}{module.END}" in module.PAGE.read_text(encoding="utf-8")
    learning.runs.restore(module.PUBLISHED, tmp_path)
    with Image.open(module.PICTURE) as picture:
        drawn = picture.info["Description"]
    assert drawn == learning.report.fingerprint(learning.runs.load_results(tmp_path))
