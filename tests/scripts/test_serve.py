"""``trajgym serve`` up to the point where it listens."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from trajgym.cli import main
from trajgym.errors import ConfigError
from trajgym.serving.limits import Limits


def test_missing_packages_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "fastapi" else real(name, *a))
    assert main(["serve", "tiny"]) == 2
    said = capsys.readouterr().err
    assert "fastapi" in said
    assert "trajgym[serve]" in said


def test_every_limit_is_an_option_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(Limits):
        flag = f"--{field.name.replace('_', '-')} N "
        assert flag in said
        assert not said.split(flag)[-1].startswith("("), field.name
    assert "0.0.0.0" in said
    assert "8000" in said


@pytest.mark.parametrize(
    "options",
    [["--slots", "0"], ["--queue", "-1"], ["--max-new-tokens", "-5"], ["--request-seconds", "nan"],
     ["--api-key-file", "/nowhere/at/all"], ["--env-kwargs", "{}", "--slots", "-1"]],
)  # fmt: skip
def test_wrong_options_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastapi")
    assert main(["serve", "tiny", *options]) == 2
    assert options[0 if len(options) == 2 else 2].strip("-").replace("-", "_")[:5] in capsys.readouterr().err.replace(
        "-", "_"
    )


def test_an_empty_key_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastapi")
    (tmp_path / "key").write_text("\n", encoding="utf-8")
    assert main(["serve", "tiny", "--api-key-file", str(tmp_path / "key")]) == 2
    assert "is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    "values", [{"slots": True}, {"agents": 0}, {"drain_seconds": float("inf")}, {"max_length": 0}, {"queue": 1.5}]
)
def test_limits_are_checked(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        Limits(**values)


def test_no_queue_is_a_queue() -> None:
    assert Limits(queue=0).queue == 0
