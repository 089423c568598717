"""The list of metrics: complete for what runs log, and the page is made from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.efficiency import PARTS, Passes, StepCounts, efficiency
from trajgym.trainers.flops import Work
from trajgym.trainers.grpo import train
from trajgym.trainers.metric_table import METRICS, describe, page
from trajgym.trainers.peaks import Peaks
from trajgym.trainers.shape import ModelShape

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_the_page_is_the_list() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m trajgym.trainers.metric_table > docs/metrics.md"


def test_the_page_names_what_people_look_for() -> None:
    for name in ("reward", "kl", "loss", "learning_rate", "epoch"):
        assert f"`train/{name}`" in page()
        assert f"\n| `{name}` | " in page()


@pytest.mark.parametrize(
    "options",
    [
        {"kl_coef": 0.05},
        {"rollout_ahead": 1, "sampler_correction": True},
        {"algorithm": "ppo", "reward_schedule": {"accuracy": [(0.0, 1.0), (1.0, 2.0)]}},
    ],
    ids=["grpo", "ahead", "ppo"],
)
def test_everything_that_a_run_logs_is_described(
    options: dict[str, Any], identity_options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(GRPOConfig(**{**identity_options, "groups_per_update": 2, "updates": 1, **options}))
    (line,) = (folder / "metrics.jsonl").read_text().splitlines()
    logged = set(json.loads(line))
    assert [name for name in sorted(logged) if describe(name) is None] == []
    always = {name for name, metric in METRICS.items() if not metric.when}
    assert always <= logged
    ppo = {name for name, metric in METRICS.items() if metric.when == "ppo"}
    assert (ppo <= logged) == (options.get("algorithm") == "ppo")
    ahead = {name for name, metric in METRICS.items() if metric.when == "with rollout_ahead"}
    assert ahead & logged == (ahead if options.get("rollout_ahead") else set())
    assert ("kl" in logged) == (options.get("kl_coef", 0.0) > 0)


def test_parts_and_efficiency_are_described() -> None:
    shape = ModelShape(1, 0, True, 1, 1, 1, 1, 1, 1, 1, False, ())
    found = efficiency(shape, StepCounts(Work(), (), 0, 1, Work(), Passes(), 0, 0), {}, 1.0, Peaks(1.0, 1.0, "", ""))
    assert set(found.metrics()) <= METRICS.keys()
    assert {f"time/{part}" for part in PARTS} <= METRICS.keys()


def test_names_with_a_term_or_a_class_in_them() -> None:
    assert describe("reward/accuracy") is METRICS["reward/TERM"]
    assert describe("faults/OSError") is METRICS["faults/CLASS"]
    assert describe("reward/") is None
    assert describe("rewards") is None
