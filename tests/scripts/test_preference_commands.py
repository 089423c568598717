"""The commands that learn from preferences: dpo, reward-model, rlaif."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("trl")

from trajgym.cli import main
from trajgym.trainers.preferences import make_pair, read_pairs, write_pairs


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.jsonl"
    write_pairs(file, [make_pair(f"{i} + 1?", f"#### {i + 1}", f"#### {i + 2}") for i in range(8)])
    return file


def test_a_reward_model_from_the_command_line(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = [
        "--pairs",
        str(pairs),
        "--output-dir",
        str(tmp_path),
        "--name",
        "rm",
        "--device",
        "cpu",
        "--held-out",
        "0.3",
    ]
    assert main(["reward-model", *args]) == 0
    out = capsys.readouterr().out
    assert "6 pairs to learn from, 2 held out, of 8." in out
    assert "step 1/1" in out
    assert "Held out:" in out
    assert list((tmp_path / "rm").glob("events.*"))
    assert len(read_pairs(tmp_path / "rm" / "held_out.jsonl")) == 2
    assert main(["reward-model", *args]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_dpo_from_a_file_of_options(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "dpo.yaml"
    file.write_text(
        json.dumps(
            {
                "pairs": str(pairs),
                "output_dir": str(tmp_path),
                "name": "d",
                "device": "cpu",
                "monitors": [],
                "held_out": 0.3,
            }
        )
    )
    assert main(["dpo", str(file), "--beta", "0.2"]) == 0
    assert "the better answer gained more in" in capsys.readouterr().out
    assert "beta: 0.2" in (tmp_path / "d" / "config.yaml").read_text()
    assert (tmp_path / "d" / "model" / "config.json").is_file()


@pytest.mark.parametrize("command", ["dpo", "reward-model", "rlaif"])
def test_wrong_use(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command]) == 2
    assert main([command, "--help"]) == 0
    assert f"trajgym {command}" in capsys.readouterr().out
    assert main([command, str(tmp_path / "none.yaml")]) == 2
    file = tmp_path / "options.yaml"
    file.write_text("modle: tiny\n")
    assert main([command, str(file)]) == 2
    assert "Unknown option 'modle'" in capsys.readouterr().err
