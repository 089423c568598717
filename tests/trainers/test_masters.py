"""Small steps count, also where weights have 16 bits."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trajgym.errors import CheckpointError
from trajgym.trainers.masters import Masters
from trajgym.trainers.models import load_model

RATE = 1e-5


@pytest.fixture(scope="module")
def tiny() -> Any:
    return load_model("tiny", dtype="bfloat16")[0]


def learn(model: Any, trained: list[nn.Parameter], masters: Masters | None, steps: int) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    ids = torch.arange(48).view(2, 24)
    for _ in range(steps):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if masters is not None:
            masters.publish()
    return optimizer


def still(weights: Sequence[Tensor], start: Sequence[Tensor]) -> float:
    """Share of the matrices' weights that are where they were."""
    pairs = [(w, s) for w, s in zip(weights, start, strict=True) if s.dim() == 2]
    return sum(float((w == s).sum()) for w, s in pairs) / sum(s.numel() for _, s in pairs)


def distance(weights: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return (
        sum(float((a.detach().float() - b.detach().float()).norm()) ** 2 for a, b in zip(weights, others, strict=True))
        ** 0.5
    )


def test_small_steps_vanish_in_bfloat16_and_add_up_in_copies(tiny: Any) -> None:
    """Twelve steps of AdamW at 1e-5."""
    start = [p.detach().clone() for p in tiny.parameters()]
    exact, pure, mixed = copy.deepcopy(tiny).float(), copy.deepcopy(tiny), copy.deepcopy(tiny)
    masters = Masters(mixed.parameters())
    learn(exact, list(exact.parameters()), None, 12)
    learn(pure, list(pure.parameters()), None, 12)
    learn(mixed, masters.trained, masters, 12)
    assert still(list(exact.parameters()), start) < 0.001
    assert still(masters.trained, start) < 0.001
    assert still(list(pure.parameters()), start) > 0.9  # 94 % have not moved at all
    way = distance(start, list(exact.parameters()))
    assert distance(masters.trained, list(exact.parameters())) < 0.3 * way
    assert distance(list(pure.parameters()), list(exact.parameters())) > 0.7 * way


def test_the_model_has_the_copies_rounded_and_a_checkpoint_has_them_whole(tiny: Any) -> None:
    model = copy.deepcopy(tiny)
    masters = Masters(model.parameters())
    state = masters.optimizer_state(learn(model, masters.trained, masters, 2))
    for weight, master in zip(model.parameters(), masters.trained, strict=True):
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, master.bfloat16())
        assert weight.grad is None
    again = Masters(model.parameters())
    optimizer = torch.optim.AdamW(again.trained, lr=RATE)
    assert not all(map(torch.equal, again.trained, masters.trained))
    again.load_optimizer_state(optimizer, copy.deepcopy(state))
    assert all(map(torch.equal, again.trained, masters.trained))
    assert all(set(moments) == {"step", "exp_avg", "exp_avg_sq"} for moments in optimizer.state.values())
    again.load_optimizer_state(optimizer, torch.optim.AdamW(again.trained, lr=RATE).state_dict())  # before any step
    state["state"][0]["master"] = torch.zeros(1)
    with pytest.raises(CheckpointError, match="do not fit"):
        again.load_optimizer_state(optimizer, state)


def test_gradients_add_up_in_float32() -> None:
    """256 and then 1, many times: in bfloat16 the ones would be lost."""
    weight = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    masters = Masters([weight])
    for size in (256.0, *[1.0] * 50):
        (weight * size).sum().backward()
    assert weight.grad is None
    assert masters.trained[0].grad is not None
    assert masters.trained[0].grad.tolist() == [306.0] * 3
    weight.grad = torch.ones(3, dtype=torch.bfloat16)  # put there by another process
    masters.collect()
    assert weight.grad is None
    assert masters.trained[0].grad.tolist() == [307.0] * 3


def test_float32_weights_are_their_own() -> None:
    weights = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))]
    masters = Masters(weights)
    assert masters.trained[0] is weights[0]
    assert masters.trained[1].dtype == torch.float32
    optimizer = torch.optim.AdamW(masters.trained)
    for master in masters.trained:
        master.grad = torch.ones(2)
    optimizer.step()
    saved = masters.optimizer_state(optimizer)["state"]
    assert ["master" in saved[index] for index in (0, 1)] == [False, True]
