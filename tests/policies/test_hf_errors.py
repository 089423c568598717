from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from trajgym.errors import ConfigError, EpisodeError, TrainingError
from trajgym.policies.hf import HFSampler

VOCABULARY = 37


def model() -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, max_position_embeddings=256)).eval()


def sampler(model: Any, **changes: Any) -> HFSampler:
    options: dict[str, Any] = {"slots": 3, "max_length": 200, "stop_ids": (0, 1)}
    return HFSampler(model, **options | changes)


def test_logits_that_are_not_finite_are_an_error() -> None:
    diverged = model()
    with torch.no_grad():
        diverged.lm_head.weight.fill_(math.nan)
    engine = sampler(diverged)
    stream = engine.open([3], seed=0)
    engine.generate(stream, max_new_tokens=1)
    with pytest.raises(TrainingError, match="not finite"):
        engine.step()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": 0}, "slots must be at least 1"),
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"max_length": 257}, "max_position_embeddings=256"),
        ({"temperature": -0.1}, "temperature must be finite and not negative"),
        ({"temperature": math.nan}, "temperature must be finite"),
        ({"pad_id": VOCABULARY}, "pad_id must lie"),
        ({"prefill_tokens": 0}, "prefill_tokens must be at least 1"),
    ],
)
def test_options_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sampler(model(), **changes)


def test_attention_that_cannot_be_cached() -> None:
    other = model()
    other.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ConfigError, match="linear_attention"):
        sampler(other)
    other = model()
    other.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ConfigError, match="flash_attention_2"):
        sampler(other)


def test_prompts_and_budgets_that_do_not_fit() -> None:
    engine = sampler(model(), max_length=10)
    with pytest.raises(ConfigError, match="at least one prompt token"):
        engine.open([], seed=0)
    with pytest.raises(ConfigError, match="max_length=10"):
        engine.open([3] * 11, seed=0)
    for bad in (-1, VOCABULARY):
        with pytest.raises(ConfigError, match="vocabulary of 37"):
            engine.open([bad], seed=0)
    stream = engine.open([3] * 8, seed=0)
    with pytest.raises(ConfigError, match="max_new_tokens must be at least 1"):
        engine.generate(stream, max_new_tokens=0)
    with pytest.raises(ConfigError, match="no room for max_new_tokens=3"):
        engine.generate(stream, max_new_tokens=3)
    with pytest.raises(ConfigError, match="cannot take 3 more"):
        engine.extend(stream, [3] * 3)
    engine.generate(stream, max_new_tokens=2)
    turns = [turn for _ in range(2) for turn in engine.step()]
    assert len(turns[0].ids) <= 2


def test_use_out_of_order() -> None:
    engine = sampler(model(), slots=1, stop_ids=())
    stream = engine.open([3], seed=0)
    with pytest.raises(EpisodeError, match="All 1 slots are taken"):
        engine.open([3], seed=0)
    engine.generate(stream, max_new_tokens=3)
    for steps in (0, 1):
        for _ in range(steps):
            engine.step()
        with pytest.raises(EpisodeError, match="middle of a turn"):
            engine.generate(stream, max_new_tokens=3)
        with pytest.raises(EpisodeError, match="middle of a turn"):
            engine.extend(stream, [3])
    engine.close(stream)
    for use in (engine.close, lambda s: engine.extend(s, [3])):
        with pytest.raises(EpisodeError, match="no open stream"):
            use(stream)
