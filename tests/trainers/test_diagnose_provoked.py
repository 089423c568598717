"""Each trouble, provoked in a real tiny run, is found in what the run has logged. A run takes seconds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trajgym.envs.tools import ToolFailure, tool
from trajgym.errors import EnvironmentFault, TrainingError
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.diagnose import Finding, diagnose, explain_error
from trajgym.trainers.diagnose_logs import read_run
from trajgym.trainers.grpo import train

pytestmark = pytest.mark.slow


def _right(step: Any, task: Any, history: Any) -> float:
    return float(step.action.text.startswith(task.answer))


def _loud(step: Any, task: Any, history: Any) -> float:
    return float(step.action.text.startswith("!"))


def _long(step: Any, task: Any, history: Any) -> float:
    return len(step.action.text) / 10


def _quiet_and_right(step: Any, task: Any, history: Any) -> float:
    return _right(step, task, history) * (0.1 if "!" in step.action.text else 1.0)


def _exclaims(step: Any, task: Any, history: Any) -> float:
    return float("!" in step.action.text)


def _chance(step: Any, task: Any, history: Any) -> float:
    return float(np.random.default_rng(len(step.action.text) + sum(map(ord, step.action.text))).normal())


class _Fades:
    """Pays for the right digit until it has been asked so often; then for something else."""

    def __init__(self, after: int, then: Any) -> None:
        self._left, self._then = after, then

    def __call__(self, step: Any, task: Any, history: Any) -> float:
        self._left -= 1
        return _right(step, task, history) if self._left > 0 else float(self._then(step, task, history))


def _breaks(step: Any, task: Any, history: Any) -> float:
    if step.action.text.startswith("1"):
        raise EnvironmentFault("the judge is gone")
    return _right(step, task, history)


@pytest.fixture
def found(identity_options: dict[str, Any]) -> Any:
    """Run with these options and return what is found afterwards, by rule."""

    def run(**options: Any) -> dict[str, Finding]:
        reward = options.pop("reward", None)
        if reward is not None:
            options["env_kwargs"] = {"reward": reward, **options.get("env_kwargs", {})}
        config = GRPOConfig(**{**identity_options, **options})
        log = read_run(train(config))
        assert len(log.rows) == config.updates
        return {finding.rule: finding for finding in diagnose(log.rows, config.plain())}

    return run


def test_nothing_moves(found: Any) -> None:
    rules = found(learning_rate=1e-9, kl_coef=0.05, updates=30, num_generations=2)
    assert {"kl_frozen", "reward_flat", "no_signal", "rate_small"} <= set(rules)


def test_the_policy_runs_away_and_becomes_sure(found: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rules = found(updates=40, kl_coef=1e-4, reward={"loud": (_loud, 1.0)})
    assert {"kl_explosion", "kl_watch", "entropy_collapse", "advantages_zero"} <= set(rules)
    assert "[kl_explosion]" in capsys.readouterr().out  # it was told while it happened


def test_reward_without_success_and_answers_nobody_can_read(found: Any) -> None:
    fades = _Fades(25 * 32, lambda *seen: _right(*seen) + 3 * _exclaims(*seen) * (1 - _right(*seen)))
    rules = found(updates=80, reward={"digit": (fades, 1.0)}, env_threads=1)
    assert {"reward_hacking", "unreadable_answers"} <= set(rules)


def test_length_that_pays(found: Any) -> None:
    rules = found(updates=40, reward={"long": (_long, 1.0)}, max_turn_tokens=40, max_episode_tokens=60)
    assert {"length_hacking", "cut_turns", "truncation"} <= set(rules)


def test_the_form_gets_lost(found: Any) -> None:
    reward = {"accuracy": (_quiet_and_right, 1.0), "format": (_exclaims, 0.02)}
    assert "format_lost" in found(updates=60, reward=reward)


def test_a_reward_that_falls(found: Any) -> None:
    fades = _Fades(30 * 32, lambda *seen: 0.2 * (1 - _right(*seen)))
    assert "reward_falls" in found(updates=50, reward={"right": (fades, 1.0)}, env_threads=1)


def test_nothing_pays(found: Any) -> None:
    rules = found(env="TestNothing-v0", updates=4)
    assert rules["advantages_zero"].severity == "serious"


def test_a_reward_far_too_large_or_small(found: Any, identity_options: dict[str, Any]) -> None:
    assert "grad_explosion" in found(reward={"right": (_right, 1e5)}, updates=4)
    identity_options["name"] = "small"
    assert "grad_vanishing" in found(reward={"right": (_right, 1e-4)}, updates=4, learning_rate=1e-6)


def test_gradients_that_are_no_numbers(found: Any) -> None:
    with pytest.raises(TrainingError) as raised:
        found(reward={"right": (_right, 1e25)}, updates=4)
    finding = explain_error(raised.value, {})
    assert finding is not None
    assert finding.rule == "not_a_number"


def test_cold_samples_are_all_the_same(found: Any) -> None:
    rules = found(temperature=1e-3, updates=4)
    assert {"greedy_sampling", "advantages_zero"} <= set(rules)


def test_faults_of_the_machinery(found: Any) -> None:
    rules = found(reward={"right": (_breaks, 1.0)}, updates=4)
    assert "EnvironmentFault" in rules["faults"].evidence


def test_steps_that_are_cut(found: Any) -> None:
    assert "clipping" in found(inner_epochs=8, learning_rate=0.03, updates=5)


def test_a_value_model_that_cannot_learn(found: Any) -> None:
    rules = found(algorithm="ppo", reward={"chance": (_chance, 1.0)}, updates=22, learning_rate=1e-6)
    assert "value_model" in rules


def test_a_long_prompt_is_overhead(found: Any) -> None:
    many = {"num_generations": 64, "groups_per_update": 1, "slots": 4}  # who all have the same prompt before them
    rules = found(env_kwargs={"system": "0123" * 12}, max_episode_tokens=63, max_turn_tokens=2, updates=4, **many)
    assert "padding" in rules


def test_memory_that_runs_out() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 44, dtype=torch.float64)
    finding = explain_error(raised.value, GRPOConfig(updates=1).plain())
    assert finding is not None
    assert finding.rule == "out_of_memory"


def _silent(step: Any, task: Any, history: Any) -> float:
    return -float(len(step.action.calls))


TOOLS = {"model": "tiny", "env": "ArithmeticTool-v0", "max_turn_tokens": 24, "max_episode_tokens": 400}


def test_tools_that_are_punished(found: Any) -> None:
    rules = found(**TOOLS, reward={"silent": (_silent, 1.0)}, updates=12, learning_rate=3e-3)
    assert "tools_die" in rules


@tool
def calculator(expression: str) -> str:
    """Compute nothing.

    Args:
        expression: Whatever.
    """
    raise ToolFailure("unavailable", "there is no calculator today")


@tool
def oracle(question: str) -> str:
    """Say nothing.

    Args:
        question: Whatever.
    """
    return question


def test_a_tool_that_fails(found: Any) -> None:
    assert "tool_errors" in found(**TOOLS, env_kwargs={"tools": [calculator]}, updates=4, learning_rate=1e-6)


def test_a_tool_that_is_not_there(found: Any) -> None:
    rules = found(**TOOLS, env_kwargs={"tools": [oracle]}, updates=4, learning_rate=1e-6)
    assert {"unknown_tools", "call_errors"} <= set(rules)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize(
    ("rate", "answers", "rule"),
    [
        (1e-12, "0123" * 36, "loss_flat"),
        (5e-3, "0123" * 18 + "".join(random.Random(0).choices("0123", k=72)), "loss_rises"),  # nothing to learn there
    ],
)
def test_supervised_runs_by_trl(digit_model: Path, tmp_path: Path, rate: float, answers: str, rule: str) -> None:
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl")
    rows = [{"prompt": question, "completion": answer} for question, answer in zip("0123" * 36, answers, strict=True)]
    options = trl.SFTConfig(
        output_dir=str(tmp_path), max_steps=36, logging_steps=1, save_steps=36, learning_rate=rate, use_cpu=True,
        lr_scheduler_type="constant", report_to=[], per_device_train_batch_size=4, disable_tqdm=True,
        train_sampling_strategy="sequential",
    )  # fmt: skip
    trl.SFTTrainer(model=str(digit_model), args=options, train_dataset=datasets.Dataset.from_list(rows)).train()
    log = read_run(tmp_path)
    assert log.kind == "trl"
    assert len(log.rows) == 36
    assert rule in {finding.rule for finding in diagnose(log.rows, log.options)}
