"""Runs whose micro-batches are trees learn what runs of separate rows learn; who has no gradient is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trajgym.errors import ConfigError
from trajgym.trainers import learner as module
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import GRPOTrainer, train
from trajgym.types import Action, Group, Observation, Step, Task, TokenStream, Trajectory


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = sorted((folder / "checkpoints").glob("update-*"))[-1]
    found: dict[str, torch.Tensor] = load_file(next((newest / "model").glob("*.safetensors")))
    return found


def metrics(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(("time/", "efficiency/", "memory/"))} for line in lines]


@pytest.mark.parametrize(
    "options",
    [
        {"kl_coef": 0.05, "inner_epochs": 2, "minibatches": 2, "importance": "trajectory"},
        {"kl_coef": 0.05, "use_lora": True, "lora_rank": 4, "gradient_checkpointing": True},
        {"kl_coef": 0.05, "kl_form": "k1_in_reward", "normalizer": "sequence"},
        {"algorithm": "ppo", "value_levels": "bilevel", "value_epochs": 2},
    ],
    ids=["grpo", "lora", "in_reward", "ppo"],
)
def test_both_layouts_learn_the_same(identity_options: dict[str, Any], options: dict[str, Any]) -> None:
    common = {**identity_options, **options, "env": "TestTwice-v0", "max_episode_tokens": 48, "microbatch_tokens": 200}
    # Small steps: AdamW's first ones are sign-like, and would blow rounding up where a gradient is 0.
    common |= {"learning_rate": 1e-5, "weight_decay": 0.0}
    folders = [train(load_config({**common, "share_prefix": share, "name": share})) for share in ("auto", "off")]
    for tree, rows in zip(*map(metrics, folders), strict=True):
        assert tree == pytest.approx(rows, rel=1e-4, abs=1e-6)
    tree, rows = map(weights, folders)
    assert tree.keys() == rows.keys()
    for name in rows:
        torch.testing.assert_close(tree[name], rows[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("share", "shared"), [("auto", True), ("off", False)])
def test_the_log_says_which_way_it_goes(
    identity_options: dict[str, Any], capsys: pytest.CaptureFixture[str], share: str, shared: bool
) -> None:
    trainer = GRPOTrainer(load_config({**identity_options, "updates": 1, "share_prefix": share}))
    assert trainer.learner.share == shared
    trainer.run()
    said = "computed once" if shared else "computed for each trajectory, as share_prefix says"
    assert f"Shared beginnings: {said}" in capsys.readouterr().out


def test_a_model_that_cannot_share_trains_as_ever(
    identity_options: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "why_not_shared", lambda model, longest: "its legs are too short")
    trainer = GRPOTrainer(load_config({**identity_options, "updates": 1}))
    assert trainer.learner.share is False
    trainer.run()
    assert "each trajectory, since its legs are too short." in capsys.readouterr().out


def test_another_value_is_refused(identity_options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="share_prefix"):
        load_config({**identity_options, "share_prefix": "always"})


def group(name: str, count: int = 3) -> Group:
    task = Task(name, "", "")
    rows = [TokenStream((1, 3, 4, 5 + k, 6), (0, 0, 1, 1, 1), (-1, -1, 0, 0, 0), (0.0,) * 5) for k in range(count)]
    step = Step(Action(""), Observation())
    return Group(task, tuple(Trajectory(task, (), (step,), (row,)) for row in rows))


NORMALIZERS = {"constant": 6 * 6.0, "token": 6 * 3.0, "turn": 6.0, "sequence": 6.0}


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("share", ["auto", "off"])
def test_trajectories_without_an_advantage_count_in_z_alone(
    identity_options: dict[str, Any], share: str, normalizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**identity_options, "share_prefix": share, "normalizer": normalizer}
    learner = GRPOTrainer(load_config(options)).learner
    groups = [group("a"), group("b")]
    credit: Any = [[[0.5], [0.0], [-0.5]], [[0.0], [0.0], [0.0]]]
    batch = learner.lay_out(groups, credit)
    assert {i for micro in batch.micro for i, _ in micro.places} == {0, 1}  # two of six
    assert (batch.policy_tokens, batch.normalizer) == (2 * 3, NORMALIZERS[normalizer])

    gradients = []
    for everyone in (False, True):
        if everyone:
            monkeypatch.setattr(learner, "_acting", lambda credit: [True] * 6)
            batch = learner.lay_out(groups, credit)
            assert batch.policy_tokens == 6 * 3
        sums = dict.fromkeys(("loss", "kl", "entropy", "clip", "gap"), 0.0)
        learner.optimizer.zero_grad()
        assert learner._add_gradients(batch.micro, [None] * len(batch.micro), batch.normalizer, sums, None) == ""
        gradients.append(torch.cat([p.grad.flatten() for p in learner.model.parameters()]))
    assert gradients[0].norm() > 0
    assert (gradients[0] - gradients[1]).norm() < 1e-6 * gradients[1].norm()


def test_with_a_kl_everybody_stays(identity_options: dict[str, Any]) -> None:
    learner = GRPOTrainer(load_config({**identity_options, "kl_coef": 0.1})).learner
    batch = learner.lay_out([group("a")], [[[0.5], [0.0], [-0.5]]])
    assert batch.policy_tokens == 3 * 3


def test_who_is_left_out_is_counted(identity_options: dict[str, Any]) -> None:
    folder = train(load_config({**identity_options, "updates": 3}))
    played = identity_options["groups_per_update"] * identity_options["num_generations"]
    for line in metrics(folder):
        # 1 or 0 is earned, so the baseline of a group is met only where all earn alike.
        assert line["skipped_trajectories"] == pytest.approx(line["no_signal_share"] * played)
    assert any(line["skipped_trajectories"] for line in metrics(folder))


def test_shared_beginnings_are_processed_once(identity_options: dict[str, Any]) -> None:
    """Four members with five tokens each, of which the last predicts nothing: 4 × 5 padded, 3 + 4 in a tree."""
    counts = {}
    for share in ("auto", "off"):
        trainer = GRPOTrainer(load_config({**identity_options, "share_prefix": share, "name": share}))
        before = trainer.learner.processed
        four = replace(group("a", 4))
        batch = trainer.learner.lay_out([four], [[[0.5], [-0.5], [0.25], [-0.25]]])
        for micro in batch.micro:
            trainer.learner.logprobs(micro)
        counts[share] = trainer.learner.processed - before
    assert counts == {"auto": 3 + 4, "off": 4 * 5}
