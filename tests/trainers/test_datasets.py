"""The three formats: the same prompt bytes in both of them and in the environment, no reasoning before the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trajgym.trainers
from trajgym.envs.make import make
from trajgym.errors import ConfigError, DataError, UnknownNameError
from trajgym.policies.render import Renderer
from trajgym.trainers.data import tokenized
from trajgym.trainers.data_prompts import Prompter, load_tokenizer
from trajgym.trainers.data_rows import fingerprint
from trajgym.trainers.datasets import (
    GSM8K_ROWS,
    GSM8KDataset,
    create_rl_dataset,
    create_sft_dataset,
    format_math_dataset,
    tasks_of,
)
from trajgym.types import Message

QUESTION = "Tim has 3 boxes of 4 pens. How many pens has he?"
ANSWER = "Tim has 3*4 = <<3*4=12>>12 pens.\n#### 12"
RAW = [{"question": QUESTION, "answer": ANSWER}, {"question": "How much is 700 + 300?", "answer": "1,000"}]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("tiny")


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> Renderer:
    return Renderer(tokenizer)


def test_sft_rows(tokenizer: Any) -> None:
    first, second = format_math_dataset(RAW, "sft", tokenizer=tokenizer).to_list()
    assert set(first) == {"prompt", "completion", "text"}
    assert first["completion"] == f"{ANSWER}<|im_end|>"
    assert second["completion"] == "1,000<|im_end|>"
    assert first["text"] == first["prompt"] + first["completion"]
    assert first["prompt"].endswith(f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n")


def test_rl_rows_say_nothing_of_the_way(tokenizer: Any) -> None:
    first, second = format_math_dataset(RAW, "rl", tokenizer=tokenizer).to_list()
    assert {**first, "prompt": ""} == {
        "prompt": "",
        "ground_truth": "12",
        "question": QUESTION,
        "full_answer": ANSWER,
    }
    assert second["ground_truth"] == "1000"
    assert "12" not in first["prompt"]
    assert "<<" not in first["prompt"]


@pytest.mark.parametrize("env_id", ["GSM8KTool-v0", "GSM8K-v0"])
def test_prompts_are_those_of_the_environment(env_id: str, tokenizer: Any, renderer: Renderer) -> None:
    sft = format_math_dataset(RAW, "sft", tokenizer=tokenizer, env=env_id)
    rl = format_math_dataset(RAW, "rl", tokenizer=tokenizer, env=env_id)
    env = make(env_id, tasks=tasks_of(RAW))
    for i, row in enumerate(tokenized(sft, renderer)):
        _, info = env.reset(options={"task": f"data/{i}"})
        seen = renderer.prompt(info["messages"])
        assert row["input_ids"][: len(seen)] == seen
        assert row["completion_mask"] == [0] * len(seen) + [1] * (len(row["input_ids"]) - len(seen))
        assert row["input_ids"][-1] == renderer.end_id
        assert sft[i]["prompt"] == rl[i]["prompt"] == tokenizer.decode(seen)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_tokenizer", "smollm2_tokenizer"])
def test_prompts_of_real_models_are_those_of_their_own_template(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(name)
    prompter = Prompter(tokenizer, env="GSM8KTool-v0")
    messages = [{"role": m.role, "content": m.content} for m in prompter.messages(QUESTION)]
    options = {"enable_thinking": False} if name == "qwen3_tokenizer" else {}
    own = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **options)
    for kind in ("sft", "rl"):
        assert format_math_dataset(RAW, kind, tokenizer=tokenizer)[0]["prompt"] == own
    rows = tokenized(format_math_dataset(RAW, "sft", tokenizer=tokenizer), prompter.renderer)
    assert tokenizer.decode(rows[0]["input_ids"]) == own + ANSWER + "<|im_end|>"


def test_calls_are_described_in_the_form_of_the_models_template(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Renderer, "protocol", property(lambda renderer: "llama3_json"))
    told = Prompter(tokenizer, env="GSM8KTool-v0").messages("?")[0].content
    assert told == make("GSM8KTool-v0", tasks=tasks_of(RAW), protocol="llama3_json").unwrapped.system  # type: ignore[attr-defined]
    named = Prompter(tokenizer, env="GSM8KTool-v0", env_kwargs={"protocol": "react"}).messages("?")[0].content
    assert named == make("GSM8KTool-v0", tasks=tasks_of(RAW), protocol="react").unwrapped.system  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"question": "a?"}], "row 1 has no 'answer'; the columns are question"),
        ([*RAW, {"question": " ", "answer": "1"}], "row 3 has nothing in 'question'"),
        ([*RAW, {"question": "a?", "answer": 3}], "row 3 has in 'answer' what is no text: 3"),
        ([*RAW, RAW[0]], r"row 3 has the same question and truth as another row \(the first: row 1\)"),
        ([*RAW, {**RAW[0], "answer": "13"}], "row 3 has the question of another row with another truth"),
        ([*RAW, {"question": "a?", "answer": "many"}], "row 3 has a truth in 'answer' that cannot be read"),
        ([{"question": "a <|im_end|> b?", "answer": "1"}], r"row 1: the question holds '<\|im_end\|>'"),
        ([{"question": "a?", "answer": "<|im_start|>\n#### 1"}], r"row 1: the solution holds '<\|im_start\|>'"),
        ([{"question": "a?", "answer": "\ud800 #### 1"}], "row 1 has in 'answer' what is no text"),
    ],
)
def test_rows_that_cannot_be_used_are_named(rows: Any, why: str, tokenizer: Any) -> None:
    with pytest.raises(DataError, match=why):
        format_math_dataset(rows, "sft", tokenizer=tokenizer)


def test_truths_of_other_kinds_are_for_rewards_of_ones_own(tokenizer: Any) -> None:
    rows = [{"question": "Red or blue?", "answer": "blue"}]
    assert format_math_dataset(rows, "rl", tokenizer=tokenizer, numeric=False)[0]["ground_truth"] == "blue"


def test_names_that_do_not_exist(tokenizer: Any) -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown format_type 'stf'\. Did you mean 'sft'"):
        format_math_dataset(RAW, "stf", tokenizer=tokenizer)
    with pytest.raises(UnknownNameError, match=r"Unknown data set 'gsm9k'\. Did you mean 'gsm8k'"):
        create_sft_dataset(dataset="gsm9k")
    with pytest.raises(UnknownNameError, match="Unknown format_type 'RL'"):
        GSM8KDataset(format_type="RL")
    with pytest.raises(UnknownNameError, match="Unknown split 'dev'"):
        GSM8KDataset("dev")
    with pytest.raises(ConfigError, match="Cannot load the tokenizer of model '/nowhere'"):
        format_math_dataset(RAW, "sft", "/nowhere")
    with pytest.raises(ConfigError, match="CartPole-v1 is no environment of trajgym's"):
        format_math_dataset(RAW, "sft", tokenizer=tokenizer, env="CartPole-v1")


def test_rows_as_tasks(tokenizer: Any) -> None:
    rl = format_math_dataset(RAW, "rl", tokenizer=tokenizer).to_list()
    for rows in (RAW, rl):
        first, second = tasks_of(rows, name="x")
        assert (first.id, first.question, first.answer, first.difficulty) == ("x/0", QUESTION, "12", 1)
        assert [c.arguments["expression"] for turn in first.solution for c in turn.calls] == ["3*4"]
        assert (second.answer, second.solution, second.difficulty) == ("1000", (), None)
        assert first.metadata["full_answer"] == ANSWER
    assert tasks_of([{**RAW[0], "topic": "pens"}])[0].metadata["topic"] == "pens"
    with pytest.raises(DataError, match="x, row 1: a task needs a question and an answer"):
        tasks_of([{"question": "a?"}], name="x")


def test_they_are_importable_from_the_package() -> None:
    for name in trajgym.trainers.__all__:
        assert callable(getattr(trajgym.trainers, name))
    with pytest.raises(AttributeError, match="no attribute 'GSM9KDataset'"):
        trajgym.trainers.GSM9KDataset  # noqa: B018


@pytest.mark.parametrize("split", ["train", "test"])
def test_gsm8k_has_as_many_rows_as_it_should(split: str, gsm8k_data: Path) -> None:
    data = GSM8KDataset(split, path=gsm8k_data / "gsm8k")
    assert len(data) == len(data.tasks()) == GSM8K_ROWS[split] == {"train": 7473, "test": 1319}[split]
    assert data.complete
    assert set(data[0]) == {"question", "answer"}


def test_gsm8k_in_three_formats(gsm8k_data: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAJGYM_DATA", str(gsm8k_data))
    few = {kind: GSM8KDataset("test", 20, kind, seed=3).load() for kind in ("raw", "sft", "rl")}
    assert [len(rows) for rows in few.values()] == [20, 20, 20]
    assert list(few["sft"]["prompt"]) == list(few["rl"]["prompt"])
    assert list(few["raw"]["question"]) == list(few["rl"]["question"])
    assert not GSM8KDataset("test", 20).complete
    same = create_sft_dataset(20, "test", seed=3, tokenizer=tokenizer), create_rl_dataset(20, "test", seed=3)
    assert [fingerprint(made.to_list()) for made in same] == [fingerprint(few[k].to_list()) for k in ("sft", "rl")]
    data = GSM8KDataset("test", 20, seed=3)
    assert data.fingerprint == fingerprint(data.rows) != GSM8KDataset("test", 20, seed=4).fingerprint


def test_the_prompt_of_a_question_with_a_control_token_stays_exact_in_messages(renderer: Renderer) -> None:
    row = {"messages": [{"role": "user", "content": "a <|im_end|> b"}, {"role": "assistant", "content": "1"}]}
    (made,) = tokenized([row], renderer)
    seen = renderer.prompt([Message("user", "a <|im_end|> b")])
    assert made["input_ids"][: len(seen)] == seen
