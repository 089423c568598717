"""The sizes of models, and what adapters add to them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from trajgym.errors import ConfigError
from trajgym.trainers.models import add_lora, load_model
from trajgym.trainers.shape import Linear, ModelShape, lora_parameters, shape_of, shape_of_config

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def square(width: int) -> ModelShape:
    """A model of one linear layer."""
    return ModelShape(width**2, 0, True, 0, width, 1, 1, 1, width, 0, False, (Linear("w", width, width, 1),))


def test_a_loaded_model_is_counted_weight_by_weight(digit_model: Path) -> None:
    model, _ = load_model(str(digit_model))
    shape = shape_of(model)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert (shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.head_size) == (32, 2, 2, 2, 16)
    assert (shape.intermediate, shape.vocabulary, shape.tied, shape.head_norms) == (64, 9, False, False)
    assert shape.embedding == shape.head == 9 * 32
    assert shape.body == shape.parameters - 2 * 9 * 32
    assert shape.kv_numbers == 2 * 2 * 2 * 16
    assert Linear("down_proj", 32, 64, 2) in shape.linears


def test_adapters_are_no_part_of_the_model(digit_model: Path) -> None:
    model, _ = load_model(str(digit_model))
    plain = shape_of(model)
    adapted = add_lora(model, rank=4, alpha=8, targets=ATTENTION, seed=0)
    assert shape_of(adapted) == plain
    added = sum(p.numel() for name, p in adapted.named_parameters() if "lora_" in name)
    assert lora_parameters(plain, rank=4, targets=ATTENTION) == added


def test_qwen3_06b_from_its_configuration_alone() -> None:
    shape = shape_of_config(
        Qwen3Config(
            vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
            num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
        )
    )  # fmt: skip
    assert shape.parameters == 596_049_920
    assert shape.tied
    assert shape.head_norms
    assert shape.body == 596_049_920 - 151_936 * 1024
    adapters = lora_parameters(shape, rank=8, targets=ATTENTION)
    assert adapters == 28 * 8 * ((2048 + 1024) + 2 * (1024 + 1024) + (1024 + 2048))
    assert round(100 * adapters / shape.parameters, 3) == 0.385


def test_an_adapter_of_a_square_layer() -> None:
    shape = square(4096)
    adapter = lora_parameters(shape, rank=8, targets=("w",))
    assert (adapter, shape.parameters, shape.parameters // adapter) == (65_536, 16_777_216, 256)
    assert lora_parameters(shape, rank=8, targets=("other",)) == 0


def test_weights_packed_in_fewer_bits_count_in_full() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=8, hidden_size=16, intermediate_size=32,
            num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2))  # fmt: skip
    before = shape_of(model)
    for module in model.model.layers.modules():
        if isinstance(module, nn.Linear):  # how four bits are stored: two weights in a byte
            packed = torch.empty(module.weight.numel() // 2, 1, dtype=torch.uint8)
            module.weight = nn.Parameter(packed, requires_grad=False)
    assert shape_of(model) == before


def test_a_configuration_without_a_size_is_refused(digit_model: Path) -> None:
    model, _ = load_model(str(digit_model))
    config: Any = SimpleNamespace(hidden_size=32, num_attention_heads="two")
    config.get_text_config = lambda: config
    model.config = config
    with pytest.raises(ConfigError, match="no num_attention_heads"):
        shape_of(model)
