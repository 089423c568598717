"""Every kind of model that the options allow: it learns, samples what it trains, and is resumed bit for bit."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from trajgym.errors import ConfigError
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import GRPOTrainer, train
from trajgym.trainers.memory import estimate
from trajgym.trainers.ppo import PPOTrainer
from trajgym.trainers.shape import shape_of

needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)
LORA = {"use_lora": True, "lora_rank": 4, "lora_targets": ("q_proj", "v_proj")}
KINDS: dict[str, dict[str, Any]] = {"full": {}, "lora": LORA}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def newest(folder: Path) -> Path:
    return sorted((folder / "checkpoints").glob("update-*"))[-1]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(next((newest(folder) / "model").glob("*.safetensors"))))


def trainer_of(options: dict[str, Any]) -> GRPOTrainer:
    config = load_config(options)
    return PPOTrainer(config) if config.algorithm == "ppo" else GRPOTrainer(config)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_combination_learns(
    identity_options: dict[str, Any], dtype: str, kind: str, checkpointing: bool, algorithm: str
) -> None:
    """Two updates: what is trained moves and nothing else; the sampler's log-probabilities are the trainer's."""
    options = {**identity_options, **KINDS[kind], "algorithm": algorithm, "dtype": dtype, "kl_coef": 0.02}
    trainer = trainer_of({**options, "gradient_checkpointing": checkpointing})
    model = trainer.learner.model
    before = {name: (p.requires_grad, p.detach().clone()) for name, p in model.named_parameters()}
    found = lines(trainer.run())
    for name, p in model.named_parameters():
        trained, start = before[name]
        assert trained or torch.equal(p, start), name
        assert p.dtype == (torch.float32 if trained and kind == "lora" else getattr(torch, dtype))
    moved = [name for name, (trained, start) in before.items() if not torch.equal(model.get_parameter(name), start)]
    assert len(moved) >= 0.9 * sum(trained for trained, _ in before.values())
    gap = 1e-5 if dtype == "float32" else 0.02
    assert all(line["sampler_gap"] < gap and line["skipped_steps"] == 0 and line["grad_norm"] > 0 for line in found)
    assert found[0]["kl"] < gap
    expected = {torch.float32} if kind == "lora" else {getattr(torch, dtype)}
    assert {value.dtype for value in weights(trainer.folder.path).values()} == expected


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_resumed_bit_for_bit(identity_options: dict[str, Any], kind: str, algorithm: str) -> None:
    """The float32 copies too: from the rounded weights alone, small steps would begin again."""
    options = {**identity_options, **KINDS[kind], "algorithm": algorithm, "dtype": "bfloat16", "learning_rate": 1e-4}
    whole = train(load_config({**options, "updates": 4, "name": "whole"}))
    parts = train(load_config({**options, "name": "parts"}))
    train(load_config({**options, "updates": 4, "name": "parts", "resume": True}))
    assert all(torch.equal(value, weights(parts)[name]) for name, value in weights(whole).items())
    states = [torch.load(newest(folder) / "trainer.pt", weights_only=True) for folder in (whole, parts)]
    for one, other in zip(*(state["optimizer"]["state"].values() for state in states), strict=True):
        assert ("master" in one) == (kind == "full")
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_fewer_bits_are_for_adapters_alone(identity_options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"quantization 4bit needs use_lora: true, since"):
        load_config({**identity_options, "quantization": "4bit"})


def frozen_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}


@needs_bitsandbytes
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bits", ["8bit", "4bit"])
def test_a_quantised_model_learns_by_its_adapters(
    identity_options: dict[str, Any], bits: str, dtype: str, algorithm: str
) -> None:
    options = {**identity_options, **LORA, "model": "tiny", "env": "ArithmeticTool-v0", "quantization": bits}
    options |= {"dtype": dtype, "algorithm": algorithm, "kl_coef": 0.02, "max_turn_tokens": 24}
    options |= {"max_episode_tokens": 700, "groups_per_update": 2, "num_generations": 4}
    options |= {"env_kwargs": {"max_turns": 2}, "advantage_scale": "batch_std"}
    trainer = trainer_of({**options, "updates": 4, "save_every": 2, "name": "whole"})
    model = trainer.learner.model
    assert (
        type(model.get_submodule("base_model.model.model.layers.0.mlp.up_proj")).__name__
        == {
            "8bit": "Linear8bitLt",
            "4bit": "Linear4bit",
        }[bits]
    )
    frozen = frozen_of(model)
    assert {torch.int8 if bits == "8bit" else torch.uint8} <= {value.dtype for value in frozen.values()}
    base_bytes = sum(p.nbytes for p in model.parameters())
    assert estimate(shape_of(model), trainer.config).policy == pytest.approx(base_bytes, rel=0.1)
    whole = trainer.run()
    after = frozen_of(model)
    assert all(torch.equal(value, after[name]) for name, value in frozen.items())
    found = lines(whole)
    assert found[0]["kl"] < 1e-6 < found[-1]["kl"]  # the reference is the model with its adapters off
    assert all(line["sampler_gap"] < (0.05 if bits == "8bit" or dtype == "bfloat16" else 1e-5) for line in found)
    assert all(line["skipped_steps"] == 0 for line in found)
    with safe_open(newest(whole) / "model" / "adapter_model.safetensors", "pt") as file:
        names = list(file.keys())
    assert names
    assert all("lora_" in name for name in names)
    assert not list((newest(whole) / "model").glob("model*.safetensors"))
    parts = train(load_config({**options, "updates": 2, "name": "parts"}))
    train(load_config({**options, "updates": 4, "name": "parts", "resume": True}))
    assert all(torch.equal(value, weights(parts)[name]) for name, value in weights(whole).items())
    assert [line["reward"] for line in lines(parts)] == [line["reward"] for line in found]
