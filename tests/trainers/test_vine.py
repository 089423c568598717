"""Values of states by fresh rollouts: right on average, the true gradient, and no state that is silently 0."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, Self

import gymnasium
import numpy as np
import pytest

from trajgym.envs.base import ToolEnv
from trajgym.envs.tools import tool
from trajgym.errors import ConfigError, EnvironmentFault
from trajgym.policies.base import TextPolicy
from trajgym.rollout import EnvPool, Episode, collect, derive_seed
from trajgym.rollout_states import State
from trajgym.trainers.advantages import ESTIMATORS
from trajgym.trainers.vine import StateValues, state_values
from trajgym.types import Message, Step, Task, Trajectory, discounted_return

CALL = '<tool_call>\n{"name": "walk", "arguments": {"by": %d}}\n</tool_call>'
ACTIONS = (CALL % 1, CALL % 2, "#### stop")
TURNS = 4
MEMBERS = 4
LOGITS = np.array([[0.4, -0.2, -1.0], [0.1, 0.6, -0.5], [-0.3, 0.2, 0.3], [0.5, 0.0, -0.4]])
"""One row for each turn, one column for each action."""


@tool
class walk:  # noqa: N801
    """Walk on and say where that is."""

    def __init__(self) -> None:
        self.place = 0

    def __call__(self, by: int) -> int:
        self.place += by
        return self.place

    def clone(self) -> Self:
        return copy.copy(self)


def gain(step: Step, task: Task, history: Sequence[Step]) -> float:
    """Pay places unevenly, on the way and for stopping there."""
    place = sum(int(s.action.text == CALL % 1) + 2 * int(s.action.text == CALL % 2) for s in (*history, step))
    here = (2.0, -1.0, 1.5, -0.5, 3.0)[(3 * place + len(history)) % 5]
    return here if step.results else 1.0 + 0.5 * here


def make_env(tasks: int = 1) -> ToolEnv:
    return ToolEnv(
        [Task(f"walk-{n}", "Walk.", "") for n in range(tasks)],
        tools=[walk],
        reward={"gain": (gain, 1.0)},
        max_turns=TURNS,
    )


def probabilities(turn: int, place: int) -> np.ndarray:
    """Softmax of the turn's logits, moved by the place."""
    logits = LOGITS[turn] + 0.4 * place * np.array([1.0, -1.0, 0.5])
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


class Tabular(TextPolicy):
    """Draws from :func:`probabilities`."""

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        turn = sum(m.role == "assistant" for m in messages)
        place = int(messages[-1].content) if turn else 0
        return random.Random(f"{seed}/{turn}").choices(ACTIONS, probabilities(turn, place).tolist())[0]


def scores(actions: Sequence[str]) -> list[np.ndarray]:
    """∂log π/∂logits of each turn."""
    out, place = [], 0
    for turn, action in enumerate(actions):
        score = np.zeros_like(LOGITS)
        chosen = ACTIONS.index(action)
        score[turn] = -probabilities(turn, place)
        score[turn, chosen] += 1.0
        out.append(score)
        place += chosen + 1
    return out


def enumerated(before: tuple[str, ...] = ()) -> Iterator[tuple[float, list[float], tuple[str, ...]]]:
    """Yield probability, rewards and actions of every episode that begins so, each played from its reset."""
    env = make_env()
    env.reset(seed=0)
    rewards, over, probability, place = [], False, 1.0, 0
    for turn, action in enumerate(before):
        _, reward, terminated, truncated, _ = env.step(action)
        probability *= float(probabilities(turn, place)[ACTIONS.index(action)])
        place += ACTIONS.index(action) + 1
        rewards.append(reward)
        over = terminated or truncated
    env.close()
    if over:
        yield probability, rewards, before
        return
    for action in ACTIONS:
        yield from enumerated((*before, action))


def true_gradient(gamma: float) -> np.ndarray:
    total = np.zeros_like(LOGITS)
    for probability, rewards, actions in enumerated():
        total += probability * discounted_return(rewards, gamma) * np.sum(scores(actions), axis=0)
    return total


def true_value(before: tuple[str, ...], gamma: float) -> float:
    episodes = [(p, discounted_return(rewards[len(before) :], gamma)) for p, rewards, _ in enumerated(before)]
    return sum(p * value for p, value in episodes) / sum(p for p, _ in episodes)


Played = tuple[EnvPool, list[Trajectory], dict[int, list[State]]]


@pytest.fixture(scope="module")
def groups() -> Iterator[Played]:
    """300 groups, each of a task of its own, so that nothing is common to two of them."""
    count = 300
    with EnvPool(lambda: make_env(count), threads=2) as pool:
        plans = [Episode(n, derive_seed("members", n, i), f"walk-{n}") for n in range(count) for i in range(MEMBERS)]
        states: dict[int, list[State]] = {}
        yield pool, collect(Tabular(), pool, plans, states=states), states


