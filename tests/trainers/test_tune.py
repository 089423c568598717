"""Whole studies on a model that learns in a second: proofs, failures, kills, damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from trajgym.cli import main
from trajgym.errors import CheckpointError, ConfigError, TrainingError
from trajgym.trainers import tune as tuning
from trajgym.trainers.tune import Tuned, tune
from trajgym.trainers.tune_config import TuneConfig, load_tune_config
from trajgym.trainers.tune_run import Pruned, held_out, run_seed
from trajgym.trainers.tune_search import make_search
from trajgym.trainers.tune_study import SeedRun, Trial, prove


@pytest.fixture
def study(identity_options: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Options of a study on the identity environment."""
    recipe = tmp_path / "identity.yaml"
    recipe.write_text(yaml.safe_dump({**identity_options, "monitors": [], "updates": 1, "output_dir": "elsewhere"}))
    return {
        "recipe": str(recipe),
        "space": {"learning_rate": [1e-4, 5e-3], "gamma": [0.5, 1.0]},
        "eval_split": "",
        "output_dir": str(tmp_path / "runs"),
    }


def told(result: Tuned) -> list[tuple[Any, ...]]:
    """Everything of a study that must repeat."""
    return [(t.parameters, t.status, t.reason, [(r.seed, r.weights, r.right) for r in t.runs]) for t in result.trials]


def test_a_grid_proves_its_parameters(study: dict[str, Any]) -> None:
    result = tune(load_tune_config({**study, "method": "grid", "seeds": 2}))
    assert len(result.trials) == 4
    for trial in result.trials:
        assert [run.seed for run in trial.runs] == [0, 1]
        for run in trial.runs:
            assert run.proof == trial.parameters
            used = yaml.safe_load((result.folder / run.folder / "config.yaml").read_text())
            assert {name: used[name] for name in trial.parameters} == trial.parameters
            assert used["seed"] == run.seed
            assert set(run.right) == {"digit-0", "digit-1", "digit-2", "digit-3"}
    rates = {(t.parameters["learning_rate"], r.weights) for t in result.trials for r in t.runs}
    assert len(rates) == 4  # one turn has no discount: gamma changes nothing, and the report says so
    report = (result.folder / "report.md").read_text()
    assert "Trials 0 and 1 have other parameters and the same weights" in report
    assert result.best.value == max(t.value for t in result.trials)


