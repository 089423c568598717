"""Trajectories on disk: exact for us, and plain columns for everybody else."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.errors import DataError
from trajgym.evaluation.records import read_trajectories, to_parquet, trajectory_row, write_jsonl
from trajgym.types import (
    Action,
    CallError,
    ExpertTurn,
    Message,
    Observation,
    Step,
    StopReason,
    Task,
    TokenStream,
    ToolCall,
    ToolResult,
    Trajectory,
)

words = st.text(st.characters(exclude_categories=()), max_size=6)  # half surrogates too
values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words
calls = st.builds(ToolCall, words, st.dictionaries(words, values | st.lists(values, max_size=2), max_size=2), words)
messages = st.lists(st.builds(Message, words, words, st.none() | words), max_size=2).map(tuple)
solutions = st.lists(st.builds(ExpertTurn, words, st.lists(calls, max_size=1).map(tuple)), max_size=1).map(tuple)
tasks = st.builds(Task, words, words, words, solutions, st.none() | st.integers(0, 9))
steps = st.builds(
    Step,
    st.builds(
        Action, words, st.just((5, 2)), st.just((-0.25, -1e-9)), st.lists(calls, max_size=2).map(tuple),
        st.sampled_from(["stop", "turn_tokens"]),
    ),
    st.builds(Observation, messages),
    st.floats(-1, 1),
    st.dictionaries(words, st.floats(-1, 1), max_size=2),
    st.lists(st.builds(ToolResult, calls, words, st.none() | words), max_size=1).map(tuple),
    st.none() | st.builds(CallError, words, words),
    stop_reason=st.none() | st.sampled_from(StopReason),
)  # fmt: skip
rows = st.just((TokenStream((1, 2), (0, 1), (-1, 0), (0.0, -0.5)),))
trajectories = st.builds(
    Trajectory, tasks, messages, st.lists(steps, max_size=2).map(tuple), rows, st.integers(0, 2**63), st.none() | words
)

SUM = Task("sum", "48 + 24?", "72", difficulty=2)
EXAMPLE = Trajectory(
    SUM,
    (Message("user", "48 + 24?"),),
    (
        Step(
            Action("call", calls=(ToolCall("calculator", {"expression": "48+24"}), ToolCall("x"))),
            Observation((Message("tool", "72", name="calculator"),)),
            0.125,
            {"tool_success": 0.125, "accuracy": 0.0},
        ),
        Step(
            Action("\ud83d #### 72"),
            Observation(),
            1.5,
            {"tool_success": 0.5, "accuracy": 1.0},
            stop_reason=StopReason.ANSWERED,
        ),
    ),
)
CUT = Trajectory(
    SUM,
    (Message("user", "48 + 24?"),),
    (Step(Action("call", finish="turn_tokens"), Observation(), truncated=True, stop_reason=StopReason.TURN_TOKENS),),
)
FAULTY = Trajectory(Task("lost", "?", "1"), (), (), fault="OSError: no disk")


@settings(max_examples=40, deadline=None)  # the first example imports pyarrow
@given(st.lists(trajectories, min_size=1, max_size=3))
def test_what_is_written_is_read_back_exactly(found: list[Trajectory]) -> None:
    with tempfile.TemporaryDirectory() as name:
        lines, parquet = Path(name) / "a.jsonl", Path(name) / "b.parquet"
        write_jsonl(lines, [trajectory_row(t, {"update": 3}) for t in found])
        assert read_trajectories(lines) == found
        assert to_parquet([lines, lines], parquet) == 2 * len(found)
        assert read_trajectories(parquet) == [*found, *found]


def test_the_columns_of_a_row() -> None:
    row = trajectory_row(EXAMPLE, {"update": 3})
    assert json.loads(row.pop("trajectory"))["task"]["answer"] == "72"
    assert row == {
        "update": 3,
        "task_id": "sum",
        "difficulty": 2,
        "answer": "72",
        "messages": [
            {"role": "user", "content": "48 + 24?"},
            {"role": "assistant", "content": "call"},
            {"role": "tool", "content": "72"},
            {"role": "assistant", "content": "\\ud83d #### 72"},
        ],
        "rewards": [0.125, 1.5],
        "total_reward": 1.625,
        "reward_terms": '{"tool_success": 0.625, "accuracy": 1.0}',
        "stop_reason": "answered",
        "turns": 2,
        "calls": 2,
        "fault": "",
    }
    lost = trajectory_row(FAULTY)
    assert (lost["difficulty"], lost["stop_reason"], lost["fault"], lost["turns"]) == (
        -1,
        "fault",
        "OSError: no disk",
        0,
    )
    assert (lost["messages"], lost["rewards"]) == ([{"role": "fault", "content": "OSError: no disk"}], [0.0])


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_it_loads_with_datasets(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import load_dataset
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    files = [tmp_path / "update-1.jsonl", tmp_path / "update-2.jsonl"]
    # Neither a file of nothing but failed resets nor one without a single reward term must spoil the types.
    files.insert(0, tmp_path / "update-0.jsonl")
    write_jsonl(files[0], [trajectory_row(FAULTY)])
    write_jsonl(files[1], [trajectory_row(CUT)])
    write_jsonl(files[2], [trajectory_row(EXAMPLE)])
    if kind == "parquet":
        to_parquet(files, tmp_path / "all.parquet")
        files = [tmp_path / "all.parquet"]
    data: Any = load_dataset(kind, data_files=[str(f) for f in files], split="train", cache_dir=str(tmp_path / "cache"))
    assert data["task_id"][:] == ["lost", "sum", "sum"]
    assert data[2]["messages"][3] == {"role": "assistant", "content": "\\ud83d #### 72"}
    assert [json.loads(terms) for terms in data["reward_terms"]] == [{}, {}, {"tool_success": 0.625, "accuracy": 1.0}]
    assert data["rewards"][:] == [[0.0], [0.0], [0.125, 1.5]]


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path, [{"trajectory": "old"}])

    def rows() -> Any:
        yield {"trajectory": "new"}
        raise OSError("no space left")

    with pytest.raises(OSError, match="space"):
        write_jsonl(path, rows())
    assert path.read_text() == '{"trajectory": "old"}\n'


def test_no_rows_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    assert to_parquet([tmp_path / "a.jsonl"], tmp_path / "all.parquet") == 0
    assert to_parquet([], tmp_path / "all.parquet") == 0
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]
    assert read_trajectories(tmp_path / "a.jsonl") == []


def wrapped(value: Any) -> str:
    return json.dumps({"trajectory": json.dumps(value)})


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "3", "{}", '{"trajectory": 3}', '{"trajectory": "{"}', '{"trajectory": "{}"}', "\x00", wrapped([]),
     wrapped({"task": None, "prompt": [], "steps": [], "colour": 1}), wrapped({"task": {}, "prompt": [], "steps": []}),
     wrapped({"task": "x", "prompt": 3, "steps": []})],
)  # fmt: skip
def test_other_files_are_refused_by_name(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=r"a\.jsonl does not hold trajectories"):
        read_trajectories(path)


def test_other_parquet_files_too(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    (tmp_path / "broken.parquet").write_text("nothing")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\n")
    for name in ("other.parquet", "broken.parquet", "missing.parquet", "missing.jsonl", "bytes.jsonl"):
        with pytest.raises(DataError, match=name):
            read_trajectories(tmp_path / name)
