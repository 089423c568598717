from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from trajgym.envs.detour_house import Plan
from trajgym.envs.detour_tasks import DetourTasks
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.types import Task, from_json, to_json

PINNED = "You are in the hall. Doors: stable-garden, hall-stable, hall-mill. Box: hall. Key: stable. Chest: mill."


def layout(task: Task) -> tuple[Any, ...]:
    plan = Plan.of(task)
    return plan.start, frozenset(map(frozenset, plan.doors)), plan.box, plan.key, plan.chest


def test_the_same_id_gives_the_same_house() -> None:
    source = DetourTasks("train", (1, 3))
    rng = np.random.default_rng(0)
    for _ in range(20):
        task = source.sample(rng)
        assert DetourTasks("train", (1, 3)).get(task.id) == task
    # Pinned: ids are written to files and must not change their meaning.
    assert source.get("detour/train/1/0").question == PINNED


def test_the_splits_share_no_house() -> None:
    houses = {}
    for split in ("train", "test"):
        tasks = [DetourTasks(split).get(f"detour/{split}/{level}/{seed}") for level in (1, 2, 3) for seed in range(400)]
        houses[split] = set(map(layout, tasks))
        assert len(houses[split]) > 0.9 * len(tasks), "houses hardly repeat"
    assert not houses["train"] & houses["test"]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_house_is_as_the_difficulty_says(level: int) -> None:
    chests = set()
    for seed in range(50):
        task = DetourTasks().get(f"detour/train/{level}/{seed}")
        plan = Plan.of(task)
        far = plan.distances(plan.start)
        assert task.difficulty == far[plan.key] == level
        assert plan.box == plan.start
        assert far[plan.chest] <= 1
        assert plan.chest not in plan.way(plan.start, plan.key)
        assert len(plan.doors) == len(far) - 1, "a tree, so that there is one way"
        assert plan.numbers[0] != plan.numbers[1]
        assert str(plan.numbers[1]) == task.answer
        assert task.answer not in task.question
        chests.add(far[plan.chest])
    assert chests == {0, 1}


def test_tasks_are_json() -> None:
    task = DetourTasks().get("detour/train/3/1")
    back = from_json(Task, json.loads(json.dumps(to_json(task))))
    assert back == task
    assert Plan.of(back) == Plan.of(task)


@pytest.mark.parametrize("wrong", ["detour/test/1/0", "detour/train/4/0", "detour/train/1/01", "detour", 7])
def test_other_ids_are_unknown(wrong: Any) -> None:
    with pytest.raises(UnknownNameError, match="detour/train/1/0"):
        DetourTasks().get(wrong)


@pytest.mark.parametrize("wrong", [0, 4, (2, 1), (1, 2, 3), (1, True), 1.5, "1"])
def test_other_difficulties_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="difficulty="):
        DetourTasks(difficulty=wrong)


def test_another_split_is_unknown() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'train'"):
        DetourTasks("trian")
