"""What happens to a run on a bad day: a full disk, a folder that goes away, bytes that flip, a second trainer."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trajgym.errors import CheckpointError, ConfigError, StorageError
from trajgym.trainers.checksums import damage
from trajgym.trainers.config import GRPOConfig, load_config
from trajgym.trainers.grpo import GRPOTrainer, train
from trajgym.trainers.runfolder import CheckpointWarning, RunFolder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = sorted((folder / "checkpoints").glob("update-*"))[-1]
    return dict(load_file(newest / "model" / "model.safetensors"))


def updates(folder: Path) -> list[int]:
    return [json.loads(line)["update"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let the system refuse whatever would make a file longer, in mid-write: a disk that fills up."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = (
        shutil.which("mount")
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
        ).returncode
    )
    if not mounted:
        pytest.skip("mounting a file system needs more rights; the other tests here need none")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def options(identity_options: dict[str, Any]) -> dict[str, Any]:
    return {**identity_options, "updates": 4, "save_every": 2, "log_trajectories": 16}


@pytest.fixture
def begun(options: dict[str, Any]) -> Path:
    """A run that has come half-way, with one checkpoint."""
    return train(load_config({**options, "updates": 2, "name": "begun"}))


# After two updates metrics.jsonl has 4 kB, a file of trajectories 20 kB, one of weights 90 kB.
@pytest.mark.parametrize("written", ["metrics", "trajectories", "checkpoint"])
def test_a_disk_that_is_full_in_mid_write(options: dict[str, Any], begun: Path, written: str) -> None:
    whole = train(load_config({**options, "name": "whole"}))
    played = begun / "trajectories" / "update-000002.jsonl"
    log = begun / "metrics.jsonl"
    limits = {
        "metrics": log.stat().st_size + 100,  # the next line would be cut
        "trajectories": played.stat().st_size // 2,
        "checkpoint": 40_000,
    }
    assert log.stat().st_size * 2 < played.stat().st_size // 2 < played.stat().st_size < 40_000
    again = {**options, "name": "begun", "resume": True}
    trainer = GRPOTrainer(load_config(again))
    with (
        files_of_at_most(limits[written]),
        pytest.raises(StorageError, match=r"Cannot write to .*: .*What was saved before is intact"),
    ):
        trainer.run()
    assert [p.name for p in trainer.folder.complete()] == ["update-000002"]
    assert not list(begun.rglob("*.partial")) or written == "trajectories"
    assert updates(begun) == {"metrics": [1, 2], "trajectories": [1, 2, 3], "checkpoint": [1, 2, 3, 4]}[written]
    resumed = train(load_config(again))
    assert updates(resumed) == [1, 2, 3, 4]
    assert not list(resumed.rglob("*.partial"))
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(resumed).items())


def test_a_disk_without_room_for_a_checkpoint(options: dict[str, Any], small_disk: Path) -> None:
    options = {**options, "output_dir": str(small_disk), "name": "demo", "keep_checkpoints": 5}
    folder = train(load_config({**options, "updates": 2}))
    with (small_disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    with pytest.raises(StorageError, match=r"the disk is full.*make room"):
        train(load_config({**options, "resume": True}))
    assert (folder / "config.yaml").stat().st_size > 0
    assert updates(folder) == [1, 2]
    (small_disk / "filler").unlink()
    assert updates(train(load_config({**options, "resume": True}))) == [1, 2, 3, 4]


def test_a_folder_that_cannot_be_written(options: dict[str, Any], small_disk: Path) -> None:
    options = {**options, "output_dir": str(small_disk), "name": "demo"}
    folder = train(load_config({**options, "updates": 2}))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for how in ({"resume": True}, {"overwrite": True}, {"name": "another"}):
        with pytest.raises(StorageError, match="Read-only file system"):
            train(load_config({**options, **how}))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def removed_after(trainer: GRPOTrainer, update: int, *paths: Path) -> None:
    """Remove something as soon as the trainer plays beyond ``update``."""
    play = trainer.gather

    def gather(*args: Any) -> Any:
        if trainer.update == update:
            for path in paths:
                shutil.rmtree(path)
        return play(*args)

    trainer.gather = gather  # type: ignore[method-assign]


def test_a_run_folder_that_is_removed_in_mid_run(options: dict[str, Any]) -> None:
    """The weights are kept: the folder is made again for a checkpoint from which the run can go on."""
    whole = train(load_config({**options, "name": "whole"}))
    trainer = GRPOTrainer(load_config({**options, "name": "gone"}))
    removed_after(trainer, 2, trainer.folder.path)
    with (
        pytest.warns(CheckpointWarning, match="removed during the run. It was made again"),
        pytest.raises(StorageError, match="it was removed or unmounted"),
    ):
        trainer.run()
    with pytest.warns(CheckpointWarning, match=r"metrics.jsonl lacks 3 of 3 lines"):
        resumed = train(load_config({**options, "name": "gone", "resume": True}))
    assert updates(resumed) == [4]
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(resumed).items())


def test_checkpoints_that_are_removed_in_mid_run(options: dict[str, Any]) -> None:
    trainer = GRPOTrainer(load_config(options))
    removed_after(trainer, 2, trainer.folder.checkpoints)
    assert updates(trainer.run()) == [1, 2, 3, 4]
    assert [path.name for path in trainer.folder.complete()] == ["update-000004"]
    shutil.rmtree(trainer.folder.checkpoints)
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        train(load_config({**options, "resume": True}))


def every_file(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


@pytest.mark.parametrize("harm", ["flipped", "truncated", "emptied", "removed"])
def test_a_damaged_checkpoint_is_never_loaded(options: dict[str, Any], harm: str) -> None:
    """Whatever happens to any of its files; the one before is offered, and goes on like the uninterrupted run."""
    folder = train(load_config(options))
    newest = folder / "checkpoints" / "update-000004"
    resume = load_config({**options, "resume": True, "updates": 5})
    rng = random.Random(harm)
    names = [path.relative_to(newest) for path in every_file(newest)]
    assert {"trainer.pt", "checksums.json", "model.safetensors", "config.json"} <= {path.name for path in names}
    for name in names:
        path = newest / name
        before = path.read_bytes()
        for _ in range(3 if harm in ("flipped", "truncated") else 1):
            at = rng.randrange(len(before))
            flipped = before[:at] + bytes([before[at] ^ 1 << rng.randrange(8)]) + before[at + 1 :]
            path.write_bytes({"flipped": flipped, "truncated": before[:at], "emptied": b"", "removed": b""}[harm])
            if harm == "removed":
                path.unlink()
            run = RunFolder(resume, "run")
            if harm == "removed" and path.name == "checksums.json":
                with pytest.warns(CheckpointWarning, match="has no checksums"):
                    run.load()
                continue
            with pytest.raises(CheckpointError, match=r"update-000004 is damaged: .*go on from update-000002"):
                run.load()
        path.write_bytes(before)
    assert damage(newest) is None
    RunFolder(resume, "run").load()
    assert updates(folder) == [1, 2, 3, 4]  # nothing was dropped in between
    shutil.rmtree(newest)
    RunFolder(resume, "run").load()
    assert updates(folder) == [1, 2]


def test_two_damaged_checkpoints(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = train(load_config({**options, "updates": 3, "save_every": 1, "keep_checkpoints": 3}))
    first, second, third = sorted((folder / "checkpoints").glob("update-*"))
    for path in (second, third):
        (path / "trainer.pt").write_bytes(b"")
    run = RunFolder(load_config({**options, "resume": True}), "run")
    with pytest.raises(CheckpointError, match=r"Remove update-000002, update-000003 from .* go on from update-000001"):
        run.load()
    (first / "trainer.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match="No other one of 2 is whole"):
        run.load()


HOLD = """
import sys
from pathlib import Path
from trajgym.trainers.folder_lock import lock_folder
marker = Path(sys.argv[1])
lock_folder(marker, owner := set())
print("ready", flush=True)
sys.stdin.read()
"""


def test_two_trainers_on_one_folder(tmp_path: Path) -> None:
    marker = RunFolder(GRPOConfig(updates=1, output_dir=tmp_path), "demo").path / ".trajgym-run"
    gc.collect()  # nobody here holds it any more
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(marker)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    before = {path: path.read_bytes() for path in marker.parent.rglob("*") if path.is_file()}
    for how in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(ConfigError, match=rf"written by another process \(process {other.pid} on .*--name"):
            RunFolder(GRPOConfig(updates=1, output_dir=tmp_path, **how), "demo")
    assert {path: path.read_bytes() for path in marker.parent.rglob("*") if path.is_file()} == before
    other.kill()
    other.communicate()
    RunFolder(GRPOConfig(updates=1, output_dir=tmp_path, resume=True), "demo")
    assert marker.read_text().startswith(f"process {os.getpid()} on ")