@pytest.mark.parametrize("method", [pytest.param("random", marks=pytest.mark.slow), "optuna"])
def test_a_killed_study_goes_on(method: str, study: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if method == "optuna":
        pytest.importorskip("optuna")
    study["space"]["learning_rate"] = {"low": 1e-4, "high": 1e-2, "log": True}
    options = {**study, "method": method, "trials": 3}
    whole = tune(load_tune_config({**options, "name": "whole"}))
    assert len({t.parameters["learning_rate"] for t in whole.trials}) == 3
    calls = 0

    def killed(*args: Any) -> SeedRun:
        nonlocal calls
        calls += 1
        run = run_seed(*args)
        if calls in (2, 4):
            raise KeyboardInterrupt  # after the training, before anything of it is written down
        return run

    monkeypatch.setattr(tuning, "run_seed", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tune(load_tune_config({**options, "name": "killed"}))
    resumed = tune(load_tune_config({**options, "name": "killed"}))
    assert calls == 5
    assert told(resumed) == told(whole)
    assert told(tune(load_tune_config({**options, "name": "killed"}))) == told(whole)
    assert calls == 5  # nothing was left to do


def test_failed_trials_are_kept(study: dict[str, Any]) -> None:
    result = tune(load_tune_config({**study, "method": "grid", "space": {"max_turn_tokens": [6, 99]}}))
    assert [t.status for t in result.trials] == ["done", "failed"]
    assert "max_turn_tokens (99) must be smaller" in result.trials[1].reason
    assert "max_turn_tokens (99)" in (result.folder / "report.md").read_text()


def test_all_trials_failed(study: dict[str, Any]) -> None:
    config = load_tune_config({**study, "method": "grid", "space": {"max_turn_tokens": [98, 99]}})
    with pytest.raises(TrainingError, match=r"All 2 trials have failed. The first: ConfigError: .*\(98\)"):
        tune(config)
    stored = json.loads((config.output_dir / "tune-identity-seed0" / "study.json").read_text())
    assert [t["status"] for t in stored["trials"]] == ["failed", "failed"]


class Gloomy:
    """A search that gives up on every trial but the first."""

    def propose(self, number: int) -> dict[str, Any]:
        return {"gamma": 1.0 - number / 10}

    def hopeless(self, number: int, step: int, value: float) -> bool:
        assert 0 <= value <= 1
        return number > 0

    def tell(self, trial: Trial) -> None:
        assert trial.status != "running"


def test_a_hopeless_trial_is_stopped(study: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "make_search", lambda *args: Gloomy())
    result = tune(
        load_tune_config(
            {**study, "method": "optuna", "trials": 2, "space": {"gamma": [0.9, 1.0]}, "options": {"updates": 2}}
        )
    )
    assert [t.status for t in result.trials] == ["done", "pruned"]
    assert "after 1 of 2 updates" in result.trials[1].reason
    metrics = (result.folder / "trials" / "0001" / "seed0" / "metrics.jsonl").read_text()
    assert metrics.count("\n") == 1


def test_a_hopeless_ppo_run_is_stopped(study: dict[str, Any], tmp_path: Path) -> None:
    config = load_tune_config({**study, "options": {"algorithm": "ppo", "estimator": "gae", "updates": 2}})
    options = config.trial({}, seed=0, folder=tmp_path / "run")
    with pytest.raises(Pruned, match="after 1 of 2"):
        run_seed(options, held_out(config), {}, lambda step, value: True)


def test_optuna_prunes_below_the_median(study: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    config = load_tune_config({**study, "method": "optuna", "prune_warmup": 1})
    search = make_search(config, tmp_path, [])
    trial = Trial(0, search.propose(0))
    assert not any(search.hopeless(0, step, 0.8) for step in (1, 2, 3))
    trial.status, trial.runs = "done", [SeedRun(0, "", "w", {}, {"t": True})]
    search.tell(trial)
    search.propose(1)
    assert not search.hopeless(1, 1, 0.1)  # within the warm-up
    assert search.hopeless(1, 2, 0.1)
    assert search.hopeless(1, 2, 0.1)  # a resumed run comes by again
    assert not search.hopeless(1, 3, 0.9)


def test_a_search_needs_its_storage(study: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    config = load_tune_config({**study, "method": "optuna"})
    with pytest.raises(CheckpointError, match=r"optuna.db is gone"):
        make_search(config, tmp_path, [Trial(0, {})])
    (tmp_path / "optuna.db").write_text("no database, but long enough to be looked at " * 20)
    with pytest.raises(CheckpointError, match=r"optuna.db cannot be used .*--overwrite"):
        make_search(config, tmp_path, [])


def test_damage_and_other_settings(study: dict[str, Any]) -> None:
    options = {**study, "method": "grid", "space": {"learning_rate": [5e-3]}}
    result = tune(load_tune_config(options))
    with pytest.raises(ConfigError, match=r"other settings \(.*eval_tasks: 200 before, 3 now"):
        tune(load_tune_config({**options, "eval_tasks": 3}))
    with pytest.raises(ConfigError, match=r"other settings \(.*base.kl_coef: 0.0 before, 0.5 now"):
        tune(load_tune_config({**options, "options": {"kl_coef": 0.5}}))
    (result.folder / "study.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"study.json is damaged .*--overwrite"):
        tune(load_tune_config(options))
    assert len(tune(load_tune_config({**options, "overwrite": True})).trials) == 1


def test_a_proof_can_fail(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("gamma: 0.9\nenv_kwargs: {reward: dense}\n")
    assert prove(tmp_path, {"gamma": 0.9, "env_kwargs.reward": "dense"}) == {"gamma": 0.9, "env_kwargs.reward": "dense"}
    for wrong in ({"gamma": 1.0}, {"env_kwargs.reward": "sparse"}, {"lora_rank": 8}):
        with pytest.raises(TrainingError, match="was to run with"):
            prove(tmp_path, wrong)
    (tmp_path / "config.yaml").write_text(": [")
    with pytest.raises(CheckpointError, match="cannot be read"):
        prove(tmp_path, {})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"space": {}}, "nothing to tune"),
        ({"space": {"lerning_rate": [1]}}, "Did you mean 'learning_rate'"),
        ({"options": {"gama": 1}}, "Did you mean 'gamma'"),
        ({"options": {"seed": 1}}, "decides itself"),
        ({"recipe": "quikstart"}, "Did you mean 'quickstart'"),
        ({"recipe": "nowhere.yaml"}, "no configuration file"),
        ({"mthod": "grid"}, "Did you mean 'method'"),
        ({"method": "grid", "space": {"gamma": {"low": 0.1, "high": 1.0}}}, "no ranges: gamma"),
        ({"options": {"env": "TestNothing-v0"}}, "does not pay for 'accuracy'"),
        ({"eval_split": "test"}, "split"),
    ],
)
def test_bad_input(more: dict[str, Any], message: str, study: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(load_tune_config({**study, **more}))
    assert not (Path(study["output_dir"]) / "tune-identity-seed0" / "trials").exists()


def test_presets() -> None:
    assert TuneConfig(preset="grid").count == 27
    assert (TuneConfig(preset="random").search, TuneConfig(preset="random").count) == ("random", 10)
    assert (TuneConfig(preset="bayes").search, TuneConfig(preset="bayes").count) == ("optuna", 20)
    assert TuneConfig(preset="grid").base()["use_lora"] is True
    assert TuneConfig(preset="grid", trials=5).count == 5


@pytest.mark.slow
def test_sft_is_tuned_too(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    result = tune(
        load_tune_config(
            {
                "recipe": "sft_quickstart",
                "options": {"max_samples": 8, "eval_samples": 0, "epochs": 1, "batch_size": 4, "monitors": []},
                "space": {"learning_rate": [1e-6, 1e-3]},
                "method": "grid",
                "eval_tasks": 4,
                "eval_turn_tokens": 24,
                "output_dir": str(tmp_path),
            }
        )
    )
    assert [t.status for t in result.trials] == ["done", "done"]
    assert len({run.weights for t in result.trials for run in t.runs}) == 2


def test_the_command(study: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune"]) == 2
    assert main(["tune", "--help"]) == 0
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    assert main(["tune", str(file), "--method", "grid", "--space", '{"learning_rate": [0.005]}']) == 0
    printed = capsys.readouterr()
    assert "Trial 1/1: learning_rate 0.005: " in printed.out
    assert "the best is trial 0" in printed.err
    assert main(["tune", str(file), "--space", "{}"]) == 2
    assert "nothing to tune" in capsys.readouterr().err
