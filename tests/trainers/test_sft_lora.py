"""Low-rank adapters: h = Wx + (α/r)·BAx, with W frozen and B = 0 at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from trajgym.errors import ConfigError
from trajgym.trainers.models import add_lora, load_model
from trajgym.trainers.shape import lora_parameters, shape_of

QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
IDS = torch.tensor([[1, 3, 2, 1, 4]])


def adapted(folder: Path, *, rank: int = 2, alpha: int = 4, targets: tuple[str, ...] = QKVO) -> Any:
    return add_lora(load_model(str(folder))[0], rank=rank, alpha=alpha, targets=targets, seed=0)


def test_it_starts_as_the_model_itself(digit_model: Path) -> None:
    plain, _ = load_model(str(digit_model))
    with torch.no_grad():
        assert torch.equal(adapted(digit_model)(input_ids=IDS).logits, plain(input_ids=IDS).logits)


def test_only_the_adapters_have_gradients(digit_model: Path) -> None:
    model = adapted(digit_model)
    model(input_ids=IDS).logits.logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == ("lora_" in name)
        assert (parameter.grad is not None) == ("lora_" in name)


def test_the_update_is_scaled_by_alpha_over_rank(digit_model: Path) -> None:
    for rank, alpha in ((2, 4), (2, 8), (4, 8)):
        model = adapted(digit_model, rank=rank, alpha=alpha)
        layer = model.get_base_model().model.layers[0].self_attn.q_proj
        torch.manual_seed(1)
        with torch.no_grad():
            layer.lora_B["default"].weight.normal_()
            x = torch.randn(3, layer.in_features)
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            assert (a.shape, b.shape) == ((rank, layer.in_features), (layer.out_features, rank))
            expected = x @ layer.base_layer.weight.T + alpha / rank * (x @ a.T @ b.T)
            torch.testing.assert_close(layer(x), expected)


def test_an_adapter_has_r_times_d_plus_k_weights(digit_model: Path) -> None:
    for rank, targets in ((2, ("q_proj",)), (3, QKVO), (4, (*QKVO, "gate_proj", "up_proj", "down_proj"))):
        model = adapted(digit_model, rank=rank, targets=targets)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        layers = [m for n, m in load_model(str(digit_model))[0].named_modules() if n.split(".")[-1] in targets]
        assert trained == rank * sum(m.in_features + m.out_features for m in layers)
        assert trained == lora_parameters(shape_of(load_model(str(digit_model))[0]), rank=rank, targets=targets)


def test_the_saving_for_one_large_matrix() -> None:
    class One(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj = torch.nn.Linear(4096, 4096, bias=False)

    from peft import LoraConfig, get_peft_model

    with torch.device("meta"):
        model = get_peft_model(One(), LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj"]))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    assert (frozen, trained, frozen // trained) == (16_777_216, 65_536, 256)


def test_layers_that_are_not_there(digit_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"lora_targets \['c_attn'\] are not layers of this model. It has: .*q_proj"):
        adapted(digit_model, targets=("c_attn",))
