"""Progress: a line per update that stays in its columns, and the same numbers for other tools."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trajgym.errors import StorageError
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.monitor import Monitor
from trajgym.trainers.runfolder import RunFolder
from trajgym.trainers.writers import make_writers

FULL = {
    "reward": 1.25, "return": -0.5, "success": 1.0, "kl": 0.0123, "entropy": 2.5, "turns": 11.75, "calls": 3.0,
    "call_error_share": 0.125, "grad_norm": 0.333, "time/tokens_per_second": 12345.6, "loss": -0.25,
}  # fmt: skip


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the monitor reads; change its only item."""
    now = [0.0]
    monkeypatch.setattr("trajgym.trainers.monitor.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(GRPOConfig(updates=10, output_dir=tmp_path), "demo")


def test_lines_stay_in_their_columns(tmp_path: Path, clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor(folder(tmp_path), total=300, first=0)
    clock[0] = 2.0
    monitor.update({"update": 1, **FULL})
    clock[0] = 200.0
    monitor.update({"update": 200, "reward": 0.5})
    head, full, sparse = capsys.readouterr().out.splitlines()
    titles = "update reward return success KL/token entropy turns calls errors grad tok/s left"
    assert head.split() == titles.split()
    assert full.split() == [
        "1/300", "1.250", "-0.500", "100%", "0.0123", "2.500", "11.8", "3.0", "12.5%", "0.33", "12,346", "9:58"
    ]  # fmt: skip
    assert sparse.split() == ["200/300", "0.500", *"–" * 9, "1:40"]
    ends = [[match.end() for match in re.finditer(r"\S+", line)] for line in (head, full, sparse)]
    assert ends[0][1:] == ends[1][1:] == ends[2][1:]


def test_the_head_comes_again_every_twenty_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor(folder(tmp_path), total=50, first=0)
    for update in range(1, 42):
        monitor.update({"update": update})
    lines = capsys.readouterr().out.splitlines()
    assert [i for i, line in enumerate(lines) if "reward" in line] == [0, 21, 42]


def test_what_is_left_is_reckoned_from_where_the_run_went_on(
    tmp_path: Path, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    monitor = Monitor(folder(tmp_path), total=1000, first=90)
    clock[0] = 100.0
    monitor.update({"update": 100})  # ten updates in 100 s, 900 to go
    monitor.update({"update": 1000})
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]] == ["2:30:00", "0:00"]


def test_faults_stand_behind_the_line_only_where_there_are_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor = Monitor(folder(tmp_path), total=3, first=0)
    monitor.update({"update": 1, "fault_share": 0.0})
    monitor.update({"update": 2, "fault_share": 0.03125}, faults="1 of 32 episodes failed.")
    head, clean, faulty = capsys.readouterr().out.splitlines()
    assert "fault" not in head + clean
    assert faulty.endswith("faults 3.1%")


def warned(monitor: Monitor, shares: list[float], capsys: pytest.CaptureFixture[str]) -> list[int]:
    """The updates with a warning."""
    found = []
    for update, share in enumerate(shares, 1):
        monitor.update({"update": update, "fault_share": share}, faults=f"In update {update} some episodes failed.")
        warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ! ")]
        assert all(line.startswith(f"  ! In update {update} some episodes failed. ") for line in warnings)
        found += [update] * len(warnings)
    return found


@pytest.mark.parametrize(
    ("shares", "updates"),
    [
        ([0.0, 0.1, 0.1001, 0.0, 0.2], [3]),  # the limit itself is allowed
        ([0.15] * 45, [1, 21, 41]),
        ([0.15, 0.25, 0.35, 0.5, 0.65, 0.7], [1, 3, 6]),  # again when it has doubled
        ([0.15, *[0.0] * 30, 0.11], [1, 32]),
    ],
)
def test_a_share_above_the_limit_is_warned_of_and_not_at_every_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shares: list[float], updates: list[int]
) -> None:
    monitor = Monitor(folder(tmp_path), total=100, first=0, fault_alarm=0.1)
    assert warned(monitor, shares, capsys) == updates


def test_one_as_the_limit_never_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor(folder(tmp_path), total=100, first=0, fault_alarm=1.0)
    assert warned(monitor, [1.0] * 30, capsys) == []


def test_a_skipped_update_is_told_every_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor(folder(tmp_path), total=100, first=0, fault_alarm=0.1)
    monitor.update({"update": 1, "fault_share": 1.0}, faults="All failed.", skipped=["The disk is full."])
    monitor.update({"update": 2, "fault_share": 1.0}, faults="All failed.", skipped=["The disk is full.", "No pool."])
    first, second = (line for line in capsys.readouterr().out.splitlines() if "!" in line)
    assert first.startswith("  ! Skipped, 1 in a row")
    assert first.endswith("The disk is full.")
    assert second.startswith("  ! Skipped, 2 in a row")
    assert second.endswith("No pool.")