@pytest.fixture(scope="module")
def valued(groups: Played) -> dict[float, StateValues]:
    pool, trajectories, states = groups
    return {
        gamma: state_values(Tabular(), pool, trajectories, states, rollouts=3, gamma=gamma, seed=5)
        for gamma in (1.0, 0.7)
    }


def gradients(trajectories: Sequence[Trajectory], advantages: Sequence[Sequence[float]]) -> np.ndarray:
    """Return each group's ``(1/G)·Σ_i Σ_t A_{i,t} ∇log π``."""
    each = [
        sum(a * score for a, score in zip(row, scores([s.action.text for s in t.steps]), strict=True))
        for t, row in zip(trajectories, advantages, strict=True)
    ]
    return np.asarray(np.reshape(each, (-1, MEMBERS, *LOGITS.shape)).mean(axis=1))


def vine(trajectories: Sequence[Trajectory], found: StateValues, gamma: float, **options: Any) -> np.ndarray:
    rewards = [t.rewards for t in trajectories]
    return gradients(trajectories, ESTIMATORS["vine"](rewards, gamma=gamma, values=found.values, **options))


def standard_errors(sample: np.ndarray, truth: np.ndarray) -> float:
    """Return by how many standard errors the worst entry of the mean is off."""
    error = sample.std(axis=0, ddof=1) / math.sqrt(len(sample))
    return float((np.abs(sample.mean(axis=0) - truth) / error).max())


@pytest.mark.parametrize("gamma", [1.0, 0.7])
def test_the_mean_gradient_is_the_gradient_of_the_objective(
    groups: Played, valued: dict[float, StateValues], gamma: float
) -> None:
    _, trajectories, _ = groups
    assert len({len(t.steps) for t in trajectories}) == TURNS
    assert standard_errors(vine(trajectories, valued[gamma], gamma), true_gradient(gamma)) < 4.0


def test_the_same_comparison_notices_a_wrong_estimator(groups: Played, valued: dict[float, StateValues]) -> None:
    _, trajectories, _ = groups
    dropped = vine(trajectories, valued[0.7], 0.7, discount_weight="dropped")
    assert standard_errors(dropped, true_gradient(0.7)) > 4.0
    nothing = StateValues([[0.0] * len(v) for v in valued[1.0].values if v is not None])
    assert standard_errors(vine(trajectories, nothing, 1.0), true_gradient(1.0)) > 4.0


@pytest.mark.parametrize("gamma", [1.0, 0.7])
def test_the_variance_is_below_that_of_the_group_baseline(
    groups: Played, valued: dict[float, StateValues], gamma: float
) -> None:
    _, trajectories, _ = groups
    rewards = [t.rewards for t in trajectories]
    by_group: list[list[float]] = []
    for first in range(0, len(rewards), MEMBERS):
        by_group += ESTIMATORS["return_to_go"](rewards[first : first + MEMBERS], gamma=gamma)
    ours = vine(trajectories, valued[gamma], gamma).var(axis=0, ddof=1).sum()
    theirs = gradients(trajectories, by_group).var(axis=0, ddof=1).sum()
    assert ours < 0.8 * theirs


def test_values_are_the_true_ones_on_average(groups: Played) -> None:
    pool, trajectories, states = groups
    longest = max(range(len(trajectories)), key=lambda i: len(trajectories[i].steps))
    actions = tuple(s.action.text for s in trajectories[longest].steps)
    found = state_values(
        Tabular(), pool, [trajectories[longest]], {0: states[longest]}, rollouts=500, gamma=0.7, seed=1
    )
    (values,) = found.values
    assert values is not None
    expected = [true_value(actions[:t], 0.7) for t in range(TURNS)]
    assert values[:TURNS] == pytest.approx(expected, abs=0.25)
    assert values[TURNS] == 0.0
    assert found.rollouts == 500 * TURNS


class Counted(gymnasium.Wrapper[str, str, str, str]):
    """Counts the turns of all environments; fails when told to."""

    taken = 0
    faults = staticmethod(lambda env: False)

    def step(self, action: str) -> Any:
        Counted.taken += 1
        if self.faults(self.unwrapped):
            raise EnvironmentFault("the tool is gone")
        return super().step(action)


def small(capacity: int = 64) -> tuple[list[Trajectory], dict[int, list[State]], EnvPool]:
    pool = EnvPool(lambda: Counted(make_env(2)))
    states: dict[int, list[State]] = {}
    plans = [Episode(0, derive_seed("small", n, i), f"walk-{n}") for n in range(2) for i in range(3)]
    return collect(Tabular(capacity), pool, plans, states=states), states, pool


