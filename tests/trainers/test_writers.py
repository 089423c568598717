"""Monitors: what reaches them, under which names, and that a run outlives them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.runfolder import RunFolder
from trajgym.trainers.writers import Writer, make_writers, offline_line

METRICS = {"update": 1, "epoch": 0.5, "reward": 0.45, "kl": 0.023, "loss": 1.234, "learning_rate": 1e-5}
NAMES = {"train/reward", "train/kl", "train/loss", "train/learning_rate", "train/epoch"}


class Service:
    """Stands in for wandb and trackio: notes every call, and fails where it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.broken: set[str] = set()

    def _note(self, name: str, value: Any) -> None:
        if name in self.broken:
            raise ConnectionError("the server is\nnot there")
        self.calls.append((name, value))

    def init(self, **kwargs: Any) -> Any:
        self._note("init", kwargs)
        return SimpleNamespace(id=kwargs.get("id"), log=self.log, finish=self.finish, log_artifact=self.log_artifact)

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._note("log", (step, metrics))

    def log_artifact(self, artifact: Any) -> None:
        self._note("artifact", artifact)

    def finish(self, **kwargs: Any) -> None:
        self._note("finish", kwargs)

    def Artifact(self, name: str, type: str, metadata: dict[str, Any]) -> Any:  # noqa: N802 (wandb's own name)
        made = SimpleNamespace(name=name, type=type, metadata=metadata, folders=[])
        made.add_dir = made.folders.append
        return made

    def named(self, name: str) -> list[Any]:
        return [value for called, value in self.calls if called == name]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(GRPOConfig(updates=10, output_dir=tmp_path, gamma=0.5), "demo")


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    for name in ("WANDB_PROJECT", "WANDB_LOG_MODEL", "WANDB_MODE", "TRACKIO_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    made = Service()
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.setitem(sys.modules, "trackio", made)
    return made


def checkpoint(run: RunFolder) -> Path:
    folder = run.checkpoints / "update-000001"
    (folder / "model").mkdir(parents=True)
    return folder


def play(writers: list[Writer], saved: Path | None, *, whole: bool = True) -> None:
    for writer in writers:
        writer.log(METRICS, 1)
        if saved is not None:
            writer.saved(saved)
        writer.close(saved if whole else None)


def test_the_offline_line() -> None:
    values = {"epoch": 0.4, "update": 100, "reward": 0.45, "kl": 0.023, "loss": 1.234}
    assert offline_line(values, epochs=2, total=500) == (
        "Epoch 1/2 | Step 100/500 | Reward: 0.45 | KL: 0.023 | Loss: 1.234"
    )


@pytest.mark.parametrize(
    ("done", "epoch"), [(0.0, 1), (0.9, 1), (1.0, 1), (1 + 1e-12, 1), (1.01, 2), (2.0, 2), (2.3, 2)]
)
def test_an_update_belongs_to_the_epoch_that_it_is_part_of(done: float, epoch: int) -> None:
    assert offline_line({"epoch": done, "update": 1}, epochs=2, total=9).startswith(f"Epoch {epoch}/2 | Step 1/9 | ")


def test_what_was_not_measured_is_not_made_up() -> None:
    line = offline_line({"update": 3, "reward": -0.5}, epochs=0, total=3)
    assert line == "Epoch 1/1 | Step 3/3 | Reward: -0.50 | KL: n/a | Loss: n/a"


def test_an_unknown_monitor_and_none_at_all(run: RunFolder) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'wandb'"):
        make_writers(["wand"], run)
    assert make_writers([], run) == []


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_missing_package_is_named_with_its_command(
    name: str, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # how Python notes that there is no such module
    with pytest.raises(ConfigError, match=f"'{name}' needs .*: pip install {name}"):
        make_writers([name], run)


def test_wandb(run: RunFolder, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "maths")
    play(make_writers(["wandb"], run), checkpoint(run))
    (started,) = service.named("init")
    assert (started["project"], started["name"], started["dir"]) == ("maths", "demo-seed0", str(run.path))
    assert started["config"]["gamma"] == 0.5
    assert started["resume"] is None
    ((step, logged),) = service.named("log")
    assert step == 1
    assert set(logged) >= NAMES
    assert logged["train/learning_rate"] == 1e-5
    assert service.named("finish") == [{"exit_code": 0}]
    assert service.named("artifact") == []


def test_a_resumed_run_goes_on_under_its_name(run: RunFolder, service: Service) -> None:
    make_writers(["wandb"], run)
    make_writers(["wandb"], run, first=5)
    make_writers(["wandb"], run)
    first, second, third = service.named("init")
    assert first["id"] == second["id"] != third["id"]
    assert second["resume"] == "allow"


@pytest.mark.parametrize(("setting", "uploads"), [("end", 1), ("checkpoint", 1), ("false", 0), ("", 0), ("END", 1)])
def test_models_are_uploaded_as_asked(
    setting: str, uploads: int, run: RunFolder, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_LOG_MODEL", setting)
    saved = checkpoint(run)
    play(make_writers(["wandb"], run), saved)
    sent = service.named("artifact")
    assert len(sent) == uploads
    for artifact in sent:
        assert (artifact.type, artifact.folders) == ("model", [str(saved / "model")])
        assert artifact.metadata == {"checkpoint": "update-000001"}


def test_a_run_that_was_cut_short_is_no_success(
    run: RunFolder, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_LOG_MODEL", "end")
    play(make_writers(["wandb"], run), checkpoint(run), whole=False)
    assert service.named("artifact") == []
    assert service.named("finish") == [{"exit_code": 1}]


def test_a_setting_that_does_not_exist(run: RunFolder, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_LOG_MODEL", "always")
    with pytest.raises(ConfigError, match=r"WANDB_LOG_MODEL='always' .*false, end, checkpoint"):
        make_writers(["wandb"], run)


def test_trackio(run: RunFolder, service: Service) -> None:
    play(make_writers(["trackio"], run), checkpoint(run))
    (started,) = service.named("init")
    assert (started["project"], started["name"], started["resume"]) == ("trajgym", "demo-seed0", "never")
    ((step, logged),) = service.named("log")
    assert step == 1
    assert set(logged) >= NAMES
    assert service.named("finish") == [{}]


def test_a_service_that_does_not_start(run: RunFolder, service: Service) -> None:
    service.broken.add("init")
    with pytest.raises(ConfigError, match=r"'wandb' does not start: the server is\. Log in with"):
        make_writers(["wandb"], run)


def test_a_service_that_fails_is_warned_of_once(
    run: RunFolder, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    (writer,) = make_writers(["wandb"], run)
    service.broken.add("log")
    for step in (1, 2, 3):
        writer.log(METRICS, step)
    writer.close()
    err = capsys.readouterr().err
    assert err.count("wandb failed and is left alone") == 1
    assert "metrics.jsonl has everything" in err
    assert service.named("log") == service.named("finish") == []


def test_tensorboard(run: RunFolder) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    play(make_writers(["tensorboard", "tensorboard"], run), None)
    events = EventAccumulator(str(run.path)).Reload()
    assert set(events.Tags()["scalars"]) == NAMES | {"train/update"}
    (event,) = events.Scalars("train/reward")
    assert (event.step, round(event.value, 6)) == (1, 0.45)


@pytest.mark.slow
def test_wandb_itself_offline(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_LOG_MODEL": "end", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    saved = checkpoint(run)
    (saved / "model" / "config.json").write_text("{}")
    play(make_writers(["wandb"], run), saved)
    (log,) = (run.path / "wandb").glob("offline-run-*/run-*.wandb")
    for name in NAMES:
        assert re.search(re.escape(name.encode()), log.read_bytes())


@pytest.mark.slow
def test_trackio_itself(run: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    play(make_writers(["trackio"], run), None)
    assert list((tmp_path / "trackio").rglob("trajgym*"))
