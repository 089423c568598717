"""The benchmark of playing ahead: both runs train, and its table says what they took."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from trajgym.trainers.config import load_config

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def overlap() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("overlap")
    gymnasium.registry.pop("SlowArithmetic-v0", None)
    for name in ("overlap", "rounds", "machine"):
        sys.modules.pop(name, None)


def test_both_runs_train_and_are_told_side_by_side(overlap: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert overlap.main(delays=(0.0,), groups=1, updates=3, rounds=1) == 0
    facts, head, rule, row = (line for line in capsys.readouterr().out.splitlines() if line)
    assert facts.startswith("tiny, 8 episodes; ")
    assert head.count("|") == rule.count("|") == row.count("|")
    assert row.startswith("| 0 s | ")


def test_what_does_not_overlap_does_not_count(overlap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def train(config: Any, *, name: str) -> Path:
        asked.append(config)
        ahead = config.rollout_ahead
        # In the middle it takes 2 s ahead and 3 s in turn; the first and the last update take what must not be seen.
        update = {"turns": 4.0, "time/rollout": 1.5, "time/train": 1.0, "time/update": 2.0 if ahead else 3.0}
        edge = dict.fromkeys(update, 999.0)
        lines = [edge, update | ({"time/wait": 0.25} if ahead else {}), edge]
        (config.output_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return Path(config.output_dir)

    monkeypatch.setattr(overlap, "train", train)
    options = overlap._options("tiny", 0.5, 2, 3)
    row = overlap._row(0.5, 2, options)
    assert row == "| 0.5 s | 4.0 | 1.50 s | 1.00 s | 3.00 s | 2.00 s | 0.25 s | 1.50 [1.50, 1.50] |"
    assert sorted(config.rollout_ahead for config in asked) == [0, 0, 1, 1]
    told = [config.model_dump(exclude={"rollout_ahead", "output_dir"}) for config in asked]
    assert all(one == told[0] for one in told)  # the runs differ in nothing else
    assert load_config(options).env_kwargs["delay"] == 0.5


def test_a_step_of_the_slow_environment_sleeps(overlap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(overlap.time, "sleep", slept.append)
    env = gymnasium.make("SlowArithmetic-v0", delay=0.7)
    env.reset(seed=0)
    env.step("#### 1")
    env.close()
    assert slept == [0.7]
