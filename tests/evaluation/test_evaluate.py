"""Evaluation: each task once, in order, and a failure is never a missing row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import pytest

from trajgym.envs.base import ToolEnv
from trajgym.errors import ConfigError, EnvironmentFault
from trajgym.evaluation.evaluate import Evaluation, Share, env_maker, evaluate, fit_arguments, succeeded
from trajgym.evaluation.measures import wilson
from trajgym.policies.base import TextPolicy
from trajgym.policies.scripted import ExpertPolicy, RandomPolicy
from trajgym.protocols import Protocol, get_protocol
from trajgym.rewards import accuracy
from trajgym.types import Action, Message, Observation, Step, Task, ToolSpec, Trajectory

TASKS = [Task(f"t-{i}", f"{i}?", str(i), difficulty=[1, 1, 2, None][i % 4]) for i in range(8)]


class Even(TextPolicy):
    """Knows the even answers."""

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        return f"#### {task.answer if int(task.answer) % 2 == 0 else 'none'}"


class Breaking(ToolEnv):
    def step(self, action: str) -> Any:
        if "6" in action:
            raise EnvironmentFault("the worker died")
        return super().step(action)


def environment(**kwargs: Any) -> ToolEnv:
    return ToolEnv(TASKS, **kwargs)


def test_shares_by_difficulty() -> None:
    found = evaluate(Even(), environment, TASKS)
    assert [t.task for t in found.trajectories] == TASKS
    assert [succeeded(t) for t in found.trajectories] == [True, False] * 4
    assert found.success == Share(4, 8)
    assert found.by_difficulty == {-1: Share(0, 2), 1: Share(2, 4), 2: Share(2, 2)}
    assert (found.mean_reward, found.mean_turns) == (0.5, 1.0)


def test_a_fault_counts_as_a_failure() -> None:
    found = evaluate(Even(), lambda: Breaking(TASKS), TASKS)
    assert found.success == Share(3, 8)
    assert found.faults == 1
    assert evaluate(Even(), environment, TASKS).faults == 0


def test_a_failed_reset_counts_among_the_tasks_of_its_difficulty() -> None:
    class Dead(ToolEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if options["task"].difficulty == 2:
                raise EnvironmentFault("the pool is gone")
            return super().reset(seed=seed, options=options)

    found = evaluate(Even(), lambda: Dead(TASKS), TASKS)
    assert found.by_difficulty == {-1: Share(0, 2), 1: Share(2, 4), 2: Share(0, 2)}
    assert found.faults == 2


def test_the_seed_decides() -> None:
    def play(seed: int, threads: int = 16) -> Evaluation:
        env = gymnasium.make("ArithmeticTool-v0")
        tasks = [env.reset(seed=s)[1]["task"] for s in range(6)]
        policy = RandomPolicy(tools=env.unwrapped.tools)  # type: ignore[attr-defined]
        return evaluate(policy, lambda: gymnasium.make("ArithmeticTool-v0"), tasks, seed=seed, threads=threads)

    assert play(0) == play(0, threads=1) != play(1)


def test_experts_are_right_and_their_turns_are_counted() -> None:
    env = gymnasium.make("ArithmeticTool-v0", difficulty=2)
    tasks = [env.reset(seed=s)[1]["task"] for s in range(3)]
    found = evaluate(ExpertPolicy(), lambda: gymnasium.make("ArithmeticTool-v0"), tasks)
    assert found.success == Share(3, 3)
    assert found.mean_turns == 3.0
    assert found.mean_reward == pytest.approx(1.2)


def test_a_right_answer_is_right_whatever_else_it_paid() -> None:
    def ended(**terms: float) -> Trajectory:
        return Trajectory(TASKS[0], (), (Step(Action(""), Observation(), sum(terms.values()), terms),))

    assert succeeded(ended(accuracy=0.5, length=-3.0))
    assert not succeeded(ended(accuracy=0.0, tool_success=0.1))
    assert not succeeded(ended())
    assert not succeeded(Trajectory(TASKS[0], (), ()))


def test_a_reward_without_accuracy_cannot_be_evaluated() -> None:
    for reward in ("dense", {"accuracy": (accuracy, 0.0)}):
        options: dict[str, Any] = {"reward": reward, "tools": ["calculator"]}
        with pytest.raises(ConfigError, match=r"'accuracy', but ToolEnv pays for .*'sparse' or 'hybrid'"):
            evaluate(Even(), lambda options=options: environment(**options), TASKS)  # type: ignore[misc]
    with pytest.raises(ConfigError, match="no named terms"):
        evaluate(Even(), lambda: gymnasium.make("CartPole-v1"), TASKS)


class Picky(Even):
    """Writes calls in a form of its own."""

    def agree_on_protocol(self, protocol: Protocol, tools: Mapping[str, ToolSpec], *, named: bool = True) -> Protocol:
        if named and protocol.name != "react":
            raise ConfigError(f"{protocol.name} is not react")
        return get_protocol("react")


def test_a_policy_gets_an_environment_that_reads_what_it_writes() -> None:
    tasks = [gymnasium.make("ArithmeticTool-v0").reset(seed=0)[1]["task"]]
    with pytest.raises(ConfigError, match="hermes is not react"):
        evaluate(Picky(), lambda: gymnasium.make("ArithmeticTool-v0"), tasks)
    maker = env_maker(Picky(), "ArithmeticTool-v0", difficulty=2)
    inner: Any = maker().unwrapped
    assert (inner.protocol.name, maker().reset(seed=0)[1]["task"].difficulty) == ("react", 2)
    assert evaluate(Picky(), maker, tasks).faults == 0
    for kwargs in ({"protocol": "react"}, {"tools": ()}):
        env_maker(Picky(), "ArithmeticTool-v0", **kwargs)()
    with pytest.raises(ConfigError, match="hermes is not react"):
        env_maker(Picky(), "ArithmeticTool-v0", protocol="hermes")


def test_without_a_preference_an_environment_is_made_as_it_was_asked_for() -> None:
    for kwargs in ({}, {"protocol": "react"}):
        env = gymnasium.make("ArithmeticTool-v0", **kwargs)
        assert fit_arguments(Even(), env, kwargs) == kwargs
    assert fit_arguments(Picky(), gymnasium.make("CartPole-v1"), {}) == {}


def test_nothing_to_evaluate() -> None:
    found = evaluate(Even(), environment, [])
    assert (found.trajectories, found.success, found.by_difficulty) == ((), Share(0, 0), {})
    assert (found.mean_reward, found.mean_turns, found.success.value) == (0.0, 0.0, 0.0)
    assert found.success.interval == (0.0, 1.0)


def test_a_share_has_wilsons_interval() -> None:
    assert Share(3, 4).value == 0.75
    assert Share(3, 4).interval == wilson(3, 4)
