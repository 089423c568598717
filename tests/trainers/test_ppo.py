"""PPO: values of the right states, learned, saved, and of use to the policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trajgym.errors import RewardError
from trajgym.trainers.config import load_config
from trajgym.trainers.critic import Critic, ValueModel
from trajgym.trainers.grpo import train
from trajgym.trainers.models import add_lora, load_model
from trajgym.trainers.ppo import PPOTrainer
from trajgym.trainers.ranks import Ranks
from trajgym.types import Action, Group, Observation, Step, StopReason, Task, TokenStream, Trajectory

CPU = torch.device("cpu")


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "efficiency/", "memory/"))}
        for line in lines
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = sorted((folder / "checkpoints").glob("update-*"))[-1]
    return load_file(next((newest / "model").glob("*.safetensors")))


def two_turns(first: int, second: int, rewards: tuple[float, float] = (0.0, 0.0)) -> Trajectory:
    """A prompt of two tokens, a turn of two, an observation of one, a turn of one."""
    ids = (1, 3, first, 2, 1, second)
    row = TokenStream(ids, (0, 0, 1, 1, 0, 1), (-1, -1, 0, 0, -1, 1), (0.0,) * 6)
    steps = (
        Step(Action("a"), Observation(), rewards[0]),
        Step(Action("b"), Observation(), rewards[1], terminated=True, stop_reason=StopReason.ANSWERED),
    )
    return Trajectory(Task("t", "", ""), (), steps, (row,))


@pytest.fixture
def critic(identity_options: dict[str, Any]) -> Critic:
    config = load_config({**identity_options, "algorithm": "ppo", "value_learning_rate": 1e-2, "value_clip": 10.0})
    model, _ = load_model(config.model)
    return Critic(model, config, ranks=Ranks(cpu=True, deadline=60), device=CPU)


def test_values_start_at_zero(critic: Critic) -> None:
    assert critic.token_values([two_turns(4, 5)]) == [[[0.0, 0.0], [0.0]]]


def test_a_value_is_that_of_the_state_before_the_token(critic: Critic) -> None:
    torch.nn.init.normal_(critic.model.head.weight)
    (base,), (other_last,), (other_first,) = (
        critic.token_values([two_turns(*pair)]) for pair in [(4, 5), (4, 6), (6, 5)]
    )
    assert base == other_last  # the last token was not written yet in any of these states
    assert base[0][0] == other_first[0][0]
    assert base[0][1] != other_first[0][1]
    assert base[1] != other_first[1]
    # Whatever stands beside it, and in whatever order.
    mixed = critic.token_values([two_turns(6, 5), two_turns(4, 5)])
    torch.testing.assert_close(mixed[1][0], base[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(mixed[0][0], other_first[0], atol=1e-6, rtol=1e-5)


def test_values_converge_to_what_comes(critic: Critic) -> None:
    batch = [two_turns(4, 5), two_turns(6, 5)]
    targets = [[[0.5, 0.5], [1.0]], [[0.5, 0.0], [0.0]]]
    ones = [[[1.0, 1.0], [1.0]], [[1.0, 1.0], [1.0]]]
    first: dict[str, float] = {}
    for _ in range(60):
        out = critic.learn(batch, targets, critic.token_values(batch), ones, progress=0.5)
        first = first or out
    assert first["value_explained"] == 0.0  # values of zero explain nothing
    assert out["value_explained"] > 0.99
    assert out["value_loss"] < 0.01 * first["value_loss"]
    for got, want in zip(critic.token_values(batch), targets, strict=True):
        torch.testing.assert_close(got, want, atol=0.05, rtol=0)


def test_states_without_a_weight_teach_nothing(critic: Critic) -> None:
    batch = [two_turns(4, 5)]
    before = {n: p.clone() for n, p in critic.model.named_parameters()}
    critic.learn(batch, [[[9.0, 9.0], [9.0]]], critic.token_values(batch), [[[0.0, 0.0], [0.0]]], progress=0.5)
    assert all(torch.equal(before[n], p) for n, p in critic.model.named_parameters())


def test_the_value_model_is_a_copy(digit_model: Path) -> None:
    model, _ = load_model(str(digit_model))
    value = ValueModel(model)
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in value.parameters()}
    adapted = ValueModel(add_lora(model, rank=2, alpha=4, targets=("q_proj",), seed=0))
    trained = {n for n, p in adapted.named_parameters() if p.requires_grad}
    assert {n.split(".")[0] for n in trained} == {"body", "head"}
    assert all("lora_" in n for n in trained if n.startswith("body"))


def test_credit_by_hand(identity_options: dict[str, Any]) -> None:
    options = {**identity_options, "algorithm": "ppo", "gamma": 0.5, "estimator_options": {"lam": 0.5}}
    trainer = PPOTrainer(load_config(options))
    torch.nn.init.constant_(trainer.critic.model.head.bias, 0.4)  # V = 0.4 everywhere
    member = two_turns(4, 5, rewards=(0.1, 1.0))
    group = Group(member.task, (member,))
    d0, d1 = 0.1 + 0.5 * 0.4 - 0.4, 1.0 - 0.4
    (advantages,) = trainer.credit([group])
    assert advantages == [pytest.approx([d0 + 0.25 * d1, 0.5 * d1])]
    assert trainer._judge([group]).targets == [[pytest.approx([d0 + 0.25 * d1 + 0.4] * 2), pytest.approx([d1 + 0.4])]]


def test_token_levels_by_hand(identity_options: dict[str, Any]) -> None:
    options = {**identity_options, "algorithm": "ppo", "value_levels": "bilevel", "token_lam": 0.0, "gamma": 1.0}
    trainer = PPOTrainer(load_config({**options, "estimator_options": {"lam": 1.0}}))
    torch.nn.init.constant_(trainer.critic.model.head.bias, 0.4)
    member = two_turns(4, 5, rewards=(0.1, 1.0))
    (advantages,) = trainer.credit([Group(member.task, (member,))])
    # The last token of a turn carries the turn's advantage, R − V; λ = 0 gives the one before the change of V, none.
    assert advantages == [[pytest.approx([0.0, 1.1 - 0.4]), pytest.approx([1.0 - 0.4])]]


@pytest.mark.parametrize("levels", ["turn", "bilevel"])
def test_the_identity_environment_is_solved(identity_options: dict[str, Any], levels: str) -> None:
    size = {"updates": 60, "groups_per_update": 128, "num_generations": 1, "slots": 128}
    options = {"algorithm": "ppo", "value_levels": levels, "value_learning_rate": 5e-3, "value_clip": 1.0}
    folder = train(load_config({**identity_options, **size, **options}))
    lines = metrics(folder)
    success = [m["success"] for m in lines]
    assert sum(success[:3]) / 3 < 0.5
    assert sum(success[-3:]) / 3 > 0.9
    assert {"value_loss", "value_explained"} <= lines[-1].keys()
    assert lines[0]["groups"] == 128


@pytest.mark.parametrize("lora", [False, True])
def test_stopped_and_resumed_equals_uninterrupted(
    identity_options: dict[str, Any], lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**identity_options, "algorithm": "ppo", "updates": 6, "save_every": 2, "kl_coef": 0.02, "minibatches": 2}
    options |= {"use_lora": True, "lora_targets": ["q_proj", "v_proj"], "value_epochs": 2} if lora else {}
    whole = train(load_config({**options, "name": "whole"}))
    trainer = PPOTrainer(load_config({**options, "name": "cut"}))
    real = trainer.improve

    def fails(played: Any, interrupt: Any) -> Any:
        if trainer.update == 3:
            raise RewardError("the judge is gone")
        return real(played, interrupt)

    monkeypatch.setattr(trainer, "improve", fails)
    with pytest.raises(RewardError):
        trainer.run()
    resumed = train(load_config({**options, "name": "cut", "resume": True}))
    assert metrics(resumed) == metrics(whole)
    left, right = weights(resumed), weights(whole)
    assert all(torch.equal(left[k], right[k]) for k in right)


def test_the_critic_may_begin_alone(identity_options: dict[str, Any], digit_model: Path) -> None:
    folder = train(load_config({**identity_options, "algorithm": "ppo", "updates": 2, "value_warmup": 2}))
    start = load_file(digit_model / "model.safetensors")
    assert all(torch.equal(v, start[k]) for k, v in weights(folder).items())
    first, second = metrics(folder)
    assert first["value_explained"] == 0.0 != second["value_explained"]


def test_recomputed_activations_change_nothing(identity_options: dict[str, Any]) -> None:
    runs = [
        train(load_config({**identity_options, "algorithm": "ppo", "name": str(on), "gradient_checkpointing": on}))
        for on in (False, True)
    ]
    for (k, a), b in zip(weights(runs[0]).items(), weights(runs[1]).values(), strict=True):
        torch.testing.assert_close(a, b, msg=k)
    assert metrics(runs[0])[-1]["value_loss"] == pytest.approx(metrics(runs[1])[-1]["value_loss"], rel=1e-4)
