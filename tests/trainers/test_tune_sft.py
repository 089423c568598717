"""Trials of supervised training that are stopped by their loss on the held-out rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from trajgym.trainers import tune as tuning
from trajgym.trainers.tune import tune
from trajgym.trainers.tune_config import load_tune_config
from trajgym.trainers.tune_run import Pruned, held_out, run_seed
from trajgym.trainers.tune_search import make_search
from trajgym.trainers.tune_study import SeedRun, Trial

pytest.importorskip("trl")

STEPS = 6  # 12 rows that are trained, 4 in a step, two times


@pytest.fixture
def study(digit_model: Path, identity_options: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """A study of imitating digits, looked at after every second step."""
    said = [digit * n for n in range(1, 5) for digit in "0123"]  # the last four are held out
    talk = [{"messages": [{"role": "user", "content": d}, {"role": "assistant", "content": d[0]}]} for d in said]
    (tmp_path / "talk.jsonl").write_text("".join(json.dumps(row) + "\n" for row in talk))
    recipe = tmp_path / "imitate.yaml"
    options = {
        "algorithm": "sft", "model": str(digit_model), "dataset": str(tmp_path / "talk.jsonl"), "max_samples": 12,
        "env": identity_options["env"], "env_kwargs": identity_options.get("env_kwargs", {}), "device": "cpu",
        "eval_samples": 4, "eval_every": 2, "epochs": 2, "batch_size": 4, "max_length": 64, "monitors": [],
        "learning_rate": 1e-2,
    }  # fmt: skip
    recipe.write_text(yaml.safe_dump(options))
    return {
        "recipe": str(recipe), "eval_split": "", "eval_turn_tokens": 2, "output_dir": str(tmp_path / "runs"),
        "space": {"learning_rate": [1e-2, 1e-7]},
    }  # fmt: skip


class Gloomy:
    """Gives up on every trial but the first, and remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, float]] = []

    def propose(self, number: int) -> dict[str, Any]:
        return {"learning_rate": [1e-2, 1e-7][number]}

    def hopeless(self, number: int, step: int, value: float) -> bool:
        self.told.append((number, step, value))
        return number > 0

    def tell(self, trial: Trial) -> None:
        assert trial.status != "running"


def test_a_hopeless_trial_is_stopped(study: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    search = Gloomy()
    monkeypatch.setattr(tuning, "make_search", lambda *args: search)
    result = tune(load_tune_config({**study, "method": "optuna", "trials": 2}))
    assert [trial.status for trial in result.trials] == ["done", "pruned"]
    assert result.trials[1].reason.startswith(
        f"Worse than the median of earlier trials after 2 of {STEPS} steps, at a held-out loss of "
    )
    metrics = (result.folder / "trials" / "0001" / "seed0" / "metrics.jsonl").read_text().splitlines()
    assert len(metrics) == 2
    # Told after every look but the last, when the run is over; a smaller loss is a larger value.
    assert [(number, step) for number, step, _ in search.told] == [(0, 2), (0, 4), (1, 2)]
    assert search.told[0][2] < search.told[1][2] < 0
    assert search.told[2][2] == pytest.approx(-json.loads(metrics[1])["eval_loss"])


def test_nothing_is_stopped_without_held_out_rows(study: dict[str, Any], tmp_path: Path) -> None:
    config = load_tune_config({**study, "options": {"eval_samples": 0}})
    options = config.trial({}, seed=0, folder=tmp_path / "run")
    run = run_seed(options, held_out(config), {}, lambda step, value: pytest.fail("there is nothing to look at"))
    assert set(run.right) == {"digit-0", "digit-1", "digit-2", "digit-3"}


def test_a_pruned_run_is_no_error(study: dict[str, Any], tmp_path: Path) -> None:
    config = load_tune_config(study)
    options = config.trial({}, seed=0, folder=tmp_path / "run")
    with pytest.raises(Pruned, match=f"after 4 of {STEPS} steps"):
        run_seed(options, held_out(config), {}, lambda step, value: step == 4)
    assert not (tmp_path / "run" / "model").exists()


def test_optuna_prunes_above_the_median_loss(study: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    config = load_tune_config({**study, "method": "optuna", "prune_warmup": 1})
    search = make_search(config, tmp_path, [])
    trial = Trial(0, search.propose(0))
    assert not any(search.hopeless(0, step, -loss) for step, loss in ((2, 1.5), (4, 1.0)))
    trial.status, trial.runs = "done", [SeedRun(0, "", "w", {}, {"t": True})]
    search.tell(trial)
    search.propose(1)
    assert not search.hopeless(1, 2, -1.2)
    assert search.hopeless(1, 4, -1.1)
    search.propose(2)
    assert search.hopeless(2, 2, -float("nan"))
