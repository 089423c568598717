"""trajgym plan."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from trajgym.cli import main


def test_a_small_model_gets_whole_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "quickstart", "--gpus", "4", "--output", str(tmp_path), "--base-batch", "32"]) == 0
    said = capsys.readouterr().out
    assert "Plan: ddp, 4 processes on one machine" in said
    assert "which fits" in said
    assert f"accelerate launch --config_file {tmp_path / 'ddp.yaml'} -m trajgym.cli train quickstart" in said
    assert "NCCL_DEBUG=INFO" in said
    assert "Learning rate:" in said
    assert yaml.safe_load((tmp_path / "ddp.yaml").read_text())["num_processes"] == 4


def test_several_machines_get_a_file_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ["--gpus", "16", "--machines", "4", "--ip", "192.168.1.100", "--parameters", "13e9"]
    assert main(["plan", "quickstart", *cluster, "--engine", "deepspeed", "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "Plan: zero3, 16 processes on 4 machines" in said
    assert "Launch on machine 3:" in said
    assert "--engine fsdp" in said  # what the trainer itself divides with
    assert len(list(tmp_path.glob("zero3-machine*.yaml"))) == 4


def test_a_plan_can_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "quickstart", "--gpus", "2", "--gpu-memory", "0.001", "--plan", "fsdp"]
    assert main([*arguments, "--model", "tiny", "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "it was asked for" in said
    assert "DOES NOT FIT" in said
    assert "--model tiny" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["quickstart", "--gpus", "0"], "gpus must be a whole number"),
        (["quickstrat", "--gpus", "2"], "Did you mean 'quickstart'?"),
        (["quickstart", "--gpus", "2", "--plan", "fdsp"], "Did you mean 'fsdp'?"),
        (["quickstart", "--gpus", "2", "--rule", "squirt", "--base-batch", "8"], "Did you mean 'sqrt'?"),
        (["quickstart", "--gpus", "4", "--machines", "2"], "give ip"),
        (["quickstart", "--gpus", "2", "--model", "./nowhere"], "Give --parameters"),
        (["quickstart", "--gpus", "2", "--parameters", "nan"], "parameters must be a number above 0"),
    ],
)
def test_bad_use_is_explained(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments, "--output", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
