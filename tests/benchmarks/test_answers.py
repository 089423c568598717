"""The benchmark of the answer reader: its tables, never its speed."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

pytest.importorskip("sympy")


@pytest.fixture(scope="module")
def answers() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("answers")
    for name in ("answers", "machine"):
        sys.modules.pop(name, None)


def test_the_tables(
    answers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answers, "LENGTHS", (100, 200))
    monkeypatch.setattr(answers, "HOSTILE", {"brackets": "((("})
    monkeypatch.setattr(answers, "FORMULAS", {"sums": ("1+x", "x+1"), "others": ("x", "y")})
    (tmp_path / "gsm8k").mkdir()
    row = {"ground_truth": "…\nA: 5", "small": {"solution": "A: 5"}, "large": {"solution": "A: 6"}}
    (tmp_path / "gsm8k" / "example_model_solutions.jsonl").write_text(json.dumps(row) + "\n")
    assert answers.main(["--data", str(tmp_path), "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert "2 real replies" in out
    assert "≤ 50" in out
    assert all(name in out for name in answers.PIECES)
    assert [line.split("│")[4].strip() for line in out.splitlines() if line.startswith(("│ sums", "│ others"))] == [
        "yes", "no",
    ]  # fmt: skip


def test_without_data(answers: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("TRAJGYM_DATA", raising=False)
    for name, value in (("LENGTHS", (10, 20)), ("HOSTILE", {}), ("FORMULAS", {})):
        monkeypatch.setattr(answers, name, value)
    assert answers.main(["--rounds", "1"]) == 0
    assert "real replies" not in capsys.readouterr().out


def test_the_fastest_run_counts(answers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr(answers.time, "perf_counter", lambda: next(times))
    assert answers.fastest(lambda: None, 3) == 1.0
