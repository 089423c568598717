"""``trajgym data``: what is wrong with a file, its exit status, and the files it makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trajgym import cli

QUESTION = "A crate holds 40 pens. Ann buys 9 crates and gives away 70 pens. How many pens are left?"
ANSWER = "She buys 40*9=<<40*9=360>>360 pens.\nThere are 360-70=<<360-70=290>>290 left.\n#### 290"
ROWS = [{"question": QUESTION, "answer": ANSWER}, {"question": "What is 1 + 1?", "answer": "2"}]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "rows.jsonl", ROWS)


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_good_data_pass(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "check", str(file)]) == 0
    out = capsys.readouterr().out
    assert f"{file}: 2 rows in the raw format" in out
    assert "fingerprint  sha256:" in out
    assert out.endswith("PASSED: 0 errors, 0 warnings.\n")


def test_errors_are_told_and_make_it_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = written(tmp_path / "bad.jsonl", [*ROWS, ROWS[0], {"question": "a?", "answer": "much"}])
    assert cli.main(["data", "check", str(bad), "--json", str(tmp_path / "found.json")]) == 1
    out = capsys.readouterr().out
    assert "ERROR (duplicate): row 3 has the same question and truth as another row (the first: row 1)." in out
    assert "ERROR (unreadable_truth): row 4 has a truth in 'answer' that cannot be read" in out
    assert out.endswith("FAILED: 2 errors, 0 warnings.\n")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["passed"] is False
    assert [f["kind"] for f in found["findings"]] == ["unreadable_truth", "duplicate"]
    assert cli.main(["data", "check", str(bad), "--any-truth", "--json", "-"]) == 1
    assert [f["kind"] for f in json.loads(capsys.readouterr().out)["findings"]] == ["duplicate"]


def test_leaks_and_long_rows(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = written(tmp_path / "other.jsonl", ROWS[:1])
    assert cli.main(["data", "check", str(other), "--against", f"{file}:train", "--max-tokens", "9", "--model", "tiny"])
    out = capsys.readouterr().out
    assert "ERROR (leak)" in out
    assert "Warning (too_long): row 1 has more than 9 tokens." in out
    assert "longest row" in out


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["check", "gsm9k"], "Did you mean 'gsm8k'?"),
        (["check", "nowhere.jsonl"], "cannot be read"),
        (["check", "FILE", "--max-tokens", "9"], "give --model too"),
        (["check", "FILE", "--near", "2"], "threshold must lie in"),
        (["make", "FILE", "--format", "rl", "--output", "nowhere/out.jsonl"], "cannot be written"),
        (["make", "FILE", "--format", "expert", "--env", "GSM8K-v0", "--output", "OUT"], "has no tools"),
    ],
)
def test_wrong_use(args: list[str], why: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = {"FILE": str(file), "OUT": str(tmp_path / "out.jsonl")}
    assert cli.main(["data", *(places.get(arg, arg) for arg in args)]) == 2
    assert why in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]


def test_every_format_can_be_made_and_checked(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {
        "raw": {"question", "answer"},
        "sft": {"prompt", "completion", "text"},
        "rl": {"prompt", "ground_truth", "question", "full_answer"},
        "renumbered": {"question", "answer"},
        "expert": {"messages"},
    }
    for kind, expected in columns.items():
        out = tmp_path / f"{kind}.jsonl"
        assert cli.main(["data", "make", str(file), "--format", kind, "--output", str(out)]) == 0
        rows = read(out)
        assert len(rows) == (2 if kind in ("raw", "sft", "rl") else 1)
        assert all(set(row) == expected for row in rows)
        assert cli.main(["data", "check", str(out), "--model", "tiny"]) == 0
    said = capsys.readouterr().out
    assert "1 of 2 problems renumbered (50.0%), 1 new rows; 1 refused: the solution has no annotations" in said
    assert "1 of 2 demonstrations kept; 1 dropped: no annotated calculation" in said


def test_registered_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "list"]) == 0
    assert "gsm8k" in capsys.readouterr().out.splitlines()
