"""Rollout: policy and environment meet, nobody waits for a slow one, faults stay where they are."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest

from trajgym.envs.base import ToolEnv
from trajgym.envs.tools import tool
from trajgym.errors import ConfigError
from trajgym.policies.base import TextPolicy
from trajgym.policies.scripted import ExpertPolicy, RandomPolicy
from trajgym.rollout import EnvPool, Episode, collect, derive_seed
from trajgym.types import Action, Message, Step, StopReason, Task, Trajectory, from_json, to_json


def arithmetic(**kwargs: Any) -> gymnasium.Env[str, str]:
    return gymnasium.make("ArithmeticTool-v0", **kwargs)


def episodes(count: int) -> list[Episode]:
    return [Episode(derive_seed(7, i), derive_seed(8, i)) for i in range(count)]


def test_expert_episodes_come_back_in_order_and_are_paid() -> None:
    with EnvPool(arithmetic) as pool:
        trajectories = collect(ExpertPolicy(capacity=5), pool, episodes(23))
    assert len(trajectories) == 23
    for trajectory, plan in zip(trajectories, episodes(23), strict=True):
        env = arithmetic()
        _, info = env.reset(seed=plan.seed)
        assert trajectory.task == info["task"]
        assert trajectory.seed == plan.policy_seed
        assert trajectory.stop_reason is StopReason.ANSWERED
        steps = trajectory.task.difficulty
        assert steps is not None
        assert trajectory.rewards == pytest.approx([0.1] * steps + [1.0])
        assert from_json(Trajectory, to_json(trajectory)) == trajectory


def test_one_or_many_at_once_give_the_same_trajectories() -> None:
    def play(capacity: int, deterministic: bool) -> list[Trajectory]:
        policy = RandomPolicy(tools=arithmetic().unwrapped.tools, capacity=capacity)  # type: ignore[attr-defined]
        with EnvPool(arithmetic) as pool:
            return collect(policy, pool, episodes(12), deterministic=deterministic)

    alone = play(1, True)
    assert alone == play(12, True) == play(5, False)
    assert len({t.stop_reason for t in alone}) > 1


def test_tasks_can_be_chosen() -> None:
    ids = [f"arithmetic/train/2/{n}" for n in (5, 6)]
    with EnvPool(arithmetic) as pool:
        found = collect(ExpertPolicy(), pool, [Episode(0, 0, i) for i in ids])
    assert [t.task.id for t in found] == ids


class Cut(TextPolicy):
    """Calls the calculator in a turn that its token budget has cut."""

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        return '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'

    def poll(self) -> list[tuple[int, Action]]:
        return [(i, Action(a.text, finish="turn_tokens")) for i, a in super().poll()]


def test_a_cut_turn_never_reaches_the_environment() -> None:
    seen: list[str] = []

    class Watching(gymnasium.Wrapper[str, str, str, str]):
        def step(self, action: str) -> Any:
            seen.append(action)
            return super().step(action)

    with EnvPool(lambda: Watching(arithmetic())) as pool:
        (trajectory,) = collect(Cut(), pool, episodes(1))
    assert seen == []
    assert trajectory.stop_reason is StopReason.TURN_TOKENS
    assert trajectory.steps[-1].truncated
    assert not trajectory.steps[-1].terminated
    assert trajectory.total_reward == 0.0
    assert trajectory.steps[0].results == ()


def test_a_cut_turn_is_scored_where_the_environment_can() -> None:
    def cost(step: Step, task: Task, history: Sequence[Step]) -> float:
        return -1.0 if step.stop_reason is StopReason.TURN_TOKENS else 0.0

    with EnvPool(lambda: arithmetic(reward={"cost": (cost, 1.0)})) as pool:
        (trajectory,) = collect(Cut(), pool, episodes(1))
    assert trajectory.total_reward == -1.0
    assert trajectory.steps[-1].reward_terms == {"cost": -1.0}
    assert trajectory.steps[-1].truncated
    assert trajectory.steps[0].action.finish == "turn_tokens"


def test_a_busy_environment_blocks_nobody() -> None:
    """The fast episodes finish while the slow one is still inside its tool; no clock is read."""
    finished = threading.Event()

    @tool
    def wait_for_the_others() -> str:
        """Return once every other episode is over."""
        return "in time" if finished.wait(30) else "too late"

    question = Task("slow", "Wait.", "1", solution=())

    class Script(TextPolicy):
        def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
            turn = sum(m.role == "assistant" for m in messages)
            if task.id == "slow" and turn == 0:
                return '<tool_call>\n{"name": "wait_for_the_others", "arguments": {}}\n</tool_call>'
            return "#### 1"

    tasks = [question, *[Task(f"fast-{i}", "Say 1.", "1") for i in range(6)]]

    def tick(done: int) -> None:
        if done == 6:
            finished.set()

    with EnvPool(lambda: ToolEnv(tasks, tools=[wait_for_the_others])) as pool:
        plans = [Episode(0, 0, t.id) for t in tasks]
        found = collect(Script(capacity=3), pool, plans, on_tick=tick)
    assert found[0].steps[0].results[0].content == "in time"
    assert all(t.stop_reason is StopReason.ANSWERED for t in found)


class Chatter(TextPolicy):
    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        return "hm"


def test_wrappers_count() -> None:
    class Halved(gymnasium.RewardWrapper[str, str]):
        def reward(self, reward: Any) -> float:
            return float(reward) / 2

    with EnvPool(lambda: gymnasium.wrappers.TimeLimit(Halved(arithmetic(difficulty=4)), 2)) as pool:
        (trajectory,) = collect(ExpertPolicy(), pool, episodes(1))
    assert trajectory.rewards == pytest.approx([0.05, 0.05])
    assert trajectory.stop_reason is StopReason.TIME_LIMIT
    for step in trajectory.steps:
        assert sum(step.reward_terms.values()) == pytest.approx(step.reward)


def test_wrappers_that_rewrite_text_or_end_the_episode_count_too() -> None:
    class Polite(gymnasium.ObservationWrapper[str, str, str]):
        def observation(self, observation: str) -> str:
            return f"Please: {observation}"

    class Strict(gymnasium.Wrapper[str, str, str, str]):
        def step(self, action: str) -> Any:
            text, reward, _, truncated, info = super().step(action)
            return text, reward, True, truncated, info

    with EnvPool(lambda: Strict(Polite(arithmetic(difficulty=3)))) as pool:
        (trajectory,) = collect(ExpertPolicy(), pool, episodes(1))
    assert trajectory.prompt[0].content.startswith("Please: ")
    assert trajectory.steps[0].observation.messages[0].content.startswith("Please: ")
    assert [s.terminated for s in trajectory.steps] == [True]
    assert trajectory.stop_reason is StopReason.ENDED


def test_who_answers_in_the_last_turn_has_answered() -> None:
    with EnvPool(lambda: gymnasium.wrappers.TimeLimit(arithmetic(difficulty=1), 2)) as pool:
        (trajectory,) = collect(ExpertPolicy(), pool, episodes(1))
    last = trajectory.steps[-1]
    assert (last.terminated, last.truncated, last.stop_reason) == (True, False, StopReason.ANSWERED)


def test_observations_must_be_text() -> None:
    with EnvPool(lambda: gymnasium.make("CartPole-v1")) as pool, pytest.raises(ConfigError, match="text"):
        collect(Chatter(), pool, [Episode(0, 0)])


def test_stopping_in_the_middle_closes_everything() -> None:
    closed: list[int] = []

    class Closing(gymnasium.Wrapper[str, str, str, str]):
        def close(self) -> None:
            closed.append(1)
            super().close()

    class Stop(Exception):
        pass

    def tick(done: int) -> None:
        if done >= 2:
            raise Stop

    policy = ExpertPolicy(capacity=4)
    before = threading.active_count()
    with pytest.raises(Stop), EnvPool(lambda: Closing(arithmetic())) as pool:
        collect(policy, pool, episodes(20), on_tick=tick)
    assert len(closed) == 4
    assert threading.active_count() == before
    with EnvPool(arithmetic) as pool:  # the policy holds nothing of the stopped episodes
        assert len(collect(policy, pool, episodes(8))) == 8


def test_slow_environments_run_beside_each_other() -> None:
    """Four environments meet inside their step; one after the other they never would."""
    barrier = threading.Barrier(4, timeout=30)

    class Meeting(ToolEnv):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            barrier.wait()
            time.sleep(0)
            return "", 1.0, True, False, {}

    with EnvPool(lambda: Meeting([Task("t", "Meet.", "")]), threads=4) as pool:
        found = collect(Chatter(), pool, [Episode(s, 0) for s in range(4)], deterministic=True)
    assert [t.total_reward for t in found] == [1.0] * 4


def test_wrappers_see_a_turn_that_a_budget_cuts() -> None:
    class Scaled(gymnasium.RewardWrapper[str, str]):
        def reward(self, reward: Any) -> float:
            return 100.0 * float(reward) - 7.0

    class Hasty(ExpertPolicy):
        """Runs out of tokens in its second turn."""

        def poll(self) -> list[tuple[int, Action]]:
            written = super().poll()
            ends = [i == 1 and a.text.startswith("####") for i, a in written]
            return [
                (i, dataclasses.replace(a, finish="turn_tokens") if end else a)
                for (i, a), end in zip(written, ends, strict=True)
            ]

    def wrapped() -> gymnasium.Env[str, str]:
        return Scaled(arithmetic(reward="dense", difficulty=1))

    with EnvPool(wrapped) as pool:
        whole, cut = collect(Hasty(), pool, [Episode(1, 0), Episode(1, 1)])
    assert whole.rewards == pytest.approx([3.0, -7.0])
    assert (cut.stop_reason, cut.steps[-1].truncated) == (StopReason.TURN_TOKENS, True)
    assert cut.rewards == pytest.approx([3.0, -17.0])  # what was paid in advance is taken back, on the wrapper's scale
