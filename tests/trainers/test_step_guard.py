"""Steps that are not numbers: skipped, counted, and in the end a reason to stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trajgym.errors import TrainingError
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import GRPOTrainer, train
from trajgym.trainers.ppo import PPOTrainer
from trajgym.trainers.step_guard import StepGuard


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def spoil(trainer: GRPOTrainer, updates: list[int], how: str) -> None:
    """Make the gradient of some updates something else than numbers."""

    def after(module: Any, args: Any, output: Any) -> None:
        if not torch.is_grad_enabled() or trainer.update not in updates:  # the sampler's, or a sound one
            return
        if how == "loss":
            output.logits.data[..., 0] = float("nan")
        else:
            output.logits.register_hook(lambda gradient: gradient * float("nan"))

    trainer.learner.model.register_forward_hook(after)


@pytest.mark.parametrize("how", ["loss", "gradient"])
def test_a_step_that_is_no_number_is_skipped_and_counted(identity_options: dict[str, Any], how: str) -> None:
    trainer = GRPOTrainer(load_config({**identity_options, "updates": 4, "save_every": 1, "keep_checkpoints": 4}))
    spoil(trainer, [1], how)
    folder = trainer.run()
    assert [m["skipped_steps"] for m in metrics(folder)] == [0.0, 1.0, 0.0, 0.0]
    states = [torch.load(c / "trainer.pt")["optimizer"]["state"][0]["step"] for c in trainer.folder.complete()]
    assert [int(s) for s in states] == [1, 1, 2, 3]
    assert all(bool(torch.isfinite(p).all()) for p in trainer.learner.model.parameters())


@pytest.mark.parametrize("how", ["loss", "gradient"])
def test_three_in_a_row_stop_the_run_and_say_what_to_change(identity_options: dict[str, Any], how: str) -> None:
    trainer = GRPOTrainer(load_config({**identity_options, "updates": 9, "save_every": 1}))
    spoil(trainer, [1, 3, 4, 5], how)
    what = "log-probabilities that are not finite" if how == "loss" else "norm is nan"
    with pytest.raises(TrainingError, match=rf"3 steps in a row.*{what}.*Lower learning_rate"):
        trainer.run()
    assert [m["skipped_steps"] for m in metrics(trainer.folder.path)] == [0.0, 1.0, 0.0, 1.0, 1.0]


def test_steps_skipped_before_a_stop_count_after_it(identity_options: dict[str, Any]) -> None:
    options = {**identity_options, "save_every": 1, "name": "cut"}
    first = GRPOTrainer(load_config({**options, "updates": 2}))
    spoil(first, [0, 1], "loss")
    first.run()
    second = GRPOTrainer(load_config({**options, "updates": 3, "resume": True}))
    spoil(second, [2], "loss")
    with pytest.raises(TrainingError, match="3 steps in a row"):
        second.run()


def test_damaged_weights_are_not_tried_again(identity_options: dict[str, Any]) -> None:
    trainer = GRPOTrainer(load_config(identity_options))
    guard = trainer.learner.guard
    with torch.no_grad():
        next(iter(trainer.learner.model.parameters())).fill_(float("nan"))
    with pytest.raises(TrainingError, match="weights are not finite"):
        guard.skip("The loss.", trainer.learner.model.parameters())


def test_the_critic_has_a_guard_of_its_own(identity_options: dict[str, Any]) -> None:
    trainer = PPOTrainer(load_config({**identity_options, "algorithm": "ppo", "updates": 4}))
    critic: Any = trainer.critic
    real = critic._add_gradients

    def add(*args: Any) -> Any:
        return "values is not finite at 2 of 8 tokens." if trainer.update == 1 else real(*args)

    critic._add_gradients = add
    lines = metrics(trainer.run())
    assert [m["value_skipped_steps"] for m in lines] == [0.0, 1.0, 0.0, 0.0]
    assert [m["skipped_steps"] for m in lines] == [0.0] * 4


def test_a_run_without_trouble_counts_none(identity_options: dict[str, Any]) -> None:
    assert [m["skipped_steps"] for m in metrics(train(load_config(identity_options)))] == [0.0, 0.0]
    guard = StepGuard("policy", "")
    for _ in range(5):
        guard.skip("x", [])
        guard.done()
    assert (guard.in_a_row, guard.skipped) == (0, 5)
