"""Which problems a call means: the same for loading, training and measuring, whatever names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trajgym.errors import ConfigError, DataError, UnknownNameError
from trajgym.trainers.compat import RLTrainingTool
from trajgym.trainers.compat_data import Data
from trajgym.trainers.compat_evaluate import _arena
from trajgym.trainers.compat_options import EvaluateCall, read_call
from trajgym.trainers.compat_trainers import GRPOTrainerWrapper, SFTTrainerWrapper
from trajgym.trainers.data_rows import fingerprint
from trajgym.trainers.models import load_model
from trajgym.trainers.sft import policy_of
from trajgym.trainers.sft_rows import find_samples

MADE_UP, LISTED = "ArithmeticTool-v0", "GSM8KTool-v0"


@pytest.fixture(autouse=True)
def gsm8k(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, str]]]:
    """Problems that count as GSM8K's, nine to train on and nine to test on."""
    rows = {
        split: [{"question": f"{split} {n}: {n} + 2?", "answer": f"<<{n}+2={n + 2}>>\n#### {n + 2}"} for n in range(9)]
        for split in ("train", "test")
    }
    (tmp_path / "gsm8k").mkdir()
    for split, lines in rows.items():
        (tmp_path / "gsm8k" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setenv("TRAJGYM_DATA", str(tmp_path))
    return rows


def meant(kind: str, **given: Any) -> list[str]:
    """Questions of the problems that GRPO would train on, SFT would imitate, or a model would be measured on."""
    given = {"model": "tiny", **given}
    if kind == "evaluate":
        del given["model"]
        return [task.question for task in _arena(read_call("evaluate", EvaluateCall, given)).tasks]
    if kind == "grpo":
        wrapper = GRPOTrainerWrapper(given)
        config, used, _, _ = wrapper._problems(wrapper.config)
        arguments = dict(config.env_kwargs)
        if "tasks" not in arguments:
            return [task.question for task in (wrapper.data.problems(arguments, used)[0] or ())]
        return [task.question for task in arguments["tasks"]]
    sft = SFTTrainerWrapper(given)
    options, samples, _, _ = sft._samples(sft.config)
    if samples is None:
        model, tokenizer = load_model("tiny")
        samples = list(find_samples(options, policy_of(options, model, tokenizer), tokenizer).train)
    return [str(s["prompt"]) if isinstance(s, dict) else s.task.question for s in samples]


@pytest.mark.parametrize("kind", ["sft", "grpo", "evaluate"])
@pytest.mark.parametrize("env", [MADE_UP, LISTED])
def test_gsm8k_is_gsm8k_in_every_environment(kind: str, env: str) -> None:
    split = "test" if kind == "evaluate" else "train"
    found = meant(kind, env=env, dataset="gsm8k", max_samples=3)
    assert len(found) == 3
    assert all(f"{split} {n}: {n} + 2?" in text for n, text in enumerate(found))


@pytest.mark.parametrize("kind", ["sft", "grpo", "evaluate"])
@pytest.mark.parametrize("env", [MADE_UP, LISTED])
def test_every_split_of_an_environments_own_problems_has_its_effect(kind: str, env: str) -> None:
    more = {"env": env, "dataset": "expert", "max_samples": 4}
    train, test = (meant(kind, **more, split=split) for split in ("train", "test"))
    assert len(train) == len(test) == 4
    assert not set(train) & set(test)
    assert meant(kind, **more) == (test if kind == "evaluate" else train)
    assert meant(kind, **more, env_kwargs={"split": "test"}) == test
    assert meant(kind, **more, split="train[:2]") == train[:2]
    assert meant(kind, **more, split="train[1:3]") == train[1:3]
    assert meant(kind, **more, split="train[2:]")[:2] == train[2:]
    with pytest.raises(UnknownNameError, match="Known: 'test', 'train'"):
        meant(kind, **more, split="bogus")
    with pytest.raises(DataError, match="no problems"):
        meant(kind, **more, split="train[3:3]")
    with pytest.raises(ConfigError, match="split is given twice"):
        meant(kind, **more, split="test", env_kwargs={"split": "test"})


def test_a_piece_without_end_of_problems_without_end() -> None:
    with pytest.raises(ConfigError, match=r"'train\[5:105\]', or give max_samples"):
        meant("grpo", env=MADE_UP, split="train[5:]", updates=1)


def test_held_out_rows_of_another_split_need_a_whole_data_set() -> None:
    more = {"eval_split": "test", "eval_samples": 1}
    for given in ({"dataset": "expert", "split": "train[:3]"}, {"split": "train[:3]"}, {"custom_dataset": [{"a": 1}]}):
        with pytest.raises(ConfigError, match="Leave it out: the last eval_samples"):
            meant("sft", **given, **more)
    assert len(meant("sft", dataset="expert", **more)) == 9
    assert len(meant("sft", env=MADE_UP, max_samples=2, **more)) == 2


@pytest.mark.parametrize("env", [MADE_UP, LISTED])
@pytest.mark.parametrize("dataset", ["gsm8k", "expert"])
@pytest.mark.parametrize("split", ["train", "test[2:8]"])
def test_what_is_loaded_is_what_is_trained_on(env: str, dataset: str, split: str) -> None:
    given = {"env": env, "dataset": dataset, "split": split, "max_samples": 4}
    loaded = RLTrainingTool().run({"action": "load_dataset", "format": "rl", "model_name": "tiny", **given})
    sft, grpo = SFTTrainerWrapper(given, model="tiny"), GRPOTrainerWrapper(given, model="tiny")
    _, _, available, hashed = sft._samples(sft.config)
    assert (hashed, available) == (loaded["fingerprint"], loaded["available"])
    assert grpo._problems(grpo.config)[1:] == (4, loaded["available"], loaded["fingerprint"])


def test_the_first_rows_are_loaded(gsm8k: dict[str, list[dict[str, str]]]) -> None:
    loaded = RLTrainingTool().run({"action": "load_dataset", "format": "raw", "max_samples": 3})
    assert loaded["fingerprint"] == fingerprint(gsm8k["train"][:3])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"q": "x"}] * 3, "no 'question'; the columns are q"),
        ([{"question": "2 + 2?", "answer": "4"}] * 3, "the same question and truth as another row"),
        ([{"question": "2 + 2?", "answer": "4"}, {"question": "2 + 2?", "answer": "5"}], "with another truth"),
        ([{"question": "2 + 2?", "answer": ""}], "nothing in 'answer'"),
    ],
)
@pytest.mark.parametrize("kind", ["raw", "sft", "rl"])
def test_what_is_wrong_with_rows_is_said_in_every_format(rows: list[dict[str, str]], message: str, kind: str) -> None:
    call = {"action": "load_dataset", "custom_dataset": rows, "format": kind, "model_name": "tiny"}
    with pytest.raises(DataError, match=message):
        RLTrainingTool().run(call)


def test_raw_rows_may_hold_what_only_a_reward_of_ones_own_reads() -> None:
    rows = [{"question": "Why?", "answer": "because", "hint": object()}]
    answer = RLTrainingTool().run({"action": "load_dataset", "custom_dataset": rows, "format": "raw"})
    assert (answer["dataset_size"], answer["fingerprint"]) == (1, None)


def test_demonstrations_are_no_rows_to_imitate() -> None:
    with pytest.raises(ConfigError, match="played when they are imitated"):
        RLTrainingTool().run({"action": "load_dataset", "env": MADE_UP})


def test_seed_decides_what_is_made_up() -> None:
    call = {"action": "load_dataset", "env": MADE_UP, "format": "raw", "max_samples": 3}
    one, same, other = (RLTrainingTool().run({**call, "seed": seed})["fingerprint"] for seed in (1, 1, 2))
    assert one == same != other


def test_rows_are_measured_on_as_they_are() -> None:
    rows = [{"question": "2 + 2?", "answer": "#### 4"}]
    data = Data.of(read_call("evaluate", EvaluateCall, {"custom_dataset": rows}), measured=True)
    assert (data.split, data.own, data.loaded(None)[1]) == ("train", False, 1)
