"""``trajgym sft``: help, recipes, a run, and errors that are one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trajgym.cli import commands, main


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "sft" in commands()
    assert main(["sft"]) == 2
    assert main(["sft", "--help"]) == 0
    assert "sft_quickstart" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["sft_quikstart"], "Did you mean 'sft_quickstart'"),
        (["quickstart"], "Unknown recipe 'quickstart'"),
        (["nowhere.yaml"], "no configuration file"),
        (["sft_quickstart", "--epochs", "0"], "epochs"),
        (["sft_quickstart", "--model", "/nowhere"], "no folder /nowhere"),
        (["sft_quickstart", "--env-kwargs", '{"spilt": "train"}'], "spilt"),
    ],
)
def test_errors_are_one_line(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sft", *args]) == 2
    error = capsys.readouterr().err
    assert error.startswith("trajgym sft: ")
    assert message in error
    assert "Traceback" not in error


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talk = tmp_path / "talk.jsonl"
    row = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}
    talk.write_text(json.dumps(row) + "\n")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"dataset: {talk}\nepochs: 1\nmonitors: []\noutput_dir: {tmp_path / 'runs'}\n")
    assert main(["sft", str(recipe), "--device", "cpu", "--seed", "4"]) == 0
    printed = capsys.readouterr()
    assert "tiny (all weights)" in printed.out
    assert "learning rate 5e-05" in printed.out
    folder = tmp_path / "runs" / "mine-seed4"
    assert f"trajgym train RECIPE --model {folder / 'model'}" in printed.err
    assert (folder / "model" / "model.safetensors").is_file()
    assert main(["sft", str(recipe), "--device", "cpu", "--seed", "4"]) == 2
    assert "holds a run already" in capsys.readouterr().err
