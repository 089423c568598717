from __future__ import annotations

import builtins
import json
import os
import pickle
import re
import sys
import time
import types
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from trajgym.envs import gsm8k_tasks
from trajgym.envs.gsm8k_tasks import GSM8KTasks
from trajgym.errors import ConfigError, DataError, UnknownNameError

DATA = Path(os.environ.get("TRAJGYM_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data") / "gsm8k"
real = pytest.mark.skipif(not DATA.is_dir(), reason=f"no data in {DATA}")

PENS = {"question": "Tim has 3 boxes of 4 pens. How many pens?", "answer": "He has 3*4=<<3*4=12>>12 pens.\n#### 12"}


@pytest.fixture(autouse=True)
def _no_other_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAJGYM_DATA", raising=False)
    gsm8k_tasks._from_hub.cache_clear()


def _write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


# ---------------------------------------------------------------------------------------------- the real data


@real
@pytest.mark.parametrize(("split", "rows"), [("train", 7473), ("test", 1319)])
def test_all_rows_are_read_and_end_in_an_explicit_answer(split: str, rows: int) -> None:
    tasks = list(GSM8KTasks(split, path=DATA))
    assert len(tasks) == rows
    assert [task.id for task in tasks] == [f"gsm8k/{split}/{i}" for i in range(rows)]
    for task in tasks:
        assert re.fullmatch(r"-?\d+", task.answer)
        assert task.solution[-1].text == f"#### {task.answer}"
        assert not task.solution[-1].calls


@real
def test_the_known_facts_about_the_training_set() -> None:
    source = GSM8KTasks("train", path=DATA)
    counts = Counter(task.difficulty for task in source)
    assert counts == {0: 95, 1: 404, 2: 2175, 3: 2137, 4: 1424, 5: 785, 6: 287, 7: 123, 8: 40, 9: 3}
    both = [*source, *GSM8KTasks("test", path=DATA)]
    assert sum(int(task.answer) < 0 for task in both) == 5
    assert sum(int(task.answer) == 0 for task in both) == 1
    assert any("\u2028" in task.question for task in both)
    last_is_answer = 0
    for task in source:
        results = re.findall(r"<<[^<>]*=([^<>]*)>>", task.metadata["full_answer"])
        last_is_answer += bool(results) and Fraction(results[-1].replace(",", "")) == int(task.answer)
    assert last_is_answer == 7001


@real
def test_loading_waits_for_the_first_use_and_happens_once() -> None:
    gsm8k_tasks._from_file.cache_clear()
    source = GSM8KTasks("test", path=DATA)
    assert gsm8k_tasks._from_file.cache_info().currsize == 0
    first = source.get("gsm8k/test/3")
    assert GSM8KTasks("test", path=str(DATA / "test.jsonl"), limit=10).get("gsm8k/test/3") is first
    assert gsm8k_tasks._from_file.cache_info().misses == 1


# ---------------------------------------------------------------------------------------------- where data come from


def test_a_file_a_folder_and_the_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _write(tmp_path / "gsm8k" / "train.jsonl", PENS)
    other = _write(tmp_path / "mine.jsonl", {**PENS, "answer": "#### 5"})
    assert GSM8KTasks(path=file).get("gsm8k/train/0").answer == "12"
    assert GSM8KTasks(path=str(file.parent)).get("gsm8k/train/0").answer == "12"
    monkeypatch.setenv("TRAJGYM_DATA", str(tmp_path))
    assert GSM8KTasks().get("gsm8k/train/0").answer == "12"
    assert GSM8KTasks(path=other).get("gsm8k/train/0").answer == "5"  # the argument comes first


def test_a_relative_path_survives_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "train.jsonl", PENS)
    monkeypatch.chdir(tmp_path)
    source = GSM8KTasks(path=".")
    monkeypatch.chdir("/")
    assert len(source) == 1


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = _write(tmp_path / "train.jsonl", PENS)
    before = GSM8KTasks(path=file)
    assert len(before) == 1
    _write(file, PENS, PENS)
    assert len(GSM8KTasks(path=file)) == 2
    assert len(before) == 1  # a source in use does not change under its user


def test_limit_and_pickling(tmp_path: Path) -> None:
    file = _write(tmp_path / "train.jsonl", PENS, PENS, PENS)
    source = GSM8KTasks(path=file, limit=2)
    assert len(pickle.loads(pickle.dumps(source))) == 2
    assert len(GSM8KTasks(path=file, limit=99)) == 3
    with pytest.raises(UnknownNameError, match="gsm8k/train/1"):
        source.get("gsm8k/train/2")


def test_only_line_feeds_end_rows(tmp_path: Path) -> None:
    odd = {**PENS, "question": "A\u2028B\x85C\x0bD?"}
    file = _write(tmp_path / "train.jsonl", odd, PENS)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n") + b"\n \n")
    assert [task.question for task in GSM8KTasks(path=file)] == [odd["question"], PENS["question"]]


