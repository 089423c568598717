"""``trajgym train``: a recipe, overrides, a run folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from trajgym import cli
from trajgym.evaluation.records import read_trajectories
from trajgym.trainers.config import recipe_names


@pytest.mark.parametrize(("args", "status"), [([], 2), (["-h"], 0), (["--help"], 0)])
def test_help_names_the_recipes(args: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *args]) == status
    assert f"Recipes: {', '.join(recipe_names())}, or" in capsys.readouterr().out
    assert "quickstart" in recipe_names()


def test_options_are_listed_with_their_values(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["train", "quickstart", "--help"])
    out = capsys.readouterr().out
    for option in ("--gamma FLOAT", "--env-kwargs JSON", "--output-dir PATH"):
        assert option in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["quickstrat"], "Unknown recipe 'quickstrat'. Did you mean 'quickstart'?"),
        (["nowhere.yaml"], "no configuration file 'nowhere.yaml'"),
    ],
)
def test_wrong_use_is_said(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("trajgym train: ")
    assert message in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--gama", "1"], "--gamma FLOAT"),
        (["--env-kwargs", "{bad"], "Error parsing --env-kwargs"),
        (["--gamma", "much"], "--gamma"),
        (["--gamma", "1.5"], "less than or equal to 1"),
        (["--epochs", "1"], "give either updates or epochs"),
    ],
)
def test_wrong_options_are_said(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = cli.main(["train", "quickstart", *args])
    except SystemExit as stop:  # from the parser of the options
        status = int(str(stop))
    said = " ".join("".join(capsys.readouterr()).split())
    assert status == 2
    assert message in said
    assert "Traceback" not in said


def test_a_run_leaves_everything_in_its_folder(
    short_run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("env: ArithmeticTool-v0\nupdates: 9\nmax_episode_tokens: 300\ngamma: 0.5\nkl_coef: 0.0\n")
    assert cli.main(["train", str(recipe), *short_run, "--gamma", "0.75"]) == 0
    out, err = capsys.readouterr()
    folder = tmp_path / "runs" / "mine-seed0"
    assert "on ArithmeticTool-v0, 2 updates of 2 tasks × 2 trajectories" in out.splitlines()[0]
    assert "γ = 0.75, β = 0" in out.splitlines()[0]
    assert f"Everything is in {folder}" in err
    assert yaml.safe_load((folder / "config.yaml").read_text())["gamma"] == 0.75
    assert [json.loads(line)["update"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [1, 2]
    assert (folder / "checkpoints" / "update-000002" / "model" / "config.json").is_file()
    assert len(read_trajectories(folder / "trajectories" / "all.parquet")) == 8
    assert cli.main(["train", str(recipe), *short_run]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_a_model_that_is_not_there(short_run: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "quickstart", *short_run, "--model", "/nowhere/model"]) == 2
    err = capsys.readouterr().err
    assert "/nowhere/model" in err
    assert "Traceback" not in err
