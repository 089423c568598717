"""Episodes are played once, and found again only where everything that decides them is the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trajgym.envs.base import ToolEnv
from trajgym.errors import ConfigError, DataError, EnvironmentFault, StorageError
from trajgym.evaluation.evaluate import evaluate
from trajgym.evaluation.store import Store, folder_fingerprint
from trajgym.policies.base import TextPolicy
from trajgym.types import Message, Task

TASKS = [Task(f"t-{i}", f"{i}?", str(i)) for i in range(12)]
IDENTITY = {"model": "counting", "env": "ToolEnv"}


class Counting(TextPolicy):
    """Counts its turns, and may be killed after some of them."""

    def __init__(self, most: int = 1000) -> None:
        super().__init__(capacity=1)
        self.turns, self.most = 0, most

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        if self.turns == self.most:
            raise KeyboardInterrupt
        self.turns += 1
        return f"#### {task.answer}, drawn with {seed}\ud800"


def environment() -> ToolEnv:
    return ToolEnv(TASKS)


def test_a_killed_evaluation_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    whole = evaluate(Counting(), environment, TASKS, attempts=2)
    killed = Counting(most=10)
    with pytest.raises(KeyboardInterrupt):
        evaluate(killed, environment, TASKS, attempts=2, store=Store(path, IDENTITY))
    assert len(Store(path, IDENTITY)) == 8, "two rounds of four episodes are kept, the third was lost"
    resumed, told = Counting(), []
    found = evaluate(resumed, environment, TASKS, attempts=2, store=Store(path, IDENTITY), on_progress=told.append)
    assert found == whole
    assert resumed.turns == 16
    assert max(told) == 24
    again = Counting(most=0)
    assert evaluate(again, environment, TASKS, attempts=2, store=Store(path, IDENTITY)) == whole


def test_more_attempts_and_tasks_add_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    evaluate(Counting(), environment, TASKS[:6], store=Store(path, IDENTITY))
    more = Counting()
    evaluate(more, environment, TASKS[:8], attempts=2, store=Store(path, IDENTITY))
    assert more.turns == 8 * 2 - 6


@pytest.mark.parametrize("change", ["identity", "seed", "task"])
def test_whatever_decides_an_episode_is_in_its_key(tmp_path: Path, change: str) -> None:
    path = tmp_path / "episodes.jsonl"
    evaluate(Counting(), environment, TASKS, store=Store(path, IDENTITY))
    again = Counting()
    tasks = [Task(t.id, t.question + "!", t.answer) for t in TASKS] if change == "task" else TASKS
    identity = {**IDENTITY, "temperature": 1.0} if change == "identity" else IDENTITY
    evaluate(again, environment, tasks, seed=int(change == "seed"), store=Store(path, identity))
    assert again.turns == 12


def test_half_a_line_is_dropped_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    whole = evaluate(Counting(), environment, TASKS, store=Store(path, IDENTITY))
    path.write_bytes(path.read_bytes()[:-40])
    again = Counting()
    assert evaluate(again, environment, TASKS, store=Store(path, IDENTITY)) == whole
    assert again.turns == 1
    assert len(path.read_text().splitlines()) == 12


@pytest.mark.parametrize("line", ["not JSON", "[]", '{"key": "k"}', "\x00"])
def test_a_corrupt_file_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(DataError, match=r"episodes.jsonl does not hold played episodes \(line 1.*Delete it"):
        Store(path, IDENTITY)


def test_a_line_that_holds_no_trajectory_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    evaluate(Counting(), environment, TASKS, store=Store(path, IDENTITY))
    rows = [{**json.loads(line), "trajectory": {"steps": 3}} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="does not hold played episodes"):
        evaluate(Counting(), environment, TASKS, store=Store(path, IDENTITY))


def test_episodes_that_failed_by_our_doing_are_tried_again(tmp_path: Path) -> None:
    class Breaking(ToolEnv):
        def step(self, action: str) -> Any:
            raise EnvironmentFault("the worker died")

    path = tmp_path / "episodes.jsonl"
    assert evaluate(Counting(), lambda: Breaking(TASKS), TASKS, store=Store(path, IDENTITY)).faults == 12
    assert evaluate(Counting(), environment, TASKS, store=Store(path, IDENTITY)).faults == 0


def test_what_cannot_be_stored(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs an identity"):
        Store(tmp_path / "a", {})
    with pytest.raises(ConfigError, match="must be JSON values"):
        Store(tmp_path / "a", {"model": object()})
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be read"):
        Store(tmp_path / "file" / "a", IDENTITY)
    (tmp_path / "folder").mkdir()
    store = Store(tmp_path / "new", IDENTITY)
    store.path = tmp_path / "folder"
    with pytest.raises(StorageError, match="cannot be written"):
        evaluate(Counting(), environment, TASKS, store=store)


def test_fingerprints(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"a" * 100)
    first = folder_fingerprint(tmp_path)
    assert folder_fingerprint(tmp_path) == first
    (tmp_path / "weights").write_bytes(b"a" * 99 + b"b")
    assert folder_fingerprint(tmp_path) != first
    with pytest.raises(DataError, match="cannot be read"):
        folder_fingerprint(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no file"):
        folder_fingerprint(tmp_path / "empty")
