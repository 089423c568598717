"""Rows of supervised training: where they come from, what is left out and why, and that nothing held out is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trajgym  # noqa: F401  # registers the environments
from trajgym.errors import ConfigError, DataError, UnknownNameError
from trajgym.policies.render import Renderer
from trajgym.trainers.data_sources import register_dataset
from trajgym.trainers.models import load_model
from trajgym.trainers.sft import policy_of
from trajgym.trainers.sft_config import load_sft_config
from trajgym.trainers.sft_rows import Rows, find_samples, make_rows, split_samples

TALK = [{"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{i}!"}]}
        for i in range(6)]  # fmt: skip


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, Any]:
    return load_model("tiny")


def rows_of(tiny: tuple[Any, Any], **options: Any) -> Rows:
    model, tokenizer = tiny
    config = load_sft_config(options)
    policy = policy_of(config, model, tokenizer)
    return make_rows(config, policy.renderer, find_samples(config, policy, tokenizer))


def trained(tokenizer: Any, row: dict[str, list[int]]) -> str:
    chosen = [i for i, m in zip(row["input_ids"], row["completion_mask"], strict=True) if m]
    return str(tokenizer.decode(chosen))


def test_demonstrations_of_an_environment(tiny: tuple[Any, Any]) -> None:
    _, tokenizer = tiny
    rows = rows_of(tiny, max_samples=6, eval_samples=2, env_kwargs={"split": "train", "difficulty": [2, 2]})
    assert (len(rows.train), len(rows.held_out), rows.used, rows.available) == (6, 2, 6, None)
    for row in rows.train:
        assert len(row["input_ids"]) == len(row["completion_mask"])
        said = trained(tokenizer, row)
        assert said.count("<tool_call>") == 2  # as many as the task is long
        assert said.count("<|im_end|>") == 3
        assert said.split("<|im_end|>")[-2].startswith("####")
        assert said.endswith("<|im_end|>")
        assert "system" not in said
    texts = {tuple(row["input_ids"]) for row in [*rows.train, *rows.held_out]}
    assert len(texts) == 8


def test_tasks_are_drawn_once_each(tiny: tuple[Any, Any]) -> None:
    few = {"difficulty": [1, 1], "split": "train"}
    rows = rows_of(tiny, max_samples=80, eval_samples=20, env_kwargs=few)
    assert len({tuple(row["input_ids"]) for row in [*rows.train, *rows.held_out]}) == 100


def test_finite_tasks_in_their_order(tiny: tuple[Any, Any], gsm8k_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAJGYM_DATA", str(gsm8k_data))
    _, tokenizer = tiny
    options = {"env": "GSM8KTool-v0", "env_kwargs": {"tools": ["calculator"]}, "max_samples": 4, "eval_samples": 1}
    rows = rows_of(tiny, **options)
    assert rows.available == 7473
    assert len(rows.held_out) == 1
    assert "48/2" in trained(tokenizer, rows.train[0]).replace(" ", "")  # the very first problem
    more = rows_of(tiny, **{**options, "max_samples": 5})
    assert more.train[:4] == rows.train


def test_held_out_rows_of_another_split(
    tiny: tuple[Any, Any], gsm8k_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAJGYM_DATA", str(gsm8k_data))
    options = {"env": "GSM8KTool-v0", "max_samples": 3, "eval_samples": 2}
    for dataset in ("gsm8k", "expert"):
        behind = rows_of(tiny, dataset=dataset, **options)
        apart = rows_of(tiny, dataset=dataset, eval_split="test", **options)
        assert apart.train == behind.train
        assert len(apart.held_out) == 2
        assert apart.held_out != behind.held_out


def test_worked_solutions_in_one_turn(tiny: tuple[Any, Any], gsm8k_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAJGYM_DATA", str(gsm8k_data))
    _, tokenizer = tiny
    (row,) = rows_of(tiny, dataset="gsm8k", env="GSM8KTool-v0", max_samples=1).train
    said = trained(tokenizer, row)
    assert said.endswith("#### 72<|im_end|>")
    assert row["completion_mask"] == sorted(row["completion_mask"])  # one block, at the end


def test_files(tiny: tuple[Any, Any], tmp_path: Path) -> None:
    _, tokenizer = tiny
    file = tmp_path / "talk.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in TALK))
    rows = rows_of(tiny, dataset=str(file), max_samples=3, eval_samples=2)
    assert [trained(tokenizer, row) for row in rows.train] == [f"{i}!<|im_end|>" for i in range(3)]
    assert [trained(tokenizer, row) for row in rows.held_out] == [f"{i}!<|im_end|>" for i in (3, 4)]
    assert rows.available == 6
    everything = rows_of(tiny, dataset=str(file), eval_samples=1)
    assert (len(everything.train), len(everything.held_out)) == (5, 1)
    problems = tmp_path / "problems.jsonl"
    problems.write_text(json.dumps({"question": "2 + 2?", "answer": "It is four. #### 4"}) + "\n")
    (row,) = rows_of(tiny, dataset=str(problems)).train
    assert trained(tokenizer, row).endswith("#### 4<|im_end|>")


TEXTS = {"prompt": "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n", "completion": "4<|im_end|>"}
SILENT = {"messages": [{"role": "user", "content": "9?"}, {"role": "assistant", "content": ""}]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*TALK, TALK[0], TALK[0]], r"2 rows \(7, 8\) have the same question and answer as another row"),
        ([*TALK, SILENT], "row 7 has an empty message"),
        ([TEXTS, TEXTS], "row 2 has the same question and answer as another row"),
        ([{**TEXTS, "completion": " "}], "row 1 has nothing in 'completion'"),
    ],
)
def test_dialogues_are_held_to_what_problems_are(
    rows: list[dict[str, Any]], message: str, tiny: tuple[Any, Any], tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=rf"rows\.jsonl: {message}"):
        rows_of(tiny, dataset=str(file))
    with pytest.raises(DataError, match=f"The samples: {message}"):
        split_samples(load_sft_config({}), rows)


def test_several_answers_to_one_question_can_be_imitated(tiny: tuple[Any, Any]) -> None:
    call = {"function": {"name": "calculator", "arguments": {"expression": "9+9"}}}
    calling = {**SILENT["messages"][1], "tool_calls": [call]}
    several = [{"messages": [SILENT["messages"][0], {"role": "assistant", "content": text}]} for text in "ab"]
    rows: list[dict[str, Any]] = [*several, {"messages": [SILENT["messages"][0], calling]}]
    config = load_sft_config({})
    assert len(make_rows(config, Renderer(tiny[1]), split_samples(config, rows)).train) == 3


def test_registered_data(tiny: tuple[Any, Any]) -> None:
    register_dataset("sft-test-talk", TALK, replace=True)
    assert len(rows_of(tiny, dataset="sft-test-talk").train) == 6


def test_rows_that_do_not_fit_are_left_out_whole(tiny: tuple[Any, Any]) -> None:
    _, tokenizer = tiny
    long = {"messages": [{"role": "user", "content": "?" * 200}, {"role": "assistant", "content": "! " * 40}]}
    config = load_sft_config({"max_length": 32})
    renderer = Renderer(tokenizer)
    rows = make_rows(config, renderer, split_samples(config, [TALK[0], long, TALK[1]]))
    assert [trained(tokenizer, row) for row in rows.train] == ["0!<|im_end|>", "1!<|im_end|>"]
    assert rows.dropped == {"rows longer than max_length (32)": 1}
    with pytest.raises(DataError, match=r"No row fits max_length \(32 tokens\); the shortest has \d+"):
        make_rows(config, renderer, split_samples(config, [long]))


def test_what_is_trained_on_is_not_held_out(tiny: tuple[Any, Any]) -> None:
    config = load_sft_config({"eval_samples": 2})
    rows = make_rows(config, Renderer(tiny[1]), split_samples(config, [*TALK[:3], TALK[0], TALK[4]]))
    assert len(rows.held_out) == 1
    assert rows.dropped == {"held-out rows that are trained on too": 1}


def test_the_record_tells_rows_apart(tiny: tuple[Any, Any]) -> None:
    config = load_sft_config({})
    records = [make_rows(config, Renderer(tiny[1]), split_samples(config, rows)).record for rows in (TALK, TALK[::-1])]
    assert records[0]["fingerprint"] != records[1]["fingerprint"]
    assert records[0]["tokens"] == records[1]["tokens"]
    assert records[0]["trained_tokens"] == 6 * 3


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ConfigError, "max_samples must be given"),
        ({"dataset": "gsm8"}, UnknownNameError, "Did you mean 'gsm8k'"),
        ({"dataset": "nowhere.jsonl"}, DataError, "nowhere.jsonl"),
        ({"env": "ArithmetikTool-v0", "max_samples": 1}, UnknownNameError, "Did you mean 'ArithmeticTool-v0'"),
        ({"env_kwargs": {"dificulty": 1}, "max_samples": 1}, ConfigError, "dificulty"),
        ({"env_kwargs": {"protocol": "nothing"}, "max_samples": 1}, ConfigError, "nothing"),
    ],
)
def test_what_cannot_be_read(
    tiny: tuple[Any, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        rows_of(tiny, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows|holds no|empty"),
        ("{", "line 1|JSON"),
        ('{"text": "hello"}', "completion"),
        ('{"messages": [{"role": "user", "content": "?"}]}', "Row 0|row 1"),
        ('{"messages": "hello"}', "messages"),
    ],
)
def test_files_that_are_none(tiny: tuple[Any, Any], tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text + "\n")
    with pytest.raises(DataError, match=message):
        rows_of(tiny, dataset=str(file))


def test_nothing_left_to_train_on() -> None:
    with pytest.raises(DataError, match="nothing is left to train on"):
        split_samples(load_sft_config({"eval_samples": 6}), TALK)
