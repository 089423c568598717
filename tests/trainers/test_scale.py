"""Plans, memory of each device, batch and learning rate."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.memory import MemoryEstimate, estimate
from trajgym.trainers.scale import (
    Plan,
    choose_plan,
    divided_memory,
    memory_per_device,
    scaled_learning_rate,
    total_batch,
)
from trajgym.trainers.shape import ModelShape, shape_of_config

GIB = 1 << 30


@pytest.fixture(scope="module")
def shape() -> ModelShape:
    from transformers import Qwen3Config

    return shape_of_config(Qwen3Config(hidden_size=512, intermediate_size=1024, num_hidden_layers=4))


@pytest.fixture
def need(shape: ModelShape) -> MemoryEstimate:
    return estimate(shape, GRPOConfig(updates=1))


@pytest.mark.parametrize(
    ("parameters", "gpus", "machines", "engine", "name"),
    [
        (0.6e9, 1, 1, "fsdp", "single"),
        (0.6e9, 2, 1, "fsdp", "ddp"),
        (7e9, 8, 1, "deepspeed", "ddp"),
        (8e9, 8, 1, "deepspeed", "zero2"),
        (13e9, 8, 1, "deepspeed", "zero3"),
        (8e9, 8, 1, "fsdp", "fsdp"),
        (0.6e9, 16, 4, "deepspeed", "zero3"),
        (0.6e9, 16, 4, "fsdp", "fsdp"),
    ],
)
def test_the_plan_follows_size_and_machines(
    parameters: float, gpus: int, machines: int, engine: str, name: str
) -> None:
    plan = choose_plan(parameters, gpus, machines=machines, engine=engine)
    assert (plan.name, plan.processes, plan.machines) == (name, gpus, machines)
    assert plan.reason


def test_a_small_model_that_does_not_fit_is_divided(need: MemoryEstimate) -> None:
    assert choose_plan(0.1e9, 4, need=need, device_memory=2 * need.peak).name == "ddp"
    assert choose_plan(0.1e9, 4, need=need, device_memory=need.peak).name == "fsdp"
    assert choose_plan(0.1e9, 4, need=need, device_memory=need.peak, engine="deepspeed").name == "zero3"


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((0, 2), {}, "parameters must be a number above 0"),
        ((math.nan, 2), {}, "parameters must be a number above 0"),
        ((8e9, 0), {}, "gpus must be a whole number of at least 1"),
        ((8e9, True), {}, "gpus must be a whole number"),
        ((8e9, 2), {"machines": 4}, "gpus counts all of them"),
        ((8e9, 6), {"machines": 4}, "do not divide evenly"),
        ((8e9, 2), {"device_memory": -1.0}, "device_memory must be a number above 0"),
        ((8e9, 2), {"engine": "deepsped"}, "Did you mean 'deepspeed'?"),
    ],
)
def test_impossible_clusters_are_refused(arguments: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        choose_plan(*arguments, **options)


def test_a_plan_knows_its_names() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'zero3'"):
        Plan("zero4", 4)
    with pytest.raises(ConfigError, match="one process"):
        Plan("single", 2)


def test_what_each_device_holds_at_its_fullest() -> None:
    need = MemoryEstimate(
        policy=80, reference=80, value=0, reward=0, copies=40, optimizer=160, gradients=80, cache=300, rollout=20,
        activations=100, recomputed=0, logits=40, trained=20,
    )  # fmt: skip
    each = {name: memory_per_device(Plan(name, 8), need) for name in ("ddp", "zero2", "fsdp", "zero3")}
    assert each == {
        "ddp": 160 + 40 + 160 + 320,  # everything, and the cache of the rollout
        "zero2": 160 + 25 + 320,
        "fsdp": 45 + 80 + 320,  # shares, one whole policy, and the cache
        "zero3": 80 + 320,
    }
    update = replace(need, cache=0, activations=500)
    assert memory_per_device(Plan("fsdp", 8), update) == 45 + 10 + 500 + 40


def test_a_rank_says_what_it_needs(shape: ModelShape) -> None:
    config = GRPOConfig(updates=1)
    roomy = divided_memory(shape, config, 4, 10**15)
    assert "4 ranks" in roomy.line
    assert not roomy.warning
    assert "would help" in divided_memory(shape, config, 4, 1000).warning
    assert "are there" not in divided_memory(shape, config, 4, None).line


def test_batch_and_learning_rate() -> None:
    assert total_batch(4, 1, 4) == total_batch(4, 4, 1) == 16
    assert scaled_learning_rate(5e-5, 16, 64) == pytest.approx(1e-4)
    assert scaled_learning_rate(5e-5, 16, 64, "linear") == pytest.approx(2e-4)
    assert scaled_learning_rate(1e-4, 64, 16) == pytest.approx(5e-5)
    with pytest.raises(UnknownNameError, match="Did you mean 'linear'"):
        scaled_learning_rate(5e-5, 16, 64, "linaer")
    with pytest.raises(ConfigError, match="new_batch"):
        scaled_learning_rate(5e-5, 16, 0)
    with pytest.raises(ConfigError, match="rate"):
        scaled_learning_rate(math.inf, 16, 64)
    with pytest.raises(ConfigError, match="accumulation"):
        total_batch(4, 1, 0)