def _fake_hub(monkeypatch: pytest.MonkeyPatch, rows: Any) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def load_dataset(*args: Any, **kwargs: Any) -> Any:
        calls.append((*args, kwargs))
        if isinstance(rows, Exception):
            raise rows
        return rows

    hub = types.ModuleType("huggingface_hub")
    vars(hub).update(
        constants=types.SimpleNamespace(HF_HUB_OFFLINE=False),
        hf_hub_url=lambda *_, **__: "url",
        get_hf_file_metadata=lambda *_, **__: None,
    )
    datasets = types.ModuleType("datasets")
    vars(datasets)["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    return calls


def test_the_hub_is_asked_last_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _fake_hub(monkeypatch, [PENS, PENS])
    monkeypatch.setenv("TRAJGYM_DATA", str(tmp_path))  # holds no gsm8k folder
    assert GSM8KTasks("test").get("gsm8k/test/1").answer == "12"
    assert len(GSM8KTasks("test")) == 2
    assert calls == [("openai/gsm8k", "main", {"split": "test"})]


@pytest.mark.parametrize("error", [ConnectionError("no network"), ValueError("odd"), RuntimeError("scripts")])
def test_whatever_the_hub_raises_the_three_ways_are_named(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_hub(monkeypatch, error)
    source = GSM8KTasks("test")
    with pytest.raises(DataError, match=str(error)) as caught:
        len(source)
    for way in ("path=", "TRAJGYM_DATA", "gsm8k/test.jsonl", "openai/gsm8k", "ArithmeticTool-v0"):
        assert way in str(caught.value)
    assert caught.value.__cause__ is error


def test_a_bad_row_from_the_hub_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_hub(monkeypatch, [PENS, {"question": "?", "answer": "none"}])
    with pytest.raises(DataError, match=r"openai/gsm8k, row 1: 'answer'"):
        len(GSM8KTasks())


def test_an_unreachable_hub_fails_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.hf_hub_url", lambda *_, **__: "http://127.0.0.1:9/README.md")
    start = time.perf_counter()
    with pytest.raises(DataError, match="ArithmeticTool-v0"):
        len(GSM8KTasks())
    assert time.perf_counter() - start < 8  # with its retries, the library would take over 20 s


def test_without_the_libraries_the_three_ways_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("datasets", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError, match=r"trajgym\[train\]"):
        len(GSM8KTasks())


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"question": "?", "answer": ', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"question": "?", "answer": "#### 1", "n": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'"text"', "expected an object .* got str"),
        (b'["?", "#### 1"]', "got list"),
        (b'{"answer": "#### 1"}', "'question' must be a text"),
        (b'{"question": "?"}', "'answer' must be a text"),
        (b'{"question": " ", "answer": "#### 1"}', "'question' must be a text"),
        (b'{"question": null, "answer": "#### 1"}', "'question' must be a text"),
        (b'{"question": "?", "answer": 72}', "'answer' must be a text"),
        (b'{"question": "\\ud800?", "answer": "#### 1"}', "surrogate"),
        (b'{"question": "?", "answer": "The answer is 72"}', "'answer' must end in"),
        (b'{"question": "?", "answer": "####"}', "'answer' must end in"),
        (b'{"question": "?", "answer": "#### 7.5"}', "'answer' must end in"),
        (b'{"question": "?", "answer": "#### 72 clips"}', "'answer' must end in"),
        (b'{"question": "?", "answer": "#### \\u0667"}', "'answer' must end in"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(line: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_bytes(json.dumps(PENS).encode() + b"\n\n" + line + b"\n")
    source = GSM8KTasks(path=file)
    with pytest.raises(DataError, match=message) as caught:
        len(source)
    assert f"{file}, line 3" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"train\.jsonl holds no rows"):
        len(GSM8KTasks(path=file))


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_bytes(b"\x80\x81\n")
    with pytest.raises(DataError, match=r"train\.jsonl cannot be read"):
        len(GSM8KTasks(path=file))


def test_a_path_that_leads_nowhere_is_refused_at_once_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "gsm8k" / "train.jsonl", PENS)
    monkeypatch.setenv("TRAJGYM_DATA", str(tmp_path))
    for path in (tmp_path / "absent", tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(DataError, match=r"is not a file.*ArithmeticTool-v0"):
            GSM8KTasks(path=path)


def test_a_file_that_vanishes_before_its_first_use_is_named(tmp_path: Path) -> None:
    file = _write(tmp_path / "train.jsonl", PENS)
    source = GSM8KTasks(path=file)
    file.unlink()
    with pytest.raises(DataError, match=r"train\.jsonl cannot be read"):
        len(source)


def test_a_file_that_may_not_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = GSM8KTasks(path=_write(tmp_path / "train.jsonl", PENS))
    opened = Path.open

    def refuse(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name == "train.jsonl":
            raise PermissionError("not yours")
        return opened(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match="not yours"):
        len(source)


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "3"])
def test_bad_limits_are_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match="limit="):
        GSM8KTasks(limit=limit)


@pytest.mark.parametrize("split", ["Train", "validation", "", None, 3])
def test_bad_splits_are_refused(split: Any) -> None:
    with pytest.raises(UnknownNameError, match="'test', 'train'"):
        GSM8KTasks(split)


@pytest.mark.parametrize("path", [3, [], b"x"])
def test_bad_path_types_are_refused(path: Any) -> None:
    with pytest.raises(ConfigError, match="path="):
        GSM8KTasks(path=path)


def test_importing_pulls_in_neither_data_sets_nor_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    original = builtins.__import__

    def watch(name: str, *args: Any, **kwargs: Any) -> Any:
        imported.append(name.partition(".")[0])
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", watch)
    exec(compile(Path(gsm8k_tasks.__file__).read_text(encoding="utf-8"), "again", "exec"), {"__name__": "again"})
    assert not {"datasets", "huggingface_hub", "torch"} & set(imported)
    assert "json" in imported
