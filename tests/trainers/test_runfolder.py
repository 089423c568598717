"""The run folder: nothing that was there is harmed by a crash, a full disk or a wrong option."""

from __future__ import annotations

import builtins
import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from trajgym.errors import CheckpointError, ConfigError, StorageError
from trajgym.trainers import runfolder
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.runfolder import CheckpointWarning, RunFolder, finished_checkpoints


class Weights:
    """Saves one number; may fail half-way."""

    def __init__(self, value: int, fail: bool = False, file: str = "value") -> None:
        self.value, self.fail, self.file = value, fail, file

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.file).write_text(str(self.value))
        if self.fail:
            raise OSError(errno.ENOSPC, "No space left on device")


def config(tmp_path: Path, **kwargs: Any) -> GRPOConfig:
    return GRPOConfig(updates=10, output_dir=tmp_path, **kwargs)


def save(run: RunFolder, update: int, **kwargs: Any) -> None:
    run.save(
        update,
        Weights(update, **kwargs),
        Weights(0, file="tokenizer"),
        {"update": update, "optimizer": {"x": torch.ones(2)}},
    )


def test_effective_values_are_written(tmp_path: Path) -> None:
    run = RunFolder(config(tmp_path, gamma=0.5), "demo")
    assert run.path == tmp_path / "demo-seed0"
    stored = yaml.safe_load((run.path / "config.yaml").read_text())
    assert stored["gamma"] == 0.5
    assert set(stored) == set(GRPOConfig.model_fields)


def test_a_folder_that_holds_a_run_is_not_reused_silently(tmp_path: Path) -> None:
    run = RunFolder(config(tmp_path), "demo")
    save(run, 1)
    with pytest.raises(ConfigError, match="--resume"):
        RunFolder(config(tmp_path), "demo")
    assert run.complete()
    again = RunFolder(config(tmp_path, overwrite=True), "demo")
    assert again.complete() == []


def test_resume_takes_the_newest_complete_checkpoint_and_drops_later_logs(tmp_path: Path) -> None:
    run = RunFolder(config(tmp_path), "demo")
    for update in (1, 2, 3):
        run.log({"update": update})
        (run.path / "trajectories" / f"update-{update:06d}.jsonl").write_text("{}\n")
        if update < 3:
            save(run, update)
    with run.metrics_path.open("a") as file:
        file.write('{"update": 4, "rew')  # the crash came here
    (run.checkpoints / "update-000003.partial").mkdir()
    again = RunFolder(config(tmp_path, resume=True), "demo")
    weights, state = again.load()
    assert (weights / "value").read_text() == "2"
    assert state["update"] == 2
    assert [json.loads(line)["update"] for line in again.metrics_path.read_text().split("\n") if line] == [1, 2]
    assert sorted(p.name for p in (again.path / "trajectories").iterdir()) == [
        "update-000001.jsonl",
        "update-000002.jsonl",
    ]
    assert not list(again.checkpoints.glob("*.partial"))


def test_old_checkpoints_go(tmp_path: Path) -> None:
    run = RunFolder(config(tmp_path, keep_checkpoints=2), "demo")
    for update in (1, 2, 3):
        save(run, update)
    assert [p.name for p in run.complete()] == ["update-000002", "update-000003"]


def test_a_full_disk_leaves_the_checkpoints_before_it(tmp_path: Path) -> None:
    run = RunFolder(config(tmp_path), "demo")
    save(run, 1)
    with pytest.raises(StorageError, match="the disk is full"):
        save(run, 2, fail=True)
    assert [p.name for p in run.complete()] == ["update-000001"]
    assert not list(run.checkpoints.glob("*.partial"))


@pytest.mark.parametrize("name", [".", "..", "../evil", "a/b", "/tmp"])
def test_names_stay_inside_the_output_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="one folder"):
        RunFolder(config(tmp_path, name=name, overwrite=True), "demo")


def test_only_our_own_folders_are_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "mine" / "config.yaml").write_text("a: 1")
    for options in ({"overwrite": True}, {}, {"resume": True}):
        with pytest.raises(ConfigError, match="not a run of ours"):
            RunFolder(config(tmp_path, name="mine", **options), "demo")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_functions_among_the_options_are_the_same_in_every_process(tmp_path: Path) -> None:
    options = {"env_kwargs": {"reward": {"a": (len, 1.0)}, "x": Weights(1)}}
    save(RunFolder(config(tmp_path, **options), "demo"), 1)
    options["env_kwargs"]["x"] = Weights(2)  # another address
    RunFolder(config(tmp_path, resume=True, **options), "demo").load()


def test_a_full_disk_while_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(config(tmp_path), "demo")
    real = Path.open

    def full(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name == "metrics.jsonl":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageError, match=r"disk is full.*--resume"):
        run.log({"update": 1})
    assert builtins.open is not full


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Cannot write"):
        RunFolder(config(tmp_path / "file"), "demo")


def test_what_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run to resume"):
        RunFolder(config(tmp_path, resume=True), "demo")
    run = RunFolder(config(tmp_path), "demo")
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        RunFolder(config(tmp_path, resume=True), "demo").load()
    save(run, 1)
    with pytest.raises(ConfigError, match=r"gamma: 1.0 before, 0.5 now"):
        RunFolder(config(tmp_path, resume=True, gamma=0.5), "demo")
    RunFolder(config(tmp_path, resume=True, save_every=3), "demo").load()
    (run.checkpoints / "update-000001" / "trainer.pt").write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match="damaged"):
        RunFolder(config(tmp_path, resume=True), "demo").load()


def test_other_versions_are_said_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(config(tmp_path), "demo")
    monkeypatch.setattr(runfolder, "_versions", lambda: {"torch": "1.0", "old": "0.1"})
    save(run, 1)
    monkeypatch.undo()
    with pytest.warns(CheckpointWarning, match=r"torch 1\.0 → 2\..*old 0\.1 → none"):
        _, state = run.load()
    assert state["update"] == 1
    save(run, 2)
    run.load()  # warnings are errors here


def test_finished_checkpoints_are_ours_and_in_the_order_of_their_updates(tmp_path: Path) -> None:
    names = ("update-1000000", "update-999999", "update-999999-backup", "update-000003.partial", "update-final")
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "update-000007").write_text("a file")
    assert [path.name for path in finished_checkpoints(tmp_path)] == ["update-999999", "update-1000000"]
