"""The five parts of a process, and that they are the environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from trajgym.envs.arithmetic import ArithmeticEnv
from trajgym.envs.code import CodeEnv
from trajgym.envs.detour import DetourEnv
from trajgym.envs.mdp import MDP
from trajgym.envs.memory import MemoryEnv
from trajgym.errors import ConfigError, EpisodeError
from trajgym.types import discounted_return


@pytest.mark.parametrize("make", [ArithmeticEnv, DetourEnv, MemoryEnv])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_process_is_the_environment(make: Any, gamma: float) -> None:
    env = make(reward="dense")
    process = MDP.of(make(reward="dense"), gamma)
    _, info = env.reset(seed=3)
    states = [process.begin(seed=3)]
    assert states[0].messages == info["messages"]
    rewards = []
    for action in env.expert(info["task"]):
        assert process.actions.contains(action)
        _, reward, *_, info = env.step(action)
        rewards.append(reward)
        states.append(process.transition(states[-1], action))
        assert states[-1].messages == info["messages"]
        assert process.states.contains("\n\n".join(m.content for m in states[-1].messages))
    assert [state.reward for state in states[1:]] == pytest.approx(rewards)
    assert process.value(states) == pytest.approx(discounted_return(rewards, gamma))
    assert states[-1].over
    with pytest.raises(EpisodeError, match="Nothing follows"):
        process.transition(states[-1], "more")


def test_the_future_depends_on_the_state_and_not_on_the_way_there() -> None:
    process = MDP.of(DetourEnv())
    start = process.begin(task="detour/train/2/5")
    first, *others = process.env.expert(process.env.tasks.get("detour/train/2/5"))
    reached = process.transition(start, first)
    ways = []
    for _ in range(2):  # whatever else was tried from there
        process.transition(reached, "#### 5")
        process.transition(start, "#### 5")
        state = reached
        for action in others:
            state = process.transition(state, action)
        ways.append((state.messages, state.reward))
    assert ways[0] == ways[1]
    assert ways[0][1] == 1.0


def test_terms_are_told_the_discount() -> None:
    """An advance that is taken back comes to nothing under the process's own discount."""
    process = MDP.of(DetourEnv(reward="dense"), 0.9)
    task = process.env.tasks.get("detour/train/1/5")
    states = [process.begin(task=task)]
    for action in [*process.env.expert(task)[:-1], "#### 1"]:
        states.append(process.transition(states[-1], action))
    assert process.value(states) == pytest.approx(0.0)


def test_what_is_no_process() -> None:
    for gamma in (-0.1, 1.1, True, "1", float("nan")):
        with pytest.raises(ConfigError, match="gamma must lie"):
            MDP.of(ArithmeticEnv(), gamma)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="CartPole"):
        MDP.of(gymnasium.make("CartPole-v1"))
    with pytest.raises(ConfigError, match="cannot be copied"):
        MDP.of(CodeEnv())
    assert MDP.of(gymnasium.make("Arithmetic-v0")).env.max_turns == 1
