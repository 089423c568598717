"""The reward over a run: its weights follow the progress, and a resumed run pays what the whole one would have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from safetensors.torch import load_file

from trajgym.envs.base import ToolEnv
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.evaluation.records import read_trajectories
from trajgym.rewards import Settled, Shaped, accuracy
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import GRPOTrainer, train
from trajgym.trainers.reward_plan import RewardPool, reward_plan
from trajgym.types import Step, Task

FADING = [[0.0, 1.0], [0.5, 0.0]]


def brief(step: Step, task: Task, history: Sequence[Step]) -> float:
    return float(len(step.action.text) < 3)


def right(step: Step, task: Task, history: Sequence[Step]) -> float:
    return float(step.action.text.startswith(task.answer))


TERMS = {"accuracy": (right, 1.0), "brief": (brief, 0.5)}


def environment(**terms: Any) -> ToolEnv:
    return ToolEnv([Task("t", "48 + 24?", "72")], reward=terms or TERMS)


def options(**values: Any) -> Any:
    return load_config({"updates": 4, **values})


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_plan_is_the_environments_rubric_with_the_runs_options() -> None:
    env = environment(accuracy=(accuracy, 1.0), shaped=(Shaped(lambda task, steps: 1.0), 0.5))
    plan = reward_plan(env, options(gamma=0.9, reward_schedule={"shaped": FADING}))
    assert plan is not None
    assert plan.at(0.25).weights == {"accuracy": 1.0, "shaped": 0.5}
    assert plan["shaped"][0].gamma == 0.9  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("schedule", "error", "message"),
    [
        ({"brif": FADING}, UnknownNameError, "Did you mean 'brief'"),
        ({"brief": []}, ConfigError, "schedule is a list of pairs"),
        ({"brief": [[0.5, 1.0], [0.2, 1.0]]}, ConfigError, "must increase"),
        ({"brief": 3}, ConfigError, "reward_schedule"),
    ],
)
def test_wrong_schedules_are_named(schedule: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        reward_plan(environment(), options(reward_schedule=schedule))


def test_a_wrong_plan_is_found_before_the_model_is_loaded(identity_options: dict[str, Any]) -> None:
    kwargs = {"reward": {"accuracy": (right, 1.0), "advance": (Settled(brief, 0.5), 1.0)}}
    with pytest.raises(ConfigError, match=r"gamma=0\.5 and the run 1"):
        GRPOTrainer(load_config({**identity_options, "env_kwargs": kwargs, "model": "/nowhere"}))


def test_other_environments_have_no_plan() -> None:
    env = gymnasium.make("CartPole-v1")
    assert reward_plan(env, options()) is None  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="reward_schedule needs a reward with named terms"):
        reward_plan(env, options(reward_schedule={"brief": FADING}))  # type: ignore[arg-type]
    with RewardPool(lambda: env, None, threads=1) as pool:  # type: ignore[arg-type, return-value]
        assert pool.advance(0.5) == {}
        assert pool.take() is env


def test_every_environment_of_the_pool_pays_by_the_rubric_in_force() -> None:
    plan = reward_plan(environment(), options(reward_schedule={"brief": FADING}))
    with RewardPool(environment, plan, threads=1) as pool:
        first = pool.take()
        assert pool.advance(0.0) == {"weight/brief": 1.0}
        pool.give(first)
        for progress, weight in ((0.25, 0.5), (0.5, 0.0), (1.0, 0.0)):
            assert pool.advance(progress) == {"weight/brief": weight}
            envs = [pool.take(), pool.take()]  # one that was used before, one that is new
            for env in envs:
                env.reset(seed=0)
                assert env.step("72")[1] == 1.0 + weight
                pool.give(env)


def test_a_run_follows_its_schedule(identity_options: dict[str, Any]) -> None:
    config = {**identity_options, "env_kwargs": {"reward": TERMS}, "updates": 4, "log_trajectories": 32}
    folder = train(load_config({**config, "reward_schedule": {"brief": FADING}}))
    weights = [1.0, 0.5, 0.0, 0.0]
    assert [line["weight/brief"] for line in lines(folder)] == weights
    for update, weight in enumerate(weights, start=1):
        for trajectory in read_trajectories(folder / "trajectories" / f"update-{update:06d}.jsonl"):
            for step in trajectory.steps:
                if "brief" in step.reward_terms:  # a turn that a budget cut is not paid
                    assert step.reward_terms["brief"] == weight * brief(step, trajectory.task, ())
    plain = train(load_config({**config, "name": "plain"}))
    assert not any(key.startswith("weight/") for line in lines(plain) for key in line)


def test_a_resumed_run_pays_what_the_whole_one_would_have(identity_options: dict[str, Any]) -> None:
    config = {
        **identity_options, "env_kwargs": {"reward": TERMS}, "updates": 6, "save_every": 1, "keep_checkpoints": 9,
        "reward_schedule": {"brief": [[0.0, 2.0], [1.0, 0.0]], "accuracy": [[0.0, 0.5], [0.5, 1.0]]},
    }  # fmt: skip
    whole = train(load_config({**config, "name": "whole"}))
    stopped = GRPOTrainer(load_config({**config, "name": "stopped"}))
    learn = stopped.learn

    def until_the_fourth(*args: Any) -> Any:
        if stopped.update == 3:
            raise KeyError("power cut")
        return learn(*args)

    stopped.learn = until_the_fourth  # type: ignore[method-assign]
    with pytest.raises(KeyError, match="power cut"):
        stopped.run()
    resumed = train(load_config({**config, "name": "stopped", "resume": True}))

    def told(folder: Path) -> list[dict[str, Any]]:
        return [
            {k: v for k, v in line.items() if not k.startswith(("time/", "efficiency/", "memory/"))}
            for line in lines(folder)
        ]

    assert told(resumed) == told(whole)
    newest = [sorted((f / "checkpoints").glob("update-*"))[-1] / "model" for f in (whole, resumed)]
    left, right_ = (load_file(next(folder.glob("*.safetensors"))) for folder in newest)
    assert all(torch.equal(left[key], right_[key]) for key in left)
