"""The load test of the server, with few clients."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]

for package in ("fastapi", "uvicorn", "prometheus_client", "httpx2"):
    pytest.importorskip(package)


@pytest.fixture(scope="module")
def serving() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("serving")
    for name in ("serving", "machine"):
        sys.modules.pop(name, None)


def test_prompts_differ(serving: ModuleType) -> None:
    assert len(set(serving.prompts(40))) == 40


def test_the_bare_loop_counts_its_tokens(serving: ModuleType) -> None:
    found = serving.bare_loop("tiny", serving.prompts(2), 3)
    assert 2 <= found["tokens"] <= 6
    assert found["wall"] > 0


@pytest.mark.slow
def test_nothing_is_lost(serving: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert serving.main(["--clients", "24", "--requests", "1", "--tokens", "16", "--slots", "2"]) == 0
    said = capsys.readouterr().out
    long, short = (line.split("|")[2:5] for line in said.splitlines() if line.startswith("| server"))
    assert [cell.strip() for cell in long] == ["24", "0", "0"]
    assert [cell.strip() for cell in short[:2]] == ["24", "0"]
    assert int(short[2]) > 0  # 2 slots and 8 places are not enough for 24 at once
    assert "the same on both servers: 24 of 24" in said
