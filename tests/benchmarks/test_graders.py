from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
ROWS = [
    {"completion": "#### 72", "ground_truth": "72", "expected_correct": True},
    {"completion": "#### 70 or 72", "ground_truth": "72", "expected_correct": False},
    {"completion": "#### 72", "ground_truth": "seventy", "must_raise": True, "expected_correct": False},
]


@pytest.fixture
def graders(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("graders", FOLDER / "graders.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "graders", module)
    spec.loader.exec_module(module)
    return module


def written(tmp_path: Path, rows: list[dict[str, object]]) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_counts_each_kind_of_error(graders: ModuleType) -> None:
    rows = [{"expected_correct": expected} for expected in (True, True, False, False, True)]
    answers = [{"correct": True}, {"correct": False}, {"correct": True}, {"correct": False}, {"error": "ValueError: x"}]
    score = graders._score("somebody", rows, answers)
    assert (score.paid, score.refused, score.failed, score.wrong) == (1, 1, 1, 3)


def test_our_grader_on_a_file(graders: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert graders.main([written(tmp_path, ROWS), "--no-peers"]) == 0
    out = capsys.readouterr().out
    assert "2 tricky answers" in out  # the row without a readable truth is left out
    assert [word.strip() for word in next(line for line in out.splitlines() if "trajgym" in line).split("│")[2:5]] == [
        "0",
        "0",
        "0",
    ]


def test_a_wrong_grader_shows(
    graders: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graders, "correct", lambda completion, truth: truth in completion)
    assert graders.main([written(tmp_path, ROWS), "--no-peers"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "trajgym" in line)
    assert [word.strip() for word in row.split("│")[2:6]] == ["1", "50", "1", "0"]


@pytest.mark.parametrize("text", ["not json\n", '{"completion": "x"}\n'])
def test_a_bad_file_is_told(graders: ModuleType, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    assert graders.main([str(path), "--no-peers"]) == 2
    assert str(path) in capsys.readouterr().err


def test_the_driver_answers_line_by_line_and_survives_a_grader_that_raises(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import graders_driver as d;"
        "mine = lambda completion, truth: print('noise') or 1 / (completion != 'x') and truth == '1';"
        "d.GRADERS['mine'] = lambda: mine;"
        "d.main('mine')"
    )
    rows = [{"completion": "a", "truth": "1"}, {"completion": "x", "truth": "1"}, {"completion": "b", "truth": "2"}]
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="".join(json.dumps(row) + "\n" for row in rows),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[0] == {"correct": True}
    assert answers[1]["error"].startswith("ZeroDivisionError")
    assert answers[2] == {"correct": False}
