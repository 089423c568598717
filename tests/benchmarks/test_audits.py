"""The table of audits: its rows, and which failures it forgives."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from trajgym.rewards import REWARDS, Rubric, register_rubric

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def audits() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("audits")
    sys.modules.pop("audits", None)


def run(audits: ModuleType, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, list[list[str]], str]:
    status = audits.main([*args, "--tasks", "5"])
    *table, _, summary = capsys.readouterr().out.splitlines()
    return status, [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]], summary


def test_what_passes_and_what_is_unsafe(audits: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--env", "Arithmetic-v0", "--reward", "sparse", "partial_credit", "dense"]
    status, rows, summary = run(audits, capsys, *arguments)
    assert status == 0
    assert rows[0] == ["Arithmetic-v0", "sparse", "pass", "–", "–"]
    assert rows[1][2:] == [
        "**fail**, unsafe by definition: it pays near misses", "`almost` (as good as honest)", "`partial_credit`"
    ]  # fmt: skip
    assert rows[2] == ["Arithmetic-v0", "dense", "pass", "–", "–"]
    assert summary == "2 of 3 pass; 0 fail that should not."


def test_a_new_hole_is_not_forgiven(
    audits: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(REWARDS, "_items", dict(REWARDS))
    register_rubric(
        "longer", lambda: Rubric({"length": (lambda step, task, history: float(len(step.action.text)), 1.0)})
    )
    status, rows, summary = run(audits, capsys, "--env", "Arithmetic-v0", "--reward", "longer", "--seeds", "0,1")
    assert status == 1
    assert rows[0][2] == "**fail**"
    assert "`long` (as good as honest)" in rows[0][3]
    assert rows[0][4] == "`length`"
    assert summary == "0 of 1 pass; 1 fail that should not."


def test_what_cannot_be_played_says_why(audits: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    status, rows, _ = run(audits, capsys, "--env", "Nope-v0", "--reward", "sparse")
    assert status == 0
    assert rows[0][2] == "not played"
    assert rows[0][3].startswith("UnknownNameError: Unknown environment 'Nope-v0'")
