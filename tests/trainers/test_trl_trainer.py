"""Real updates under TRL: its own trainer with our environments, and ours with an advantage for every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.policies import tiny_path
from trajgym.trainers.trl import EpisodeReward, StepGRPOTrainer, environment_factory, ready_tokenizer

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("_silent")]


@pytest.fixture
def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


def options(folder: Path, **kwargs: Any) -> GRPOConfig:
    return GRPOConfig(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": 96,
            "max_steps": 2,
            "learning_rate": 1e-3,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": [],
            "logging_steps": 1,
            "save_strategy": "no",
            "max_tool_calling_iterations": 3,
            "seed": 0,
            **kwargs,
        }
    )


def make(cls: Any, folder: Path, args: dict[str, Any] | None = None, reward: str = "dense", **kwargs: Any) -> Any:
    factory = environment_factory("ArithmeticTool-v0", difficulty=2, reward=reward, max_turns=4)
    tokenizer = ready_tokenizer(AutoTokenizer.from_pretrained(tiny_path()))
    if cls is GRPOTrainer:
        kwargs.setdefault("reward_funcs", EpisodeReward([tokenizer.eos_token_id]))
    return cls(
        AutoModelForCausalLM.from_pretrained(tiny_path(), dtype=torch.float32),
        args=options(folder, **(args or {})),
        train_dataset=factory.dataset(4),
        processing_class=tokenizer,
        environment_factory=factory,
        **kwargs,
    )


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters()])


def watched(trainer: Any) -> list[dict[str, Any]]:
    """Batches as they come out of generation, each with the episodes it was made from."""
    batches: list[dict[str, Any]] = []
    generate = trainer._generate_and_score_completions

    def keep(inputs: Any) -> Any:
        batch = generate(inputs)
        batches.append({**batch, "episodes": [(list(e.episode.rewards), e.episode) for e in trainer.environments]})
        return batch

    trainer._generate_and_score_completions = keep
    return batches


def test_two_updates_of_trls_own_trainer(tmp_path: Path) -> None:
    trainer = make(GRPOTrainer, tmp_path, reward="hybrid")
    batches, before = watched(trainer), weights(trainer)
    trainer.train()
    assert (weights(trainer) - before).abs().max() > 0
    logs = [log for log in trainer.state.log_history if "reward" in log]
    assert len(logs) == len(batches) == 2
    for log, batch in zip(logs, batches, strict=True):
        totals = [sum(rewards) for rewards, _ in batch["episodes"]]
        assert log["reward"] == log["rewards/episode_reward/mean"] == pytest.approx(sum(totals) / 8, abs=1e-5)
        assert log["episode/turns"] >= 1.0
        assert log["tools/call_frequency"] > 0.0
        assert batch["advantages"].shape == (8,)


@pytest.mark.parametrize(
    "estimator",
    ["return_to_go", pytest.param("anchor", marks=pytest.mark.slow), pytest.param("gae", marks=pytest.mark.slow)],
)
def test_two_updates_with_a_reward_for_every_step(tmp_path: Path, estimator: str) -> None:
    trainer = make(StepGRPOTrainer, tmp_path, estimator=estimator, gamma=0.9)
    batches, before = watched(trainer), weights(trainer)
    trainer.train()
    assert (weights(trainer) - before).abs().max() > 0
    logs = [log for log in trainer.state.log_history if "reward" in log]
    assert len(logs) == len(batches) == 2
    varied = 0
    for log, batch in zip(logs, batches, strict=True):
        totals = [sum(rewards) for rewards, _ in batch["episodes"]]
        assert log["reward"] == pytest.approx(sum(totals) / 8, abs=1e-5)
        mask = batch["completion_mask"] * batch["tool_mask"]
        assert batch["advantages"].shape == mask.shape
        assert batch["advantages"][mask == 0].abs().sum() == 0.0
        varied += sum(len(row[row != 0].unique()) > 1 for row in batch["advantages"])
    assert varied > 0


def test_the_loss_is_trls_where_the_credit_is(tmp_path: Path) -> None:
    # Same seed, same completions: TRL's own advantages of one batch against ours.
    credit = {"estimator": "trajectory", "estimator_options": {"baseline": "mean"}}
    both = []
    for cls, more in ((GRPOTrainer, {}), (StepGRPOTrainer, credit)):
        trainer = make(cls, tmp_path, reward="sparse", **more)
        torch.manual_seed(1)
        rows = [row for row in trainer.train_dataset for _ in range(4)][:8]
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        both.append((trainer, trainer._generate_and_score_completions(rows)))
    (_, theirs), (trainer, ours) = both
    assert torch.equal(theirs["completion_ids"], ours["completion_ids"])
    assert theirs["advantages"].abs().max() > 0
    mask = ours["completion_mask"] * ours["tool_mask"]
    torch.testing.assert_close(ours["advantages"], theirs["advantages"][:, None] * mask, rtol=1e-6, atol=1e-7)
    with torch.no_grad():
        old, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.cat([ours["prompt_ids"], ours["completion_ids"]], 1),
            torch.cat([ours["prompt_mask"], ours["completion_mask"]], 1),
            mask.shape[1],
        )
    # Ratios that are not 1, so that clipping has something to do.
    old += 0.4 * torch.sin(torch.arange(mask.numel()).view(mask.shape))
    for loss_type in ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo"):
        trainer.loss_type = loss_type
        results = []
        for batch in (theirs, ours):
            trainer.model.zero_grad()
            loss = trainer.compute_loss(trainer.model, {**batch, "old_per_token_logps": old})
            loss.backward()
            gradient = torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])
            results.append((loss.detach(), gradient))
        (loss, gradient), (our_loss, our_gradient) = results
        assert gradient.norm() > 0
        torch.testing.assert_close(our_loss, loss, rtol=1e-6, atol=1e-8)
        assert (our_gradient - gradient).norm() / gradient.norm() < 1e-6, loss_type


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_stay_with_their_tokens(tmp_path: Path, scale: str) -> None:
    # Two slices of a shuffled generation, each accumulated in two parts, and gone over twice.
    args = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "num_iterations": 2,
        "max_steps": 4,
        "scale_rewards": scale,
    }
    trainer = make(StepGRPOTrainer, tmp_path, args)
    batches, seen = watched(trainer), []
    compute = trainer.compute_loss

    def keep(model: Any, inputs: Any, **kwargs: Any) -> Any:
        seen.append(inputs)
        return compute(model, inputs, **kwargs)

    trainer.compute_loss = keep
    before = weights(trainer)
    trainer.train()
    assert (weights(trainer) - before).abs().max() > 0
    (batch,) = batches
    assert len(seen) == 8
    made = {tuple(ids.tolist()): row for ids, row in zip(batch["completion_ids"], batch["advantages"], strict=True)}
    for inputs in seen:
        for ids, row in zip(inputs["completion_ids"], inputs["advantages"], strict=True):
            assert torch.equal(row, made[tuple(ids.tolist())])


@pytest.mark.slow
def test_other_rewards_are_paid_with_the_last_step(tmp_path: Path) -> None:
    def polite(completions: Any, **columns: Any) -> list[float]:
        return [float(i % 2) for i in range(len(completions))]

    trainer = make(StepGRPOTrainer, tmp_path, {"max_steps": 1}, reward="sparse", reward_funcs=polite)
    assert [type(f).__name__ for f in trainer.reward_funcs] == ["EpisodeReward", "function"]
    paid: list[Any] = []
    steps_paid = trainer._steps_paid
    trainer._steps_paid = lambda turns: paid.extend(steps_paid(turns)) or paid
    batches = watched(trainer)
    trainer.train()
    for i, (one, (rewards, _)) in enumerate(zip(paid, batches[0]["episodes"], strict=True)):
        assert one.rewards == [*rewards[:-1], rewards[-1] + i % 2]


def test_rounds_follow_the_environment(tmp_path: Path) -> None:
    trainer = make(StepGRPOTrainer, tmp_path, {"max_tool_calling_iterations": None})
    assert trainer.max_tool_calling_iterations == 3
    (reward,) = trainer.reward_funcs
    assert trainer._tokenizer.eos_token_id in reward.end_ids


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level='token'"),
        ({"loss_type": "vespo"}, "bnpo, cispo, dapo"),
        ({"loss_type": "luspo"}, "bnpo, cispo, dapo"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "sum_then_normalize"),
        ({"off_policy_mask_threshold": 0.5}, "None"),
    ],
)
def test_what_needs_one_advantage_is_refused(tmp_path: Path, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StepGRPOTrainer("no/model", args=options(tmp_path, **args))


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"estimator": "return_to_come"}, UnknownNameError, "return_to_go"),
        ({"estimator_options": {"lam": 1.0}}, ConfigError, "'lam'"),
        ({"estimator_options": {"baseline": "median"}}, UnknownNameError, "absorbing"),
        ({"gamma": 1.5}, ConfigError, "gamma"),
        ({"estimator": "vine"}, ConfigError, "values.*TRL has none"),
        ({"estimator": "anchor"}, ConfigError, "environment_factory"),
    ],
)
def test_estimators_are_tried_out_first(tmp_path: Path, kwargs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        StepGRPOTrainer("no/model", args=options(tmp_path), **kwargs)


def test_an_episode_is_paid_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="more than one EpisodeReward"):
        make(StepGRPOTrainer, tmp_path, reward_funcs=[EpisodeReward([1]), EpisodeReward([2])])
    for name in ("gamma", "name"):
        with pytest.raises(ConfigError, match=f"holds '{name}'"):
            make(StepGRPOTrainer, tmp_path, estimator_options={name: 1.0})
