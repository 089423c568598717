"""The history across runs: what was changed, what came of it, what was decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trajgym.errors import DataError
from trajgym.trainers.pipeline_history import as_table, read_history, remember
from trajgym.trainers.pipeline_state import differences


def results(run: str, right: float, **config: Any) -> dict[str, Any]:
    measures = {"accuracy": {"value": right, "low": right - 0.1, "high": right + 0.1}, "tool_use": {"value": None}}
    return {
        "run": run,
        "status": "done",
        "config": {"name": run, "output_dir": "runs", **config},
        "models": {"grpo": {"measures": measures}},
        "comparisons": [],
        "analysis": ["Arithmetic is the weakness."],
        "decision": {"next": "Train longer.", "because": []},
        "hashes": {"grpo weights": str(right)},
        "stages": {"grpo": {"seconds": 61.0}},
    }


def test_a_line_for_each_turn_of_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    remember(results("a", 0.4, sft={"epochs": 3}), path)
    remember(results("a", 0.4, sft={"epochs": 3}), path)
    remember(results("b", 0.6, sft={"epochs": 4}), path)
    first, second = read_history(path)
    assert (first["run"], first["changed"]) == ("a", [])
    assert second["changed"] == ["sft.epochs: 3 before, 4 now"]
    text = as_table([first, second])
    for words in ("1. a, ", "the first run", "grpo 40.0 % (30.0 … 50.0)", "sft.epochs: 3 before, 4 now", "2. b, "):
        assert words in text
    assert text.count("next:     Train longer.") == 2
    assert first["tool_use"] == {"grpo": None}


def test_what_a_crash_has_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    remember(results("a", 0.4), path)
    path.write_text(path.read_text() + '{"run": "b", ')
    assert [line["run"] for line in read_history(path)] == ["a"]


@pytest.mark.parametrize("cut", ['{"time": "2025", "run": "cut', "{", "\0\0\0"])
@pytest.mark.parametrize("earlier", [0, 1])
def test_a_line_that_was_cut_short_ruins_no_other(tmp_path: Path, cut: str, earlier: int) -> None:
    path = tmp_path / "history.jsonl"
    names = ["a"][:earlier]
    for name in names:
        remember(results(name, 0.4), path)
    for name in ("b", "c"):
        with path.open("a") as file:
            file.write(cut)
        remember(results(name, 0.6), path)
        names.append(name)
        assert [line["run"] for line in read_history(path)] == names
    remember(results("c", 0.6), path)
    assert len(read_history(path)) == len(names), "the last one is still known"


def test_a_line_that_lacks_only_its_end_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    remember(results("a", 0.4), path)
    path.write_text(path.read_text().rstrip("\n"))
    assert [line["run"] for line in read_history(path)] == ["a"]
    remember(results("b", 0.4), path)
    assert [line["run"] for line in read_history(path)] == ["a", "b"]
    assert path.read_text().count("\n") == 2


@pytest.mark.parametrize("text", ["[]\n", "no\n", "no", '{"run": "a"}\n', '{"run": "a"}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match="does not hold a history"):
        read_history(path)
    with pytest.raises(DataError, match="does not hold a history"):
        read_history(tmp_path / "none.jsonl")


def test_many_differences_are_counted() -> None:
    found = differences({str(i): i for i in range(9)}, {str(i): -i for i in range(9)})
    assert found[0] == "1: 1 before, -1 now"
    assert found[-1] == "and 4 more"
    assert differences({"a": "x" * 99}, {})[0].endswith("… before, null now")
