"""Things in a run folder that no run has put there, or that are no longer what it had put there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trajgym.envs.base import ToolEnv
from trajgym.errors import CheckpointError, ConfigError, StorageError
from trajgym.evaluation.records import read_trajectories
from trajgym.trainers.checksums import write_checksums
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train
from trajgym.trainers.runfolder import CheckpointWarning, RunFolder
from trajgym.types import Trajectory


@pytest.fixture
def options(identity_options: dict[str, Any]) -> dict[str, Any]:
    return {**identity_options, "updates": 3, "save_every": 1, "name": "begun"}


@pytest.fixture
def begun(options: dict[str, Any]) -> Path:
    return train(load_config({**options, "updates": 2}))


def updates(folder: Path) -> list[int]:
    return [json.loads(line)["update"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "line", [b"\xff\xfe\x00 no text", b'{"update": Infinity}', b'{"update": NaN}', b"[" * 100_000, b'["update"]'],
    ids=["bytes", "infinite", "nan", "deep", "list"],
)  # fmt: skip
def test_lines_of_metrics_that_are_none_are_left_out(options: dict[str, Any], begun: Path, line: bytes) -> None:
    log = begun / "metrics.jsonl"
    log.write_bytes(line + b"\n" + log.read_bytes() + line)
    assert updates(train(load_config({**options, "resume": True}))) == [1, 2, 3]


def test_checkpoints_and_files_of_other_names_are_not_ours(options: dict[str, Any], begun: Path) -> None:
    """A copy that somebody has put aside is neither gone on from nor cleared away; so with notes."""
    checkpoints = begun / "checkpoints"
    shutil.copytree(checkpoints / "update-000001", checkpoints / "update-000001-good")
    (checkpoints / "update-final").mkdir()
    notes = begun / "trajectories" / "update-notes.jsonl"
    notes.write_text("not JSON")
    train(load_config({**options, "resume": True, "keep_checkpoints": 1}))
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "update-000001-good",
        "update-000003",
        "update-final",
    ]
    assert notes.read_text() == "not JSON"
    assert len({t.seed for t in all_of(begun)}) == 3 * 4  # log_trajectories


def all_of(folder: Path) -> list[Trajectory]:
    return read_trajectories(folder / "trajectories" / "all.parquet")


def test_the_newest_checkpoint_is_that_of_the_highest_number(options: dict[str, Any], begun: Path) -> None:
    checkpoints = begun / "checkpoints"
    (checkpoints / "update-000002").rename(checkpoints / "update-1000000")
    (checkpoints / "update-000001").rename(checkpoints / "update-999999")
    run = RunFolder(load_config({**options, "resume": True}), "run")
    assert [path.name for path in run.complete()] == ["update-999999", "update-1000000"]


def test_a_file_of_trajectories_that_is_damaged_costs_itself(options: dict[str, Any], begun: Path) -> None:
    """The run has come to its end, and says what its table lacks."""
    harmed = begun / "trajectories" / "update-000001.jsonl"
    harmed.write_bytes(harmed.read_bytes()[:-9])
    with pytest.warns(CheckpointWarning, match=r"all.parquet lacks update-000001.jsonl in .*: they cannot be read"):
        train(load_config({**options, "resume": True}))
    assert len(all_of(begun)) == 2 * 4


def drop_optimizer(state: dict[str, Any]) -> None:
    del state["optimizer"]


def other_moments(state: dict[str, Any]) -> None:
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(3)


def fewer_weights(state: dict[str, Any]) -> None:
    state["optimizer"]["param_groups"][0]["params"] = [0, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_optimizer, "does not fit this run .*optimizer.*Remove update-000002"),
        (other_moments, "optimiser state and float32 weights do not fit"),
        (fewer_weights, "does not fit this run .*Remove update-000002"),
    ],
)
def test_a_state_of_something_else_is_refused_before_the_run(
    options: dict[str, Any], begun: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    """Whole, as its checksums say, but not what this run can go on from."""
    checkpoint = begun / "checkpoints" / "update-000002"
    state = torch.load(checkpoint / "trainer.pt", weights_only=True)
    change(state)
    torch.save(state, checkpoint / "trainer.pt")
    (checkpoint / "checksums.json").unlink()
    write_checksums(checkpoint)
    with pytest.raises(CheckpointError, match=message):
        train(load_config({**options, "resume": True}))


@pytest.mark.parametrize("name", ["x" * 201, "a\0b", "two\nlines", "\ud800", "a/b", ".."])
def test_names_that_no_folder_should_have(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match="name must be the name of one folder inside output_dir"):
        RunFolder(load_config({**options, "name": name}), "run")


@pytest.mark.parametrize("what", ["metrics.jsonl", "trajectories", "checkpoints"])
def test_the_thing_that_stands_in_the_way_is_named(options: dict[str, Any], begun: Path, what: str) -> None:
    place = begun / what
    if place.is_dir():
        shutil.rmtree(place)
        place.write_text("in the way")
    else:
        place.unlink()
        place.mkdir()
    with pytest.raises(StorageError, match=rf"Cannot write to {begun}: .*\({place}\)"):
        train(load_config({**options, "resume": True}))


def test_a_tool_that_changes_the_working_directory_does_not_move_the_run(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    step = ToolEnv.step

    def moves(self: Any, action: str) -> Any:
        os.chdir(elsewhere)
        return step(self, action)

    monkeypatch.setattr(ToolEnv, "step", moves)
    folder = train(load_config({**options, "output_dir": "runs"}))
    assert Path.cwd() == elsewhere
    assert folder == tmp_path / "runs" / "begun"
    assert updates(folder) == [1, 2, 3]
    assert (folder / "checkpoints" / "update-000003").is_dir()
    assert not list(elsewhere.iterdir())
