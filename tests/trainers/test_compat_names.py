"""The document's names in ours, its batches as groups, its rewards, its splits, its monitors."""

from __future__ import annotations

import os
from typing import Any

import pytest

from trajgym.errors import ConfigError, DataError
from trajgym.rewards import get_rubric
from trajgym.trainers.compat_data import problems_of_rows, rows_to_imitate, split_rows
from trajgym.trainers.compat_monitor import monitors_of, wandb_project
from trajgym.trainers.compat_names import groups_of, in_our_names
from trajgym.trainers.compat_rewards import reward_of
from trajgym.trainers.data_sources import Loaded

ROWS = [{"question": f"{n} + 2?", "answer": f"It is {n + 2}. #### {n + 2}"} for n in range(6)]


@pytest.mark.parametrize(
    ("batch", "generations", "accumulation", "groups"),
    [(4, 8, None, 2), (4, 4, None, 4), (2, 8, None, 1), (8, 8, 1, 1)],
)
def test_groups(batch: int, generations: int, accumulation: int | None, groups: int) -> None:
    assert groups_of(batch, generations, accumulation) == groups
    assert groups * generations == batch * (4 if accumulation is None else accumulation)


@pytest.mark.parametrize("batch", range(1, 9))
def test_the_advice_of_the_error_helps(batch: int) -> None:
    for generations in range(2, 9):
        try:
            groups_of(batch, generations, 1)
        except ConfigError as error:
            first, second = str(error).split(", or batch_size to ")
            assert groups_of(int(second.rstrip(".")), generations, 1) >= 1
            for word in first.rpartition("num_generations to ")[2].split(" or "):
                assert groups_of(batch, int(word), 1) >= 1


@pytest.mark.parametrize("numbers", [(0, 8, 1), (4, True, 1), (4, 8, -1), (4.0, 8, 1)])
def test_numbers_that_are_none(numbers: tuple[Any, Any, Any]) -> None:
    with pytest.raises(ConfigError, match="whole number of at least 1"):
        groups_of(*numbers)


def test_own_names_win_over_nothing() -> None:
    assert in_our_names("grpo", {"clip_range": 0.1, "clip_range_high": 0.3}, "x")["clip_range_high"] == 0.3
    assert in_our_names("grpo", {"num_generations": 3}, "x") == {"num_generations": 3}
    with pytest.raises(ConfigError, match="epochs twice"):
        in_our_names("sft", {"epochs": 1, "num_epochs": 1}, "The file")


@pytest.mark.parametrize(
    ("kind", "options", "value"),
    [
        ("accuracy", {}, 1.0),
        ("accuracy", {"strict": True}, 1.0),
        ("length_penalty", {"target_length": 200, "penalty_weight": 0.001}, 0.7),
        ("length_penalty", {"max_length": 400}, 0.9),
        ("step", {"step_bonus": 0.1}, 1.3),
        ("combined", {"target_length": 400}, 1.2),
        ("combined", {"accuracy": 1.0, "length_penalty": 0.5, "step": 0.3, "target_length": 200}, 0.94),
        ("hybrid", {}, 1.0),
    ],
)
def test_rewards_pay_what_the_document_says(kind: str, options: dict[str, Any], value: float) -> None:
    text = "Step 1: 48 / 2 = 24\nStep 2: 48 + 24 = 72\nStep 3: So it is 72.\n#### 72".rjust(500)
    reward = get_rubric(reward_of(kind, options))
    assert reward([text, text.replace("#### 72", "#### 73")], answer=["72", "72"]) == pytest.approx([value, 0.0])


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("acuracy", {}, "Did you mean 'accuracy'"),
        ("step", {"step_bonsu": 1}, "Did you mean 'step_bonus'"),
        ("hybrid", {"weight": 1}, "option of the reward 'hybrid'"),
        ("length_penalty", {"target_length": -5}, "target_length"),
        ("combined", {"components": {"type": "step"}}, "components must be a list"),
        ("combined", {"components": [{"type": "stpe"}]}, "Did you mean 'step'"),
        ("combined", {"components": [{"type": ["step"]}]}, "Unknown type of reward component ['step']"),
        ("accuracy", {"strict": "no"}, "strict must be True or False, got 'no'"),
        ("combined", {"components": [{"type": "step"}, {"type": "step"}]}, "twice"),
    ],
)
def test_rewards_that_are_none(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        reward_of(kind, options)
    assert message in str(error.value)


@pytest.mark.parametrize(("split", "first", "count"), [("train", 0, 6), ("train[:2]", 0, 2), ("train[2:5]", 2, 3)])
def test_pieces_of_splits(split: str, first: int, count: int) -> None:
    assert split_rows(ROWS, split).rows == ROWS[first : first + count]


@pytest.mark.parametrize(
    ("split", "kind"),
    [
        ("test", ConfigError),
        ("train[9:]", DataError),
        ("train[1]", ConfigError),
        ("", ConfigError),
        ("train[:" + "9" * 5000 + "]", ConfigError),
        (5, ConfigError),
    ],
)
def test_splits_that_are_none(split: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        split_rows(ROWS, split)


def test_rows_in_every_format() -> None:
    rl = [
        {"prompt": "<|im_start|>…", "question": r["question"], "ground_truth": "2", "full_answer": r["answer"]}
        for r in ROWS
    ]
    assert rows_to_imitate(Loaded("x", rl[:2])) == (ROWS[:2], True)
    assert rows_to_imitate(Loaded("x", ROWS)) == (ROWS, True)
    sft = [{"prompt": "?", "completion": "!"}]
    assert rows_to_imitate(Loaded("x", sft)) == (sft, False)
    tasks = problems_of_rows(Loaded("mine", [{**row, "colour": "red"} for row in rl])).tasks
    assert (tasks[0].id, tasks[0].answer, tasks[0].metadata["colour"]) == ("mine/0", "2", "red")
    plain = problems_of_rows(Loaded("mine", [{"prompt": "48 + 24?", "ground_truth": "72"}])).tasks[0]
    assert (plain.question, plain.answer) == ("48 + 24?", "72")
    with pytest.raises(DataError, match="mine"):
        problems_of_rows(Loaded("mine", [{"prompt": "<|im_start|>?", "ground_truth": "72"}]))


def test_monitors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert monitors_of(use_tensorboard=False) == ()
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    with wandb_project(None):
        assert os.environ["WANDB_PROJECT"] == "mine"
    with wandb_project("theirs"):
        assert os.environ["WANDB_PROJECT"] == "theirs"
    assert os.environ["WANDB_PROJECT"] == "mine"
    monkeypatch.delenv("WANDB_PROJECT")
    with wandb_project("theirs"):
        pass
    assert "WANDB_PROJECT" not in os.environ
