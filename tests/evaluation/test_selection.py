"""Which tasks are played."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import pytest

from trajgym.envs.make import make
from trajgym.errors import ConfigError, DataError
from trajgym.evaluation.selection import DEFAULT_LIMIT, read_tasks, tasks_of
from trajgym.types import Task

TASKS = [Task(f"t-{i}", f"{i}?", str(i)) for i in range(5)]


def test_a_data_set_is_played_in_its_order() -> None:
    env = make("ArithmeticTool-v0", tasks=TASKS)
    assert tasks_of(env) == TASKS
    assert tasks_of(env, 2) == TASKS[:2]
    assert tasks_of(env, 99, seed=3) == TASKS


def test_made_up_tasks_are_different_and_stay_the_same() -> None:
    env = make("ArithmeticTool-v0", split="test")
    tasks = tasks_of(env)
    assert len({task.question for task in tasks}) == DEFAULT_LIMIT
    assert all(task.id.startswith("arithmetic/test/") for task in tasks)
    assert tasks_of(env, 10) == tasks[:10]
    assert tasks_of(env, 10, seed=1) != tasks[:10]


def test_what_has_no_tasks() -> None:
    with pytest.raises(ConfigError, match="CartPoleEnv has no tasks"):
        tasks_of(gymnasium.make("CartPole-v1"))
    for limit in (0, -1, True):
        with pytest.raises(ConfigError, match="limit must be a whole number"):
            tasks_of(make("ArithmeticTool-v0"), limit)


def test_tasks_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    rows = [
        {"question": "48 + 24?\u2028", "answer": 72, "topic": "sums"},
        {"id": 7, "question": "2?", "answer": "2", "difficulty": 1, "metadata": {"a": 1}},
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8-sig")
    assert read_tasks(path) == [
        Task("1", "48 + 24?\u2028", "72", metadata={"topic": "sums"}),
        Task("7", "2?", "2", difficulty=1, metadata={"a": 1}),
    ]
    assert len(read_tasks(path, 1)) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no task"),
        ("{", "line 1: not JSON"),
        ("[1]", "line 1: expected an object"),
        ('{"question": "a"}', "line 1: the column 'answer' is missing. There is: question"),
        ('{"answer": "1"}', "the column 'question' is missing"),
        ('{"question": " ", "answer": "1"}', "'question' must be a text that is not blank"),
        ('{"question": "a", "answer": true}', "'answer' must be a text"),
        ('{"question": "a", "answer": null}', "'answer' must be a text"),
        ('{"question": "\\ud800", "answer": "1"}', "half a surrogate pair"),
        ('{"question": "a", "answer": "1", "difficulty": "2"}', "'difficulty' must be a number"),
        ('{"question": "a", "answer": "1", "metadata": 3}', "'metadata' must be an object"),
        ('{"id": 1, "question": "a", "answer": "1"}\n' * 2, "the same id '1'"),
    ],
)
def test_files_that_hold_something_else(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=r"tasks\.jsonl") as error:
        read_tasks(path)
    assert said in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_tasks(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot be read"):
        read_tasks(tmp_path / "binary")
