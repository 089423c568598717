"""Which tasks an update plays, and how fast it learns: functions of how far the run has come."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.envs.base import ToolEnv
from trajgym.errors import ConfigError
from trajgym.rollout import Episode
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.schedule import TaskSchedule, lr_factor
from trajgym.types import Task


def finite(tasks: int, **options: Any) -> TaskSchedule:
    env = ToolEnv([Task(f"t-{i}", f"{i}?", str(i)) for i in range(tasks)])
    return TaskSchedule(env, config(**options))


def endless(**options: Any) -> TaskSchedule:
    return TaskSchedule(gymnasium.make("ArithmeticTool-v0"), config(**options))


def config(**options: Any) -> GRPOConfig:
    length = {} if "epochs" in options else {"updates": 4}
    return GRPOConfig(**{"groups_per_update": 3, "num_generations": 2, "output_dir": Path("x"), **length, **options})


def dealt(schedule: TaskSchedule, updates: int) -> list[str]:
    """The task of each group, in order."""
    return [str(episode.task) for update in range(updates) for episode in schedule.episodes(update)[::2]]


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 3))
def test_an_epoch_deals_each_task_once_and_the_next_one_shuffles(tasks: int, groups: int, seed: int) -> None:
    schedule = finite(tasks, groups_per_update=groups, seed=seed, epochs=3)
    assert schedule.total == -(-3 * tasks // groups)
    order = dealt(schedule, schedule.total)
    for epoch in range(3):
        assert sorted(order[epoch * tasks : (epoch + 1) * tasks]) == [f"t-{i}" for i in range(tasks)]


def test_the_order_is_another_one_in_each_epoch_and_for_each_seed() -> None:
    order = dealt(finite(50, epochs=2, groups_per_update=25), 4)
    assert len({tuple(order[:50]), tuple(order[50:]), tuple(dealt(finite(50, seed=1), 17)[:50])}) == 3


def test_members_of_a_group_share_the_task_and_not_the_draws() -> None:
    for schedule in (finite(7), endless()):
        episodes = [e for u in range(4) for e in schedule.episodes(u)]
        assert len(episodes) == 4 * 3 * 2
        for first, second in zip(episodes[::2], episodes[1::2], strict=True):
            assert (first.seed, first.task) == (second.seed, second.task)
        assert len({e.policy_seed for e in episodes}) == len(episodes)
        assert set(Counter(e.seed for e in episodes).values()) == {2}


def test_an_update_depends_on_its_number_and_the_seed_alone() -> None:
    assert finite(7).episodes(2) == finite(7, updates=9).episodes(2) != finite(7).episodes(3)
    assert endless().episodes(2) == endless().episodes(2) != endless(seed=1).episodes(2)


def test_endless_tasks_come_from_the_episodes_seed() -> None:
    schedule = endless(updates=5)
    assert (schedule.total, schedule.epoch(3)) == (5, 0.0)
    assert {e.task for e in schedule.episodes(0)} == {None}
    foreign = TaskSchedule(gymnasium.make("CartPole-v1"), config())
    assert isinstance(foreign.episodes(0)[0], Episode)
    assert foreign.episodes(0)[0].task is None


@pytest.mark.parametrize("option", [{"epochs": 1}, {"max_samples": 5}])
def test_endless_tasks_have_no_epochs(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"ArithmeticTool-v0 makes up tasks without end.*Set updates"):
        endless(**option)


def test_the_first_so_many_tasks_of_a_set() -> None:
    schedule = finite(50, max_samples=4, epochs=1.5, groups_per_update=2)
    assert schedule.total == 3
    assert set(dealt(schedule, 3)) == {"t-0", "t-1", "t-2", "t-3"}
    assert (schedule.epoch(2), schedule.epoch(3)) == (1.0, 1.5)
    assert finite(3, max_samples=99).epoch(1) == 1.0


@pytest.mark.parametrize(
    ("progress", "warmup", "shape", "factor"),
    [
        (0.0, 0.0, "constant", 1.0),
        (0.0, 0.5, "cosine", 0.0),
        (0.125, 0.5, "cosine", 0.25),
        (0.5, 0.5, "constant", 1.0),
        (0.9, 0.5, "constant", 1.0),
        (0.6, 0.2, "linear", 0.5),
        (0.6, 0.2, "cosine", 0.5),
        (0.4, 0.2, "cosine", 0.5 * (1 + 2**-0.5)),
        (1.0, 0.2, "linear", 0.0),
        (1.0, 0.2, "cosine", 0.0),
        (0.5, 1.0, "linear", 0.5),
        (1.0, 1.0, "cosine", 1.0),
    ],
)
def test_the_learning_rate_by_hand(progress: float, warmup: float, shape: str, factor: float) -> None:
    assert lr_factor(progress, warmup, shape) == pytest.approx(factor, abs=1e-12)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.sampled_from(["constant", "linear", "cosine"]))
def test_it_rises_and_then_never_again(a: float, b: float, warmup: float, shape: str) -> None:
    early, late = sorted((a, b))
    first, second = lr_factor(early, warmup, shape), lr_factor(late, warmup, shape)
    assert 0.0 <= min(first, second) <= max(first, second) <= 1.0
    if late < warmup:
        assert first <= second
    if early >= warmup:
        assert first >= second