def test_every_number_is_in_the_metrics_file(tmp_path: Path) -> None:
    run = folder(tmp_path)
    monitor = Monitor(run, total=2, first=0)
    monitor.update({"update": 1, **FULL})
    monitor.update({"update": 2, "loss": 1e-9})
    monitor.close()
    lines = run.metrics_path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"update": 1, **FULL}, {"update": 2, "loss": 1e-9}]


def test_tensorboard_reads_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read() -> dict[str, list[tuple[int, float]]]:
        events = EventAccumulator(str(run.path))
        events.Reload()
        return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    run = folder(tmp_path)
    monitor = Monitor(run, total=3, first=0, writers=make_writers(["tensorboard"], run))
    for update in (1, 2, 3):
        monitor.update({"update": update, "loss": update / 4, "time/rollout": 0.5})
    assert read()["train/loss"] == [(1, 0.25), (2, 0.5), (3, 0.75)]  # while the run is still under way
    monitor.close()
    # Resumed after update 1: the later ones go.
    again = Monitor(run, total=3, first=1, writers=make_writers(["tensorboard"], run, first=1))
    again.update({"update": 2, "loss": 8.0, "time/rollout": 0.5})
    again.close()
    assert read() == {
        "train/update": [(1, 1.0), (2, 2.0)],
        "train/loss": [(1, 0.25), (2, 8.0)],
        "train/time/rollout": [(1, 0.5), (2, 0.5)],
    }


def test_without_tensorboard_there_are_no_events(tmp_path: Path) -> None:
    run = folder(tmp_path)
    monitor = Monitor(run, total=1, first=0)
    monitor.update({"update": 1})
    monitor.close()
    assert not list(run.path.glob("events*"))


def test_a_disk_that_fails_is_told_as_such(tmp_path: Path) -> None:
    run = folder(tmp_path)
    monitor = Monitor(run, total=1, first=0, writers=make_writers(["tensorboard"], run))

    class Full:
        def add_scalar(self, *_: Any) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            pass

    monitor.close()
    monitor._writers[0]._writer = Full()
    with pytest.raises(StorageError, match="the disk is full"):
        monitor.update({"update": 1})


def test_silent_loss_is_told_and_a_resumed_run_remembers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder(tmp_path)
    monitor = Monitor(run, total=100, first=0)
    for update in (1, 2, 3):
        monitor.update({"update": update, "unreadable_share": 0.0})
    assert " ! " not in capsys.readouterr().out
    resumed = Monitor(run, total=100, first=3)
    for update in (4, 5):
        resumed.update({"update": update, "unreadable_share": 0.2})
    lines = [line for line in capsys.readouterr().out.splitlines() if " ! " in line]
    assert len(lines) == 1
    assert "answers could not be read" in lines[0]


def test_findings_come_with_advice_for_these_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = GRPOConfig(updates=9, learning_rate=1e-5, fault_alarm=0.5).plain()
    monitor = Monitor(folder(tmp_path), total=9, first=0, options=options)
    for update in (1, 2, 3, 4):
        monitor.update({"update": update, "kl": 0.75, "fault_share": 0.4})
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "  ! " in line]
    assert line.startswith("  ! KL per token is 0.75")
    assert "Try learning_rate 1e-05 → 2e-06, kl_coef 0.05 → 0.1" in line
    assert line.endswith("[kl_explosion]")


def test_unwise_options_are_told_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rate, count in ((1e-3, 1), (1e-5, 0)):
        options = GRPOConfig(updates=9, model="Qwen/Qwen3-0.6B", learning_rate=rate, num_generations=2).plain()
        run = RunFolder(GRPOConfig(updates=9, output_dir=tmp_path, name=f"rate-{rate}"), "demo")
        Monitor(run, total=9, first=0, options=options).begin()
        lines = capsys.readouterr().out.splitlines()  # few generations are only a note
        assert [line.startswith("  ! learning_rate is 0.001") for line in lines] == [True] * count


def test_an_error_that_is_known_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = GRPOConfig(updates=9).plain()
    monitor = Monitor(folder(tmp_path), total=9, first=0, options=options)
    monitor.explain(ValueError("something else"))
    assert capsys.readouterr().out == ""
    monitor.explain(RuntimeError("CUDA out of memory."))
    (line,) = capsys.readouterr().out.splitlines()
    assert "microbatch_tokens 16384 → 8192" in line
    assert line.endswith("[out_of_memory]")


def test_some_updates_are_printed_and_all_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder(tmp_path)
    monitor = Monitor(run, total=10, first=0, print_every=4)
    for update in range(1, 11):
        monitor.update({"update": update})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["4/10", "8/10", "10/10"]
    rows = (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(row)["update"] for row in rows] == [*range(1, 11)]
