"""What the benchmark of rollout workers plays and compares, without Ray."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from trajgym.errors import ConfigError
from trajgym.rewards import REWARDS
from trajgym.trainers import ray_player
from trajgym.trainers.throughput import Costs, forecast
from trajgym.trainers.worker import RolloutWorker

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = ("ray_workers", "ray_updates")


class HereCrew:
    """Workers in this process, which do what they are sent at once."""

    def __init__(self, plan: bytes, **options: Any) -> None:
        self.plan = plan
        self.answers: list[Any] = []

    def hire(self) -> RolloutWorker:
        return RolloutWorker(self.plan)

    def publish(self, packed: Any) -> Any:
        return packed

    def send(self, worker: RolloutWorker, method: str, *args: Any) -> int:
        self.answers.append(getattr(worker, method)(*args))
        return len(self.answers) - 1

    def first(self, tickets: Sequence[int], seconds: float) -> int:
        return tickets[0]

    def answer(self, ticket: int) -> Any:
        return self.answers[ticket]

    def dismiss(self, worker: RolloutWorker) -> None:
        worker.close()

    def close(self) -> None:
        return


@pytest.fixture(scope="module")
def modules() -> Iterator[SimpleNamespace]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        patch.setattr(REWARDS, "_items", dict(REWARDS._items))  # one is registered
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})
    for name in (*NAMES, "rounds", "machine"):
        sys.modules.pop(name, None)


@pytest.fixture
def ray_workers(modules: SimpleNamespace) -> Any:
    return modules.ray_workers


@pytest.fixture
def ray_updates(modules: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    threads = torch.get_num_threads()
    monkeypatch.setattr(ray_player, "RayCrew", HereCrew)
    monkeypatch.setattr(ray_player, "require_ray", lambda: None)
    yield modules.ray_updates
    torch.set_num_threads(threads)


def test_every_episode_has_as_many_turns_as_are_counted(ray_workers: Any) -> None:
    player = ray_workers.Player(0.0)
    player.prepare().open()
    for piece in ray_workers.pieces_of(2):
        (group,) = player.play(piece).open().share.groups
        assert [len(t.steps) for t in group] == [ray_workers.TURNS] * ray_workers.SIZE
        assert all(t.valid and not any(step.error for step in t.steps) for t in group)
        assert [r.content for step in group[0].steps for r in step.results] == ["0", "1", "2"]
    player.close().open()


def test_weights_are_copied_and_timed(ray_workers: Any) -> None:
    seconds = ray_workers.Player(0.0).load({"w": ("float32", np.ones(4, np.float32))}, 0.0).open()
    assert seconds >= 0.0


def test_runs_of_which_no_update_would_count(ray_workers: Any) -> None:
    with pytest.raises(ConfigError, match="--updates must be at least 2, got 1"):
        ray_workers.main(updates=1)


def test_whole_updates_are_forecast_and_measured(ray_updates: Any) -> None:
    options = ray_updates.options_of("tiny", 2, 3) | {"max_turn_tokens": 4}
    sent: list[Any] = []
    costs = ray_updates.costs_of(options, 1, sent.append)
    assert len(sent) == 2  # the first update does not count
    assert costs.weight_bytes == sum(numbers.nbytes for _, numbers in sent[0].values())
    assert costs.piece_trajectories == 8
    assert min(costs.learn_seconds, costs.credit_seconds, costs.trajectory_bytes, costs.load_seconds) > 0
    measured = ray_updates.whole_updates(options, (1, 2), 1)
    assert {count: [len(run) for run in runs] for count, runs in measured.items()} == {1: [2], 2: [2]}
    assert all(0 < one.playing < one.update for runs in measured.values() for run in runs for one in run)
    lines = ray_updates.table("tiny", costs, measured, 16)
    assert [line.split("|")[1:4] for line in lines[2:]] == [[" tiny ", f" {n} ", " 16 "] for n in (1, 2)]


def test_an_update_that_learns_from_nothing_is_no_whole_update(
    ray_updates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: Any) -> Path:
        (config.output_dir / "metrics.jsonl").write_text('{"no_signal_share": 1.0}\n')
        return Path(config.output_dir)

    monkeypatch.setattr(ray_updates, "train", train)
    with pytest.raises(AssertionError, match="an update had nothing to learn from"):
        ray_updates.whole_updates(ray_updates.options_of("tiny", 1, 2), (1,), 1)


def test_the_table_puts_the_forecast_beside_what_was_measured(ray_updates: Any) -> None:
    costs = Costs(2.0, 8, 0.0, 0.5, 100.0, 0.01, 0.02, 0.1)
    runs = [[ray_updates.Whole(4.0, 10.0)] * 2, [ray_updates.Whole(4.0, 10.0)] * 2]
    head, rule, row = ray_updates.table("some/model", costs, {2: runs}, 32)
    assert head.count("|") == rule.count("|") == row.count("|")
    update = forecast(costs, workers=2, batch=32).update_seconds
    assert update == pytest.approx(0.5 + 4.0 + 32 * 0.13)
    playing = 0.5 + 4.0 + 32 * 0.01  # what comes before credit and learning
    said = f"{playing:.3f} | 4.000 [4.000, 4.000] | {update:.3f} | 10.000 [10.000, 10.000] | {10 / update:.2f}"
    assert row == f"| some/model | 2 | 32 | {said} |"
