"""What is told of memory, and that every advice helps by as much as it says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.memory import estimate
from trajgym.trainers.memory_report import available_memory, memory_report, remedies
from trajgym.trainers.shape import Linear, ModelShape

SHAPE = ModelShape(
    90_000_000, 10_000_000, True, 20_000, 500, 8, 5, 5, 100, 1500, False, (Linear("q_proj", 500, 500, 8),)
)
GIB = 1 << 30


def options(**values: Any) -> GRPOConfig:
    return GRPOConfig(**{"updates": 1, "num_generations": 8, "groups_per_update": 2, "max_turn_tokens": 512, **values})


def test_the_line() -> None:
    config = options()
    need, ppo = estimate(SHAPE, config), estimate(SHAPE, config, algorithm="ppo", learned_reward=True)
    report = memory_report(SHAPE, config, 64 * GIB)
    assert report.line.startswith("Memory: policy + reference = 2 models, 0.7 GiB of weights, about ")
    assert f"about {need.peak / GIB:.1f} GiB with everything else (" in report.line
    assert "; 64.0 GiB are there. PPO would hold 4 (policy, reference, value, reward), " in report.line
    assert report.line.endswith(f"about {ppo.peak / GIB:.1f} GiB.")
    assert report.warning == ""


def test_adapters_and_a_run_without_reference() -> None:
    lora = memory_report(SHAPE, options(use_lora=True, lora_targets=("q_proj",)), None).line
    assert "policy + reference = 2 models (the policy without its adapters), " in lora
    assert "are there" not in lora
    assert "Memory: policy = 1 model, " in memory_report(SHAPE, options(kl_coef=0.0), None).line
    assert "policy + reference + value = 3 models" in memory_report(SHAPE, options(algorithm="ppo"), None).line
    assert "PPO would" not in memory_report(SHAPE, options(algorithm="ppo"), None).line


def test_a_warning_where_it_does_not_fit() -> None:
    report = memory_report(SHAPE, options(), GIB)
    assert report.warning.startswith("This run may need ")
    assert "1.0 GiB are free. What would help: " in report.warning
    assert memory_report(SHAPE, options(), None).warning == ""


def test_what_is_loaded_is_not_needed_again() -> None:
    config = options()
    peak = estimate(SHAPE, config).peak
    tight = int(peak / 0.9) - GIB // 4
    assert memory_report(SHAPE, config, tight).warning
    assert not memory_report(SHAPE, config, tight, loaded=GIB).warning


def test_the_advice_that_people_know_is_given_where_it_helps() -> None:
    """Fewer generations, a smaller batch, shorter turns, checkpointing, fewer bits."""
    text = " ".join(remedies(SHAPE, options(max_episode_tokens=900, slots=1)))
    for advice in (
        "num_generations 8 → 4", "groups_per_update 2 → 1",
        "max_turn_tokens 512 → 256 and max_episode_tokens 900 → 644",
        "gradient_checkpointing: true", "dtype: bfloat16", "use_lora: true",
    ):  # fmt: skip
        assert advice in text
    full = " ".join(remedies(SHAPE, options(groups_per_update=64)))
    assert "num_generations" not in full  # half as many still fill a micro-batch
    assert "microbatch_tokens 16384 → 8192" in full


def test_every_advice_saves_what_it_says() -> None:
    config = options(slots=32, microbatch_tokens=1024)  # the rollout's cache is the most there is at once
    peak = estimate(SHAPE, config).peak
    said = [re.fullmatch(r"slots 32 → 16 saves ([\d.]+) GiB", text) for text in remedies(SHAPE, config)]
    (found,) = [match for match in said if match]
    less = estimate(SHAPE, config.model_copy(update={"slots": 16})).peak
    assert float(found.group(1)) == pytest.approx((peak - less) / GIB, abs=0.06)


def test_the_best_advice_comes_first() -> None:
    numbers = []
    for text in remedies(SHAPE, options()):
        amount, unit = text.rsplit(" ", 2)[1:]
        numbers.append(float(amount) * {"GiB": 1024, "MiB": 1}[unit])
    assert len(numbers) > 3
    assert numbers == sorted(numbers, reverse=True)


def test_a_run_that_is_as_small_as_can_be() -> None:
    config = options(
        num_generations=2, groups_per_update=1, slots=1, microbatch_tokens=1, max_turn_tokens=1, max_episode_tokens=2,
        gradient_checkpointing=True, dtype="bfloat16", use_lora=True, lora_targets=("q_proj",), quantization="4bit",
    )  # fmt: skip
    assert remedies(SHAPE, config) == ["a smaller model"]


def test_this_machine() -> None:
    free = available_memory("cpu")
    assert free is None or free > 0
