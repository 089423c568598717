"""Data sets by name, file and object, and the rewards that belong to them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from trajgym.errors import ConfigError, DataError, UnknownNameError
from trajgym.rewards.catalogue import REWARDS, register_reward_function
from trajgym.trainers.data_sources import DATASETS, load_rows, paired_reward, register_dataset

ROWS = [{"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "4"}]


@pytest.fixture(autouse=True)
def _names_go_away_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATASETS, "_items", dict(DATASETS._items))
    monkeypatch.setattr(REWARDS, "_items", dict(REWARDS._items))


def written(path: Path, rows: Any = ROWS) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n" if path.suffix == ".jsonl" else json.dumps(rows))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_files(suffix: str, tmp_path: Path) -> None:
    path = written(tmp_path / f"rows{suffix}")
    for source in (path, str(path)):
        loaded = load_rows(source)
        assert list(loaded.rows) == ROWS
        assert loaded.place(1) == f"{path}, row 2"


def test_a_folder_holds_splits(tmp_path: Path) -> None:
    written(tmp_path / "test.jsonl", ROWS[:1])
    assert list(load_rows(tmp_path, split="test").rows) == ROWS[:1]
    with pytest.raises(DataError, match=r"train\.jsonl cannot be read"):
        load_rows(str(tmp_path))


def test_objects(tmp_path: Path) -> None:
    import datasets

    for source in (ROWS, iter(ROWS), tuple(ROWS), datasets.Dataset.from_list(ROWS), lambda split: ROWS):
        assert list(load_rows(source).rows) == ROWS
    splits: Any = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})
    assert list(load_rows(splits).rows) == ROWS
    with pytest.raises(UnknownNameError, match=r"Unknown split of the data set 'tset'.*Known: 'train'"):
        load_rows(splits, split="tset")
    with pytest.raises(UnknownNameError, match="no other parts"):
        load_rows(ROWS, split="test")


def test_a_registered_name_beats_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert register_dataset("mine", ROWS) is ROWS
    assert load_rows("mine").place(0) == "mine, row 1"
    with pytest.raises(
        UnknownNameError, match=r"Unknown data set 'mien'\. Did you mean 'mine'\? Known: 'gsm8k', 'mine'"
    ):
        load_rows("mien")
    with pytest.raises(ConfigError, match="exists already"):
        register_dataset("mine", list(ROWS))
    register_dataset("mine", iter(ROWS[:1]), replace=True)
    assert [list(load_rows("mine").rows) for _ in range(2)] == [ROWS[:1]] * 2  # an iterator is read once, not for each


@pytest.mark.parametrize(
    ("dataset", "error", "why"),
    [
        ([], DataError, "holds no rows"),
        ([3], DataError, "row 1: expected a mapping"),
        (3, ConfigError, "must be a name, a file, rows"),
        (b"rows", ConfigError, "must be a name, a file, rows"),
    ],
)
def test_no_data_set(dataset: Any, error: type[Exception], why: str) -> None:
    for use in (load_rows, lambda d: register_dataset("x", d)):
        with pytest.raises(error, match=why):
            use(dataset)
    assert "x" not in DATASETS


@pytest.mark.parametrize("name", ["", "  ", "a.jsonl", "a/b", 3])
def test_names_that_look_like_files_are_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="name must be a text"):
        register_dataset(name, ROWS)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("rows.jsonl", b'{"a": 1}\n{"a": \n', "line 2: not JSON"),
        ("rows.jsonl", b"\xff\xfe", "cannot be read"),
        ("rows.jsonl", b"[1]\n", "row 1: expected a mapping"),
        ("rows.jsonl", b"\n", "holds no rows"),
        ("rows.json", b"{}", "expected one array"),
        ("rows.csv", b"a,b", r"must end in \.jsonl or \.json"),
    ],
)
def test_files_that_cannot_be_used(name: str, content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=why):
        load_rows(tmp_path / name)


def test_gsm8k_is_registered(gsm8k_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAJGYM_DATA", str(gsm8k_data))
    loaded = load_rows("gsm8k", split="test")
    assert (loaded.name, len(loaded.rows), set(loaded.rows[0])) == ("gsm8k/test", 1319, {"question", "answer"})


def test_a_reward_of_the_same_name_belongs_to_the_data() -> None:
    register_dataset("riddles", ROWS)
    register_reward_function("riddles", lambda completions, **columns: [0.0] * len(completions))
    assert paired_reward("riddles") == "riddles"
    assert paired_reward("riddles", "sparse") == "sparse"
    assert paired_reward("gsm8k") is None


def test_names_that_do_not_match_are_said() -> None:
    register_dataset("riddles", ROWS)
    register_dataset("others", ROWS)
    register_reward_function("riddle", lambda completions, **columns: [0.0] * len(completions))
    register_reward_function("others", lambda completions, **columns: [0.0] * len(completions))
    with pytest.warns(UserWarning, match="name 'riddles', so .* Did you mean 'riddle'"):
        assert paired_reward("riddles") is None
    with pytest.warns(UserWarning, match="was registered for the data set 'others', but is to pay 'riddles'"):
        assert paired_reward("riddles", "others") == "others"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert paired_reward("riddles", "riddle") == "riddle"
    with pytest.raises(UnknownNameError, match=r"Unknown data set 'riddle'\. Did you mean 'riddles'"):
        paired_reward("riddle")
    with pytest.raises(UnknownNameError, match=r"Unknown reward 'spares'\. Did you mean 'sparse'"):
        paired_reward("riddles", "spares")
