"""What runs leave behind is read whatever state it is in; what cannot be read is said."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest

from trajgym.errors import ConfigError, DataError
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.diagnose_logs import read_run
from trajgym.trainers.runfolder import RunFolder

NO_OPTIONS = "There is no config.yaml, so options are not judged."


def lines(path: Path, *rows: str | dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def state(path: Path, *entries: Any) -> Path:
    return lines(path, {"global_step": 5, "log_history": list(entries)})


def test_a_run_of_ours(tmp_path: Path) -> None:
    run = RunFolder(GRPOConfig(updates=3, kl_coef=0.2, output_dir=tmp_path), "demo")
    assert read_run(run.path).rows == ()
    assert read_run(run.path).remarks == ("No update has been finished yet.",)
    for update in (1, 2):
        run.log({"update": update, "kl": update / 10, "loss": math.nan})
    log = read_run(run.path)
    assert (log.path, log.kind, log.remarks, log.names) == (run.path, "trajgym", (), {})
    assert [(row["update"], row["kl"]) for row in log.rows] == [(1, 0.1), (2, 0.2)]
    assert math.isnan(log.rows[0]["loss"])
    assert log.options["kl_coef"] == 0.2
    assert read_run(run.metrics_path).rows[1]["kl"] == 0.2  # the file will do


def test_what_a_crash_cut_short_is_left_out_and_said(tmp_path: Path) -> None:
    good = [{"update": 1, "kl": 0.1}, {"update": 2, "kl": 0.2}]
    path = lines(tmp_path / "metrics.jsonl", *good, "\n", "[1, 2]\n", {"kl": 0.3}, {"update": -1}, '{"update": 3, "k')
    log = read_run(tmp_path)
    assert list(log.rows) == good
    assert log.remarks[0] == NO_OPTIONS
    assert log.remarks[1].startswith("4 of 6 lines of metrics.jsonl could not be read")
    path.write_bytes(b'{"update": 1}\n\xff\xfe\x00{"')
    assert [row["update"] for row in read_run(tmp_path).rows] == [1]


def test_only_numbers_count_and_of_an_update_done_twice_the_later_holds(tmp_path: Path) -> None:
    odd = {"update": 2, "kl": None, "loss": "low", "\x1b[31m": 1.0, "done": True, "reward": 1}
    lines(tmp_path / "metrics.jsonl", {"update": 3, "kl": 0.1}, {"update": 2, "kl": 0.5}, odd)
    assert list(read_run(tmp_path).rows) == [{"update": 2, "reward": 1}, {"update": 3, "kl": 0.1}]


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2\n", "", "\x00"])
def test_options_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    lines(tmp_path / "metrics.jsonl", {"update": 1})
    (tmp_path / "config.yaml").write_text(text)
    log = read_run(tmp_path)
    assert log.options == {}
    assert log.remarks == ("config.yaml could not be read, so options are not judged.",)


TRL = {
    "step": 10, "epoch": 0.1, "loss": 0.02, "grad_norm": 0.4, "learning_rate": 1e-6, "reward": 0.5, "kl": 0.01,
    "rewards/accuracy_reward/mean": 0.4, "rewards/format_reward/mean": 0.9, "rewards/format_reward/std": 0.1,
    "completions/mean_length": 120.0, "completions/clipped_ratio": 0.2, "frac_reward_zero_std": 0.3, "entropy": 0.5,
    "clip_ratio/region_mean": 0.01, "tools/failure_frequency": 0.25,
}  # fmt: skip


def test_logs_of_trl_under_our_names(tmp_path: Path) -> None:
    path = state(tmp_path / "checkpoint-10" / "trainer_state.json", TRL, {"step": 10, "eval_loss": 0.7}, {"step": 20})
    for source in (tmp_path, path.parent, path):
        log = read_run(source)
        assert (log.kind, log.remarks, log.options) == ("trl", (), {})
        assert log.names["kl_coef"] == "beta"
        first, second = log.rows
        assert second == {"update": 20}
        assert first == {
            "update": 10, "epoch": 0.1, "loss": 0.02, "grad_norm": 0.4, "learning_rate": 1e-6, "reward": 0.5,
            "kl": 0.01, "success": 0.4, "reward/format_reward": 0.9, "rewards/format_reward/std": 0.1, "entropy": 0.5,
            "tokens_per_trajectory": 120.0, "cut_turn_share": 0.2, "no_signal_share": 0.3, "clip_share": 0.01,
            "tool_error_share": 0.25, "eval_loss": 0.7,
        }  # fmt: skip


def test_the_names_are_those_of_the_installed_trl() -> None:
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None:
        pytest.skip("trl is not installed")
    source = (Path(spec.origin).parent / "trainer" / "grpo_trainer.py").read_text(encoding="utf-8")
    logged = set(TRL) - {"step", "epoch", "loss", "grad_norm", "learning_rate"}  # those are the base class's
    missing = {name for name in logged if not name.startswith("rewards/") and f'"{name}"' not in source}
    assert missing == set()
    assert 'f"rewards/{reward_func_name}/mean"' in source


def test_the_newest_checkpoint_that_is_whole(tmp_path: Path) -> None:
    state(tmp_path / "checkpoint-90" / "trainer_state.json", {"step": 90, "kl": 0.1})
    state(tmp_path / "checkpoint-100" / "trainer_state.json", {"step": 100, "kl": 0.2}, "no entry", {"kl": 0.3})
    log = read_run(tmp_path)
    assert [row["update"] for row in log.rows] == [100]
    assert log.remarks[0].startswith("2 of 3 entries of trainer_state.json could not be read")
    lines(tmp_path / "checkpoint-100" / "trainer_state.json", '{"log_history": [{"st')
    log = read_run(tmp_path)
    assert [row["update"] for row in log.rows] == [90]
    assert "checkpoint-100" in log.remarks[0]


@pytest.mark.parametrize(
    "text", ["", '{"log_history": [', "[]", '{"log_history": {"step": 1}}', "\x00\x01", "[" * 100_000]
)
def test_a_state_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    path = lines(tmp_path / "trainer_state.json", text)
    with pytest.raises(DataError, match="could not be read"):
        read_run(path)


def test_a_file_without_metrics(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no line that is a JSON object with an update"):
        read_run(lines(tmp_path / "metrics.jsonl", "nothing\n"))
    lines(tmp_path / "metrics.jsonl", "")
    assert read_run(tmp_path).remarks == (NO_OPTIONS, "No update has been finished yet.")
    assert read_run(state(tmp_path / "trainer_state.json")).remarks == ("No step has been logged yet.",)


@pytest.mark.parametrize("name", ["missing", ""])
def test_where_there_is_no_run(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"Give a run folder \(with metrics.jsonl\), or TRL's"):
        read_run(tmp_path / name)
