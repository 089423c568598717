"""Episodes that are played while the update before is learned: by which weights, with which result, what survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trajgym.errors import ConfigError, RewardError, TrainingError
from trajgym.trainers import learner
from trajgym.trainers.ahead import Ahead, check_alone, twin
from trajgym.trainers.batch import make_batch
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import GRPOTrainer, train
from trajgym.trainers.interrupt import Interrupted
from trajgym.trainers.loss import policy_loss
from trajgym.trainers.models import add_lora, load_model
from trajgym.trainers.player import Played
from trajgym.trainers.ppo import PPOTrainer
from trajgym.trainers.token_logprobs import token_logprobs

AHEAD: dict[str, Any] = {"rollout_ahead": 1, "sampler_correction": True}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "lora": {"use_lora": True, "kl_coef": 0.1, "lora_rank": 4, "lora_targets": ["q_proj", "down_proj"]},
    "bfloat16": {"dtype": "bfloat16", "kl_coef": 0.02, "kl_control": "auto", "minibatches": 2},
    "recomputed": {"gradient_checkpointing": True, "kl_coef": 0.02, "kl_form": "k1_in_reward"},
    "dynamic": {"dynamic_sampling": 2, "advantage_scale": "ema_std"},
    "schedule": {"reward_schedule": {"accuracy": [[0.0, 1.0], [1.0, 3.0]]}, "lr_schedule": "linear"},
    "vine": {"estimator": "vine", "vine_rollouts": 2, "env": "TestTwice-v0", "max_episode_tokens": 48},
    "ppo": {"algorithm": "ppo", "minibatches": 2},
}
# The others cost seconds each.
SOME = [pytest.param(s, marks=() if s in ("plain", "lora", "dynamic") else pytest.mark.slow) for s in SHAPES]


def made(options: dict[str, Any]) -> GRPOTrainer:
    config = load_config(options)
    return (PPOTrainer if config.algorithm == "ppo" else GRPOTrainer)(config)


@pytest.fixture
def options(identity_options: dict[str, Any]) -> dict[str, Any]:
    return {**identity_options, **AHEAD, "updates": 4}


def test_episodes_are_played_by_the_weights_of_one_update_ago(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, left_behind: Callable[[Path], Any]
) -> None:
    trainer = made({**options, "updates": 5, "learning_rate": 2e-2})
    began: list[Any] = []  # the weights that each update began with
    batches: list[Played] = []
    real = trainer.improve

    def look(played: Played, interrupt: Any) -> Any:
        began.append(twin(trainer.learner.model))
        batches.append(played)
        return real(played, interrupt)

    monkeypatch.setattr(trainer, "improve", look)
    metrics, _, _ = left_behind(trainer.run())
    assert [m["staleness"] for m in metrics] == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert all(m["capped_share"] < 1.0 for m in metrics)
    assert metrics[0]["sampler_gap"] < 1e-5 < 1e-2 < metrics[1]["sampler_gap"]
    for update, played in enumerate(batches):
        credit = [[1.0] * len(t.steps) for t in played.trajectories]
        (micro,) = make_batch(played.trajectories, credit, normalizer=1.0, pad_id=0, max_tokens=1 << 20).micro
        with torch.no_grad():
            gaps = [(token_logprobs(m, micro, 1.0)[0] - micro.sampler_logp).abs().max().item() for m in began]
        weights = max(0, update - 1)
        assert gaps[weights] < 1e-4
        assert all(gap > 1e-2 for other, gap in enumerate(gaps) if other != weights)


def test_the_kl_of_tokens_is_weighed_as_they_are(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, left_behind: Callable[[Path], Any]
) -> None:
    """Where Z asks for the mean of each trajectory, by both weights."""
    seen: list[dict[str, Any]] = []

    def look(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs)
        return policy_loss(*args, **kwargs)

    monkeypatch.setattr(learner, "policy_loss", look)
    options |= {"updates": 2, "kl_coef": 0.1, "normalizer": "sequence", "learning_rate": 2e-2, "sampler_cap": 1.05}
    metrics, _, _ = left_behind(train(load_config(options)))
    first, second = seen  # one micro-batch each
    torch.testing.assert_close(first["weights"], torch.ones_like(first["weights"]))
    assert second["weights"].max() == torch.tensor(1.05)
    share = (second["weights"] == 1.05).float().mean()
    assert share > 0.0
    assert metrics[1]["capped_share"] == pytest.approx(share.item())
    rows = second["kl_weights"] / second["weights"]
    assert rows.min() < 1.0  # one over the tokens of the trajectory
    torch.testing.assert_close(1.0 / rows, (1.0 / rows).round())


@pytest.mark.parametrize("shape", SOME)
def test_the_result_depends_on_the_seed_and_not_on_who_is_faster(
    options: dict[str, Any],
    shape: str,
    monkeypatch: pytest.MonkeyPatch,
    check_same: Callable[[Path, Path], None],
    left_behind: Callable[[Path], Any],
) -> None:
    folders = []
    for name, slow in [("learner", "improve"), ("rollout", "play")]:
        trainer = made({**options, **SHAPES[shape], "name": name})
        real = getattr(trainer, slow)

        def waits(*args: Any, real: Any = real) -> Any:
            time.sleep(0.05)
            return real(*args)

        monkeypatch.setattr(trainer, slow, waits)
        if trainer.ahead is not None:
            trainer.ahead._play = trainer.play
        folders.append(trainer.run())
    check_same(*folders)
    (metrics, _, _) = left_behind(folders[0])
    assert [m["staleness"] for m in metrics] == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("shape", SOME)
@pytest.mark.parametrize("where", ["learning", "playing"])
def test_an_error_saves_what_a_resumed_run_needs(
    options: dict[str, Any],
    shape: str,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    check_same: Callable[[Path, Path], None],
) -> None:
    options |= {**SHAPES[shape], "save_every": 100}
    trainer = made({**options, "name": "broken"})
    failing = "improve" if where == "learning" else "play"
    real = getattr(trainer, failing)

    def fails(first: Any, interrupt: Any) -> Any:
        if (trainer.update if where == "learning" else first) == 2:
            raise RewardError("the judge is gone")
        return real(first, interrupt)

    monkeypatch.setattr(trainer, failing, fails)
    assert trainer.ahead is not None
    trainer.ahead._play = trainer.play
    with pytest.raises(RewardError, match="the judge is gone"):
        trainer.run()
    assert not [t for t in threading.enumerate() if t.name == "trajgym-rollout"]
    assert [p.name for p in trainer.folder.complete()] == ["update-000002"]
    resumed = train(load_config({**options, "name": "broken", "resume": True}))
    check_same(resumed, train(load_config({**options, "name": "straight"})))


@pytest.mark.parametrize("moment", ["before the first step", "after it", "while waiting"])
def test_ctrl_c_stops_both_and_can_be_resumed(
    options: dict[str, Any], moment: str, monkeypatch: pytest.MonkeyPatch, check_same: Callable[[Path, Path], None]
) -> None:
    options |= {"save_every": 100, "minibatches": 2}
    trainer = made({**options, "name": "stopped"})
    assert trainer.ahead is not None
    if moment == "while waiting":
        real_play = trainer.play

        def play(update: int, interrupt: Any) -> Played:
            if update == 2:
                while trainer.update < 2:  # it is still learning
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)
                while True:  # a rollout without end
                    time.sleep(0.01)
                    interrupt.check()
            return real_play(update, interrupt)

        trainer.ahead._play = play
    else:
        owner: Any = trainer.learner if moment == "after it" else trainer
        name = "_step" if moment == "after it" else "improve"
        real = getattr(owner, name)
        pressed: list[int] = []

        def press(*args: Any) -> Any:
            if trainer.update == 1 and not pressed:
                pressed.append(1)  # a second one would stop at once
                os.kill(os.getpid(), signal.SIGINT)
            return real(*args)

        monkeypatch.setattr(owner, name, press)
    done = 1 if moment == "before the first step" else 2
    with pytest.raises(Interrupted, match=rf"after {done} of 4 updates.*--resume"):
        trainer.run()
    assert not [t for t in threading.enumerate() if t.name == "trajgym-rollout"]
    resumed = train(load_config({**options, "name": "stopped", "resume": True}))
    check_same(resumed, train(load_config({**options, "name": "straight"})))


KILLED = """
import itertools, json, os, signal, sys
sys.path.insert(0, {tests!r})
import conftest
from trajgym.policies.hf import HFSampler
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train

