"""``trajgym export`` as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trajgym.cli import main


def test_a_model_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "tiny", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert f"trajgym serve {tmp_path / 'out'}" in capsys.readouterr().out


def test_a_taken_folder_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    assert main(["export", "tiny", str(tmp_path)]) == 2
    assert "--overwrite" in capsys.readouterr().err
