"""The bridge as its page describes it, and the versions of TRL that it takes."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from trajgym.errors import ConfigError
from trajgym.trainers.trl_version import REQUIREMENT, require_trl

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("version", ["1.16.0", "1.16.3", "1.16.0.dev0"])
def test_versions_that_fit(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    require_trl()


@pytest.mark.parametrize("version", ["0.29.0", "1.15.1", "1.17.0", "2.0.0"])
def test_versions_that_do_not(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(ConfigError, match=re.escape(f"{REQUIREMENT} and found {version}")):
        require_trl()


def test_without_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ConfigError, match=re.escape(f"pip install '{REQUIREMENT}'")):
        require_trl()


def test_the_project_asks_for_the_same_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert REQUIREMENT in project["optional-dependencies"]["dev"]


@pytest.mark.filterwarnings("ignore")
def test_the_pages_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "trl.md").read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    for code in blocks:
        exec(compile(code, "trl.md", "exec"), names)
    history = names["trainer"].state.log_history
    assert [log["step"] for log in history if "reward" in log] == [1, 2]
    assert any("episode/turns" in log for log in history)
