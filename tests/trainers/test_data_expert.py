"""Demonstrations through the environment: what is kept earns accuracy 1, and what is not says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trajgym.errors import ConfigError, DataError
from trajgym.evaluation.evaluate import succeeded
from trajgym.policies.render import Renderer
from trajgym.trainers.data import demonstration, tokenized
from trajgym.trainers.data_expert import expert_set, messages_of
from trajgym.trainers.data_prompts import load_tokenizer
from trajgym.trainers.datasets import GSM8KDataset, tasks_of
from trajgym.types import Trajectory

GOOD = "Tim has 3*4 = <<3*4=12>>12 pens. Half is 12/2 = <<12/2=6>>6.\n#### 6"
ROWS = [
    {"question": "good", "answer": GOOD},
    {"question": "no calls", "answer": "It is 6.\n#### 6"},
    {"question": "a call that fails", "answer": "<<1/0=6>>6\n#### 6"},
    {"question": "from nowhere", "answer": "<<1+1=2>>2\n#### 600"},
    {"question": "rounded", "answer": "<<20/3=7>>7\n#### 7"},
]


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(load_tokenizer("tiny"))


def test_what_is_dropped_says_why() -> None:
    found = expert_set(tasks_of(ROWS, name="x"))
    assert [t.task.question for t in found.trajectories] == ["good", "rounded"]
    assert found.dropped == {
        "no annotated calculation": ("x/1",),
        "a call fails": ("x/2",),
        "the answer is no result of a call": ("x/3",),
    }
    assert found.summary.startswith("2 of 5 demonstrations kept; 1 dropped: ")
    assert len(expert_set(tasks_of(ROWS), founded=False).trajectories) == 3


def test_every_turn_of_the_assistant_is_trained_with_its_end(renderer: Renderer) -> None:
    (trajectory,) = expert_set(tasks_of(ROWS[:1])).trajectories
    played, stored = tokenized([trajectory, {"messages": messages_of(trajectory)}], renderer)
    assert played == stored
    assert sum(step.reward_terms["accuracy"] for step in trajectory.steps) == 1.0
    assert [m["role"] for m in messages_of(trajectory)] == [
        *("system", "user"),
        *("assistant", "tool") * 2,
        "assistant",
    ]
    trained = [i for i, m in zip(played["input_ids"], played["completion_mask"], strict=True) if m]
    assert trained.count(renderer.end_id) == 3
    assert tuple(played["input_ids"]) == demonstration(renderer, trajectory).ids


def test_calls_are_written_in_the_protocol_of_the_environment() -> None:
    (react,) = expert_set(tasks_of(ROWS[:1]), env_kwargs={"protocol": "react"}).trajectories
    assert "Action: calculator" in react.steps[0].action.text
    many = {"question": "many", "answer": "".join(f"<<{i}+1={i + 1}>>" for i in range(9)) + "\n#### 9"}
    found = expert_set(tasks_of([ROWS[0], many]), env_kwargs={"protocol": "gsm8k_annotation"})
    assert found.dropped == {"the protocol cannot write its calls": ("data/1",)}
    assert found.trajectories[0].steps[0].action.text.endswith("<<3*4=")


def test_what_cannot_be_played() -> None:
    with pytest.raises(ConfigError, match="GSM8K-v0 has no tools"):
        expert_set(tasks_of(ROWS), env="GSM8K-v0")
    with pytest.raises(DataError, match="No demonstration is left to train on: 0 of 1 demonstrations kept"):
        expert_set(tasks_of(ROWS[1:2]))


def _check(kept: tuple[Trajectory, ...], renderer: Renderer) -> None:
    assert all(succeeded(t) and t.valid for t in kept)
    assert all(not result.error for t in kept for step in t.steps for result in step.results)
    rows: list[Any] = tokenized(kept[:20], renderer)
    for row, trajectory in zip(rows, kept, strict=False):
        ends = [i for i, m in zip(row["input_ids"], row["completion_mask"], strict=True) if m and i == renderer.end_id]
        assert len(ends) == len(trajectory.steps)


def test_solutions_of_gsm8k(gsm8k_data: Path, renderer: Renderer) -> None:
    found = expert_set(GSM8KDataset("test", 100, path=gsm8k_data / "gsm8k").tasks())
    assert len(found.trajectories) > 80
    _check(found.trajectories, renderer)


@pytest.mark.slow
def test_all_solutions_of_gsm8k(gsm8k_data: Path, renderer: Renderer) -> None:
    for split, kept in (("train", 7021), ("test", 1210)):
        data = GSM8KDataset(split, path=gsm8k_data / "gsm8k")
        found = expert_set(data.tasks())
        assert len(found.trajectories) == kept
        assert kept + sum(map(len, found.dropped.values())) == len(data)
        _check(found.trajectories, renderer)
