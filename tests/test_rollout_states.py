"""Rollout from states: episodes that begin where others are, and leave those alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import pytest

from trajgym.envs.base import ToolEnv
from trajgym.envs.spaces import Unicode
from trajgym.errors import ConfigError, EnvironmentFault
from trajgym.policies.base import Policy, TextPolicy
from trajgym.policies.scripted import ExpertPolicy, RandomPolicy
from trajgym.rollout import EnvPool, Episode, collect, derive_seed
from trajgym.rollout_states import State, clone_env
from trajgym.types import Message, StopReason, Task, TokenStream, Trajectory

MakeEnv = Callable[[], "gymnasium.Env[str, str]"]


def arithmetic(**kwargs: Any) -> gymnasium.Env[str, str]:
    return gymnasium.make("ArithmeticTool-v0", **{"difficulty": (2, 4), **kwargs})


def noise(capacity: int = 8) -> RandomPolicy:
    env: Any = arithmetic().unwrapped
    return RandomPolicy(tools=env.tools, capacity=capacity)


def recorded(policy: Policy, make_env: MakeEnv, count: int) -> tuple[list[Trajectory], dict[int, list[State]]]:
    states: dict[int, list[State]] = {}
    plans = [Episode(derive_seed(7, i), derive_seed(8, i)) for i in range(count)]
    with EnvPool(make_env) as pool:
        return collect(policy, pool, plans, states=states), states


def play_on(policy: Policy, plans: Sequence[Episode], make_env: MakeEnv = arithmetic) -> list[Trajectory]:
    with EnvPool(make_env) as pool:
        return collect(policy, pool, plans)


@pytest.mark.parametrize("policy", [ExpertPolicy(), noise()])
def test_recording_changes_nothing_and_gives_one_state_per_turn(policy: Policy) -> None:
    trajectories, states = recorded(policy, arithmetic, 8)
    with EnvPool(arithmetic) as pool:
        plain = collect(policy, pool, [Episode(derive_seed(7, i), derive_seed(8, i)) for i in range(8)])
    assert trajectories == plain
    assert len({len(t.steps) for t in trajectories}) > 1
    for i, trajectory in enumerate(trajectories):
        assert len(states[i]) == len(trajectory.steps)
        for t, state in enumerate(states[i]):
            before = Trajectory(trajectory.task, trajectory.prompt, trajectory.steps[:t])
            assert (state.task, state.messages, state.tokens) == (trajectory.task, before.messages, ())
            inner: Any = state.env.unwrapped
            assert inner.messages == before.messages


def test_the_same_moves_from_a_state_give_the_rest_of_the_episode() -> None:
    trajectories, states = recorded(ExpertPolicy(), arithmetic, 6)
    plans = [(i, t) for i in states for t in range(len(states[i]))]
    # Twice from each: the state is as it was.
    for _ in range(2):
        found = play_on(ExpertPolicy(), [Episode(0, 5, start=states[i][t]) for i, t in plans])
        for (i, t), trajectory in zip(plans, found, strict=True):
            assert trajectory.steps == trajectories[i].steps[t:]
            assert trajectory.prompt == states[i][t].messages
            assert trajectory.messages == trajectories[i].messages
            assert (trajectory.task, trajectory.seed) == (trajectories[i].task, 5)


def test_draws_are_fresh_and_the_same_with_one_or_many_at_once() -> None:
    _, states = recorded(noise(), arithmetic, 4)
    plans = [Episode(0, derive_seed("fresh", i, k), start=states[i][-1]) for i in states for k in range(6)]
    alone = play_on(noise(1), plans)
    assert alone == play_on(noise(5), plans) == play_on(noise(64), plans)
    for i in states:
        assert len({t.messages for t in alone[6 * i : 6 * i + 6]}) > 1


def test_the_turn_budget_counts_the_turns_before() -> None:
    class Chatter(TextPolicy):
        def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
            return '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'

    def make() -> gymnasium.Env[str, str]:
        return arithmetic(max_turns=4)

    (trajectory,), states = recorded(Chatter(), make, 1)
    assert len(trajectory.steps) == 4
    found = play_on(Chatter(), [Episode(0, 0, start=s) for s in states[0]], make)
    assert [len(t.steps) for t in found] == [4, 3, 2, 1]
    assert {t.stop_reason for t in found} == {StopReason.MAX_TURNS}
    assert sum(found[1].rewards) == sum(trajectory.rewards[1:])  # a call that was paid before is not paid again


def test_wrappers_go_on_as_well() -> None:
    class Halved(gymnasium.RewardWrapper[str, str]):
        def reward(self, reward: Any) -> float:
            return float(reward) / 2

    def make() -> gymnasium.Env[str, str]:
        return gymnasium.wrappers.TimeLimit(Halved(arithmetic(difficulty=4)), 3)

    (trajectory,), states = recorded(ExpertPolicy(), make, 1)
    assert trajectory.stop_reason is StopReason.TIME_LIMIT
    (found,) = play_on(ExpertPolicy(), [Episode(0, 0, start=states[0][1])], make)
    assert found.rewards == trajectory.rewards[1:] == [0.05, 0.05]
    assert found.stop_reason is StopReason.TIME_LIMIT


def test_a_clone_with_its_wrappers_is_independent() -> None:
    env = gymnasium.wrappers.TimeLimit(arithmetic(difficulty=4), 2)
    env.reset(seed=1)
    twin = clone_env(env)
    assert type(twin) is type(env)
    assert twin.unwrapped is not env.unwrapped
    assert [twin.step("<tool_call>")[3] for _ in range(2)] == [False, True]
    assert not env.step("<tool_call>")[3]
    env.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"wrapper TimeLimit cannot be cloned: its attribute 'lock'"):
        clone_env(env)


class Foreign(gymnasium.Env[str, str]):
    """Not one of our environments; ends after three turns."""

    def __init__(self) -> None:
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self.turn = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = 0
        return f"seed {seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        return "go on", float(self.turn), self.turn == 3, False, {}


class Hm(TextPolicy):
    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        return "hm"


def test_other_environments_need_a_clone() -> None:
    with pytest.raises(ConfigError, match=r"Foreign cannot be cloned. Give it a method clone\(\)"):
        recorded(Hm(), Foreign, 1)

    class Kind(Foreign):
        def clone(self) -> Kind:
            twin = Kind()
            twin.turn = self.turn
            return twin

    (trajectory,), states = recorded(Hm(), Kind, 1)
    assert trajectory.rewards == [1.0, 2.0, 3.0]
    (found,) = play_on(Hm(), [Episode(0, 0, start=states[0][2])], Kind)
    assert found.rewards == [3.0]


def test_a_state_that_cannot_be_recorded_or_begun_costs_its_own_episode() -> None:
    fails: list[int] = []

    class Fragile(Foreign):
        def clone(self) -> Fragile:
            if self.turn in fails:
                raise EnvironmentFault("no memory")
            twin = Fragile()
            twin.turn = self.turn
            return twin

    _, states = recorded(Hm(), Fragile, 1)
    fails.append(1)
    (lost,), _ = recorded(Hm(), Fragile, 1)
    assert (lost.fault, lost.rewards) == ("EnvironmentFault: no memory", [1.0])
    found = play_on(Hm(), [Episode(0, k, start=s) for k, s in enumerate(states[0])], Fragile)
    assert [t.fault for t in found] == [None, "EnvironmentFault: no memory", None]
    assert (found[1].task, found[1].prompt, found[1].steps) == (states[0][1].task, states[0][1].messages, ())


def test_clones_are_closed_and_the_pool_keeps_its_own() -> None:
    closed: list[int] = []
    made: list[int] = []

    class Counted(ToolEnv):
        def __init__(self) -> None:
            made.append(1)
            super().__init__([Task("t", "Say 1.", "1")])

        def close(self) -> None:
            closed.append(1)
            super().close()

    with EnvPool(Counted) as pool:
        states: dict[int, list[State]] = {}
        collect(Hm(), pool, [Episode(0, 0)], states=states)
        collect(Hm(), pool, [Episode(0, k, start=states[0][0]) for k in range(5)])
        assert (len(made), len(closed)) == (1, 5)
    assert len(closed) == 6


def test_stopping_in_the_middle_closes_the_clones() -> None:
    class Stop(Exception):
        pass

    def stop(done: int) -> None:
        raise Stop

    policy = ExpertPolicy()
    _, states = recorded(policy, arithmetic, 1)
    with EnvPool(arithmetic) as pool, pytest.raises(Stop):
        collect(policy, pool, [Episode(0, k, start=states[0][0]) for k in range(3)], on_tick=stop)
    assert len(play_on(policy, [Episode(0, 0, start=states[0][0])])) == 1  # the policy holds nothing of them


def test_a_language_model_goes_on_in_the_tokens_of_the_dialogue() -> None:
    from trajgym.policies.hf import HFSampler
    from trajgym.policies.llm import LLMPolicy
    from trajgym.policies.render import Renderer
    from trajgym.trainers.models import load_model

    model, tokenizer = load_model("tiny")
    renderer = Renderer(tokenizer)

    def policy(slots: int = 8) -> LLMPolicy:
        sampler = HFSampler(model, slots=slots, max_length=600, stop_ids=renderer.stop_ids)
        return LLMPolicy(sampler, renderer, max_turn_tokens=60, max_episode_tokens=600)

    trajectories, states = recorded(policy(), arithmetic, 3)
    assert max(len(t.steps) for t in trajectories) > 1
    plans = [(i, t, k) for i in states for t in range(len(states[i])) for k in range(2)]
    episodes = [Episode(0, derive_seed("fresh", *plan), start=states[plan[0]][plan[1]]) for plan in plans]
    found = play_on(policy(), episodes)
    for (i, t, _), trajectory in zip(plans, found, strict=True):
        row: TokenStream = trajectory.rows[0]
        (old,) = trajectories[i].rows
        context = states[i][t].tokens
        assert row.ids[: len(context)] == old.ids[: len(context)] == context
        assert old.turns[len(context)] == t  # the state ends just before the turn's first token
        assert not any(row.mask[: len(context)])
        first = trajectory.steps[0].action.token_ids
        assert row.ids[len(context) :][: len(first)] == first
        assert set(row.turns) - {-1} == set(range(len(trajectory.steps)))
    # Log-probabilities alone differ by noise with what runs beside.
    sampled = [[step.action.token_ids for step in t.steps] for t in found]
    assert sampled == [[step.action.token_ids for step in t.steps] for t in play_on(policy(1), episodes)]