calls, real = itertools.count(1), HFSampler.step

def step(self):
    if next(calls) == {count}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self)

HFSampler.step = step
train(load_config(json.loads({options!r})))
"""


def test_killed_and_resumed_equals_uninterrupted(
    options: dict[str, Any], check_same: Callable[[Path, Path], None]
) -> None:
    """Killed in a rollout that runs beside the learning; test_kills.py does the same at many moments."""
    options |= {"updates": 8, "save_every": 3, "kl_coef": 0.02, "lr_schedule": "linear"}
    whole = train(load_config({**options, "name": "whole"}))
    killed = {**options, "name": "killed"}
    code = KILLED.format(tests=str(Path(__file__).parent), count=40, options=json.dumps(killed))
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr
    folder = whole.with_name("killed")
    assert 3 <= (folder / "metrics.jsonl").read_text().count("\n") < 8
    saved = sorted(p.name for p in (folder / "checkpoints").glob("update-*"))  # the learning may be saving the sixth
    assert saved[0] == "update-000003"
    assert saved[1:] in ([], ["update-000006.partial"], ["update-000006"])
    check_same(train(load_config({**killed, "resume": True})), whole)


def test_a_finished_run_goes_on_as_the_longer_one(
    options: dict[str, Any], check_same: Callable[[Path, Path], None]
) -> None:
    train(load_config({**options, "updates": 2, "name": "short"}))
    longer = train(load_config({**options, "updates": 5, "name": "short", "resume": True}))
    check_same(longer, train(load_config({**options, "updates": 5, "name": "straight"})))


def test_the_schedule_of_rewards_belongs_to_the_update_whose_episodes_are_played(
    options: dict[str, Any], left_behind: Callable[[Path], Any]
) -> None:
    metrics, _, played = left_behind(train(load_config({**options, **SHAPES["schedule"], "log_trajectories": 32})))
    assert [m["weight/accuracy"] for m in metrics] == [1.0, 1.5, 2.0, 2.5]
    for line, trajectories in zip(metrics, played, strict=True):
        assert {t.total_reward for t in trajectories} == {0.0, line["weight/accuracy"]}


def test_without_it_nothing_is_different(identity_options: dict[str, Any], left_behind: Callable[[Path], Any]) -> None:
    trainer = made(identity_options)
    assert trainer.ahead is None
    folder = trainer.run()
    assert trainer.policy.sampler._model is trainer.learner.model  # type: ignore[attr-defined]
    assert "ahead" not in torch.load(sorted((folder / "checkpoints").iterdir())[-1] / "trainer.pt")
    assert not {"staleness", "time/wait", "capped_share"} & left_behind(folder)[0][-1].keys()


def test_time_is_told_of_what_was_played_for_the_update(options: dict[str, Any]) -> None:
    folder = train(load_config(options))
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        parts = line["time/generation"] + line["time/environment"] + line["time/lockstep"]
        assert 0.0 < parts <= line["time/rollout"]
        assert line["time/wait"] <= line["time/update"]
        assert 0.0 < line["efficiency/useful_token_share"] <= 1.0


def test_a_twin_has_trained_weights_of_its_own_and_shares_the_frozen_ones(digit_model: Path) -> None:
    model, _ = load_model(str(digit_model))
    other = twin(model)
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in other.parameters()}
    adapted = add_lora(model, rank=2, alpha=4, targets=("q_proj",), seed=0)
    other = dict(twin(adapted).named_parameters())
    for name, p in adapted.named_parameters():
        assert (other[name] is p) == (not p.requires_grad)
        assert torch.equal(other[name], p)
    assert sum(p.requires_grad for p in adapted.parameters()) == 4
    assert not any(p.requires_grad for p in other.values())


def test_weights_of_another_model_are_refused(digit_model: Path) -> None:
    model, _ = load_model(str(digit_model))
    ahead = Ahead(model, twin(model), None, None, None)  # type: ignore[arg-type]
    state = ahead.state_dict(0)
    del state["weights"]["lm_head.weight"]
    with pytest.raises(TrainingError, match=r"lm_head\.weight"):
        ahead.load_state_dict(state)


def test_what_cannot_be_combined_is_refused(identity_options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="so it needs sampler_correction: true"):
        load_config({**identity_options, "rollout_ahead": 1})
    with pytest.raises(ConfigError, match=r"rollout_ahead: .* got 2"):
        load_config({**identity_options, **AHEAD, "rollout_ahead": 2})
    with pytest.raises(ConfigError, match="needs one process, and this launch has 2"):
        check_alone(SimpleNamespace(count=2))  # type: ignore[arg-type]