def test_shape_cost_and_a_beginning_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    trajectories, states, pool = small()
    monkeypatch.setattr(Counted, "taken", 0)
    with pool:
        found = state_values(Tabular(), pool, trajectories, states, rollouts=4, gamma=0.9, seed=3)
    turns = [len(t.steps) for t in trajectories]
    assert [len(v or ()) for v in found.values] == [n + 1 for n in turns]
    assert {v[-1] for v in found.values if v} == {0.0}
    first = [v[0] for v in found.values if v]
    assert first == [first[0]] * 3 + [first[3]] * 3
    assert first[0] != first[3]
    assert found.rollouts == 4 * (2 + sum(n - 1 for n in turns))
    assert found.env_steps == Counted.taken > found.rollouts
    assert (found.faults, found.lost) == (0, {})


def test_the_same_seed_gives_the_same_values_with_one_or_many_at_once() -> None:
    def values(capacity: int, seed: int) -> StateValues:
        trajectories, states, pool = small(capacity)
        with pool:
            return state_values(Tabular(capacity), pool, trajectories, states, rollouts=3, gamma=0.9, seed=seed)

    assert values(1, 3) == values(64, 3) == values(7, 3)
    assert values(64, 3) != values(64, 4)


def test_what_was_played_does_not_enter_its_own_values() -> None:
    """The beginning's value is that of fresh episodes: other members, or other rewards of theirs, change nothing."""
    trajectories, states, pool = small()
    with pool:
        all_of_them = state_values(Tabular(), pool, trajectories, states, rollouts=3, gamma=0.9, seed=3)
        alone = state_values(Tabular(), pool, trajectories[:1], {0: states[0]}, rollouts=3, gamma=0.9, seed=3)
    assert alone.values[0] == all_of_them.values[0]


def test_faults_leave_the_mean_and_a_state_without_any_rollout_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    trajectories, states, pool = small()
    longest = max(range(len(trajectories)), key=lambda i: len(trajectories[i].steps))
    broken = states[longest][1].messages

    def at_that_state(env: Any) -> bool:
        return bool(env.messages == broken)

    with pool:
        clean = state_values(Tabular(), pool, trajectories, states, rollouts=4, gamma=0.9, seed=3)
        monkeypatch.setattr(Counted, "faults", staticmethod(at_that_state))
        found = state_values(Tabular(), pool, trajectories, states, rollouts=4, gamma=0.9, seed=3)
    assert found.values[longest] is None
    assert found.lost[longest] == (
        "nothing is known of the state before turn 1: 4 of 4 episodes failed, the first with "
        "EnvironmentFault: the tool is gone."
    )
    assert found.faults >= 4
    others = [i for i in range(len(trajectories)) if i not in found.lost]
    assert others
    for i in others:  # their states beyond the first do not lead through the broken one
        assert found.values[i] is not None
        assert (found.values[i] or [])[1:] == (clean.values[i] or [])[1:]
    assert all(math.isfinite(v) for i in others for v in found.values[i] or ())


def test_a_beginning_without_any_rollout_takes_all_members_of_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    trajectories, states, pool = small()
    with pool:
        monkeypatch.setattr(Counted, "faults", staticmethod(lambda env: env._task.id == "walk-1"))
        found = state_values(Tabular(), pool, trajectories, states, rollouts=2, gamma=1.0, seed=3)
    assert sorted(found.lost) == [3, 4, 5]
    assert all("before turn 0: 2 of 2 episodes failed" in why for why in found.lost.values())
    assert all(v is not None for v in found.values[:3])


def test_invalid_trajectories_get_no_values_and_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trajectories, states, pool = small()
    invalid = [*trajectories[:3], *(Trajectory(t.task, t.prompt, t.steps, fault="OSError") for t in trajectories[3:])]
    with pool:
        found = state_values(Tabular(), pool, invalid, states, rollouts=2, gamma=1.0, seed=3)
        nothing = state_values(Tabular(), pool, invalid[3:], states, rollouts=2, gamma=1.0, seed=3)
    assert found.lost == dict.fromkeys((3, 4, 5), "the trajectory itself is invalid")
    assert found.rollouts == 2 * (1 + sum(len(t.steps) - 1 for t in trajectories[:3]))
    assert (nothing.values, nothing.rollouts, nothing.env_steps) == ([None] * 3, 0, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rollouts": 0}, "rollouts must be a whole number of at least 1, got 0"),
        ({"rollouts": True}, "rollouts"),
        ({"rollouts": 2.0}, "rollouts"),
        ({"gamma": 1.1}, "gamma must lie in"),
        ({"gamma": float("nan")}, "gamma must lie in"),
        ({"states": {}}, "Trajectory 0 has . turns, and 0 states were recorded"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], message: str) -> None:
    trajectories, states, pool = small()
    with pool, pytest.raises(ConfigError, match=message):
        state_values(
            Tabular(), pool, trajectories, **{"states": states, "rollouts": 2, "gamma": 1.0, "seed": 0, **options}
        )
