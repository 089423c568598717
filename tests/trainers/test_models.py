"""Loading: numbers, adapters, fewer bits; and what recomputing activations must not change."""

from __future__ import annotations

import copy
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trajgym.errors import ConfigError
from trajgym.policies import tiny_path
from trajgym.trainers.batch import MicroBatch, make_batch
from trajgym.trainers.models import Reference, add_lora, checkpoint_activations, load_model, token_logprobs
from trajgym.trainers.quantization import loading_arguments
from trajgym.types import Action, Observation, Step, Task, TokenStream, Trajectory

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")


def batch(rows: int = 3, length: int = 32) -> MicroBatch:
    stream = TokenStream(
        tuple(range(20, 20 + length)),
        (0,) * 8 + (1,) * (length - 8),
        (-1,) * 8 + (0,) * (length - 8),
        (0.0,) * length,
    )
    played = Trajectory(Task("t", "", ""), (), (Step(Action(""), Observation()),), (stream,))
    (micro,) = make_batch([played] * rows, [[1.0]] * rows, normalizer=1.0, pad_id=0, max_tokens=rows * length).micro
    return micro


def gradients(model: Any) -> list[torch.Tensor]:
    token_logprobs(model, batch(), 1.0)[0].sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def adapted(model: Any) -> Any:
    model = add_lora(model, rank=4, alpha=8, targets=TARGETS, seed=0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.02)
    return model


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recomputed_activations_give_the_same_gradient(dtype: str, lora: bool) -> None:
    """Bit for bit, and also where the model has dropout, which must stay off."""
    plain, _ = load_model("tiny", dtype=dtype)
    for module in plain.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    if lora:
        plain = adapted(plain)
    light = copy.deepcopy(plain)
    checkpoint_activations(light)
    assert light.training
    wanted, found = gradients(plain), gradients(light)
    assert len(wanted) == len(found) > 0
    assert all(map(torch.equal, wanted, found))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_learn_in_float32_and_start_as_the_model_itself(dtype: str) -> None:
    model, _ = load_model("tiny", dtype=dtype)
    before = token_logprobs(model, batch(), 1.0)[0]
    model = add_lora(model, rank=4, alpha=8, targets=TARGETS, seed=0)
    assert torch.equal(token_logprobs(model, batch(), 1.0)[0], before)
    kinds = {p.requires_grad: p.dtype for p in model.parameters()}
    assert kinds == {True: torch.float32, False: getattr(torch, dtype)}
    changed = adapted(load_model("tiny", dtype=dtype)[0])
    assert not torch.equal(token_logprobs(changed, batch(), 1.0)[0], before)
    assert torch.equal(Reference(changed, lora=True).logprobs(batch(), 1.0), before)


def test_fewer_bits_without_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else real(name))
    for kind in ("4bit", "8bit"):
        with pytest.raises(ConfigError, match=rf"quantization {kind} needs bitsandbytes.*pip install 'bitsandbytes"):
            load_model("tiny", quantization=kind)
    with pytest.raises(ConfigError, match="must be one of none, 8bit, 4bit, got '3bit'"):
        load_model("tiny", quantization="3bit")


def test_fewer_bits_are_made_where_they_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What transformers is told: the device of every part, and the numbers to compute in."""
    assert loading_arguments("none", torch.float32, torch.device("cpu")) == {}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())  # nothing is quantised here
    told = loading_arguments("4bit", torch.bfloat16, torch.device("cuda", 1))
    assert told["device_map"] == {"": torch.device("cuda", 1)}
    assert told["quantization_config"].bnb_4bit_compute_dtype == torch.bfloat16
    assert told["quantization_config"].bnb_4bit_quant_type == "nf4"
    assert loading_arguments("8bit", torch.bfloat16, torch.device("cpu"))["quantization_config"].load_in_8bit


@pytest.mark.parametrize("name", ["./no/such/folder", "/no/such/folder"])
def test_a_folder_that_is_not_there(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        load_model(name)


def test_a_folder_that_holds_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"Cannot load model .* \(folder\)"):
        load_model(str(tmp_path))


HUB = """
import trajgym
from trajgym.errors import ConfigError
from trajgym.trainers.config import load_config
from trajgym.trainers.models import load_model
from trajgym.trainers.pipeline_checks import check_grpo
model, tokenizer = load_model("some/tiny")
print(model.config._name_or_path, len(tokenizer) > 100)
check_grpo(load_config({"model": "some/tiny", "env": "ArithmeticTool-v0", "updates": 1, "max_episode_tokens": 1000}))
try:
    load_model("some/thing-else")
except ConfigError as error:
    print(error)
"""


def test_a_hub_that_cannot_be_reached_is_asked_once(tmp_path: Path) -> None:
    """Then the cache is taken, or the error comes at once: the libraries would try for most of a minute."""
    commit = "a" * 40
    folder = tmp_path / "hub" / "models--some--tiny"
    shutil.copytree(tiny_path(), folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    away = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:1"}  # where nobody listens
    unset = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "TRANSFORMERS_OFFLINE")}
    done = subprocess.run(
        [sys.executable, "-c", HUB], env=unset | away, capture_output=True, text=True, check=True, timeout=300
    )
    first, second = done.stdout.splitlines()
    assert first == "some/tiny True"
    assert "Cannot load model 'some/thing-else' (no such folder here, so a hub id): The hub cannot be reached" in second
    assert "Retrying" not in done.stderr


def test_adapters_on_layers_that_are_not_there() -> None:
    with pytest.raises(ConfigError, match=r"lora_targets \['x_proj'\] are not layers.*q_proj"):
        add_lora(load_model("tiny")[0], rank=4, alpha=8, targets=("x_proj",), seed=0)


def test_dropout_is_off_where_activations_are_recomputed() -> None:
    model, _ = load_model("tiny")
    model.model.layers[0].mlp.act_fn = nn.Sequential(model.model.layers[0].mlp.act_fn, nn.Dropout(0.5))
    checkpoint_activations(model)
    assert model.model.layers[0].mlp.act_fn[1].p == 0.0
