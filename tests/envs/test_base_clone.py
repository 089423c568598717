"""Clones of environments: the same state, and nothing in common that changes."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from collections.abc import Sequence
from typing import Any, Self

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.envs.base import ToolEnv
from trajgym.envs.tools import tool
from trajgym.envs.tools.python import python_tool
from trajgym.errors import ConfigError, EpisodeError
from trajgym.types import Step, StopReason, Task

CALL = '<tool_call>\n{"name": "%s", "arguments": {%s}}\n</tool_call>'
SUM = CALL % ("calculator", '"expression": "48+24"')
OTHER = CALL % ("calculator", '"expression": "2*36"')
DRAW = CALL % ("urn", "")
TASK = Task("sum", "48 + 24?", "72", difficulty=2)


@tool
class urn:  # noqa: N801
    """Draw a ball."""

    def open(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.drawn: list[int] = []

    def __call__(self) -> str:
        self.drawn.append(self.rng.randrange(1000))
        return " ".join(map(str, self.drawn))

    def clone(self) -> Self:
        return copy.deepcopy(self)


@tool
class diary:  # noqa: N801
    """Write a line."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self) -> int:
        self.lines += 1
        return self.lines


WRITE = CALL % ("diary", "")


def started(**kwargs: Any) -> ToolEnv:
    env = ToolEnv([TASK], **{"tools": ["calculator", urn], "max_turns": 5, **kwargs})
    env.reset(seed=3)
    return env


def play(env: ToolEnv, actions: Sequence[str]) -> list[tuple[Any, ...]]:
    """Take actions until the episode ends; return everything that was said."""
    seen = []
    for action in actions:
        seen.append(env.step(action))
        if seen[-1][2] or seen[-1][3]:
            break
    return seen


moves = st.lists(
    st.sampled_from([SUM, OTHER, DRAW, DRAW + SUM, "<tool_call>\n{broken", "#### 72", "#### 1"]), max_size=4
)


@settings(max_examples=60)
@given(before=moves, after=moves, elsewhere=moves)
def test_the_same_actions_give_the_same_in_both_and_neither_notices_the_other(
    before: list[str], after: list[str], elsewhere: list[str]
) -> None:
    env, reference = started(), started()
    if any(step[2] for step in play(env, before)):
        return
    play(reference, before)
    twin, busy = env.clone(), env.clone()
    play(busy, elsewhere)
    busy.reset()
    assert twin.messages == env.messages == reference.messages
    expected = play(reference, after)
    assert play(env, after) == expected
    assert play(twin, after) == expected
    assert twin.reset() == env.reset() == reference.reset()  # the next episode is drawn alike as well


def test_what_was_paid_before_is_not_paid_again() -> None:
    env = started(tools=["calculator"])
    assert env.step(SUM)[1] == 0.1
    twin = env.clone()
    assert [twin.step(SUM)[1], env.step(SUM)[1]] == [0.0, 0.0]
    assert [twin.step(OTHER)[1], twin.step(CALL % ("calculator", '"expression": "9*8"'))[1]] == [0.1, 0.0]  # two needed
    assert [len(twin.messages), len(env.messages)] == [10, 6]


def test_turns_and_invalid_turns_go_on_counting() -> None:
    env = started(max_turns=3, max_invalid=2)
    env.step("<tool_call>\n{broken")
    twin = env.clone()
    assert twin.step("<tool_call>\n{broken")[4]["stop_reason"] is StopReason.INVALID_CALLS
    env.step(SUM)
    assert env.clone().step(SUM)[4]["stop_reason"] is StopReason.MAX_TURNS
    assert env.step("#### 72")[4]["stop_reason"] is StopReason.ANSWERED


def test_outside_of_an_episode_too() -> None:
    env = ToolEnv([TASK], tools=[urn])
    twin = env.clone()
    with pytest.raises(EpisodeError, match="before reset"):
        twin.step("x")
    assert twin.reset(seed=1)[0] == env.reset(seed=1)[0]
    env.step("#### 72")
    over = env.clone()
    with pytest.raises(EpisodeError, match="over"):
        over.step("#### 72")
    env.close()
    assert env.clone().reset(seed=2) == env.reset(seed=2)


def test_generators_have_the_same_state_and_are_not_shared() -> None:
    env = started()
    twin = env.clone()
    twin.np_random.random(5)
    other = env.clone()
    assert other.np_random.random() == env.np_random.random()
    env.action_space.seed(1)
    drawn = env.clone().action_space.sample()
    assert env.action_space.sample() == drawn


def test_what_never_changes_is_shared() -> None:
    env = started()
    twin = env.clone()
    for name in ("tasks", "rubric", "protocol"):
        assert getattr(twin, name) is getattr(env, name)
    assert all(twin.tools[name] is env.tools[name] for name in env.tools)


class Rooms(ToolEnv):
    """An environment with a state of its own."""

    def reset(self, **kwargs: Any) -> Any:
        reply = super().reset(**kwargs)
        self.visited = {"rooms": [0]}
        self.hook = self.enter
        return reply

    def enter(self, room: int) -> None:
        self.visited["rooms"].append(room)


def test_attributes_of_subclasses_are_copied_deeply() -> None:
    env = Rooms([TASK])
    env.reset(seed=0)
    twin = env.clone()
    assert type(twin) is Rooms
    twin.hook(7)
    assert (env.visited, twin.visited) == ({"rooms": [0]}, {"rooms": [0, 7]})
    env.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"Rooms cannot be cloned: its attribute 'lock' cannot be copied"):
        env.clone()


def test_tools_that_are_methods_of_the_environment_are_refused() -> None:
    class Ruled(ToolEnv):
        def __init__(self) -> None:
            super().__init__([TASK], tools=[tool(self.rule)])

        def rule(self) -> str:
            """Tell the rule."""
            return str(len(self.messages))

    env = Ruled()
    env.reset(seed=0)
    assert not env.can_clone
    with pytest.raises(ConfigError, match="'rule' is a method of the environment"):
        env.clone()


def test_tools_with_a_state_must_know_how() -> None:
    env = started(tools=["calculator", diary])
    assert not env.can_clone
    twin = env.clone()  # the tool was not called yet: there is no state
    env.step(WRITE)
    assert twin.step(WRITE)[0] == "1"
    with pytest.raises(ConfigError, match=r"'diary' has a state .* method clone\(self\)"):
        env.clone()
    assert started().can_clone
    assert ToolEnv([TASK]).can_clone


def test_the_interpreter_says_what_can_be_done() -> None:
    assert not ToolEnv([TASK], tools=["python"]).can_clone
    assert ToolEnv([TASK], tools=[python_tool(stateless=True)]).can_clone
    env = started(tools=["python"])
    assert env.clone().reset(seed=1) == env.reset(seed=1)


def test_deep_copies_are_clones_inside_of_wrappers_too() -> None:
    env = gymnasium.wrappers.TimeLimit(gymnasium.make("ArithmeticTool-v0", difficulty=4), 2)
    env.reset(seed=0)
    env.step(SUM)
    twin = copy.deepcopy(env)
    assert twin.unwrapped.messages == env.unwrapped.messages  # type: ignore[attr-defined]
    assert twin.step(SUM)[3]
    assert len(env.unwrapped.messages) == 4  # type: ignore[attr-defined]
    alone = env.unwrapped.clone()  # type: ignore[attr-defined]
    assert not alone.step(SUM)[3]  # the time limit is the wrapper's


def test_pickles_in_the_middle_of_an_episode() -> None:
    env = started()
    env.step(SUM)
    twin = pickle.loads(pickle.dumps(env))
    assert play(twin, [DRAW, DRAW, "#### 72"]) == play(env, [DRAW, DRAW, "#### 72"])
    assert twin.reset() == env.reset()
    env.step(DRAW)
    with pytest.raises(ConfigError, match=r"'urn' has a state in this episode, which cannot be pickled"):
        pickle.dumps(env)
    env.step("#### 72")
    assert pickle.loads(pickle.dumps(env)).messages == env.messages


def test_steps_are_told_apart() -> None:
    env = started()
    env.step(SUM)
    twin = env.clone()
    _, _, _, _, info = twin.step(SUM)
    assert isinstance(info["step"], Step)
    assert len(env._steps) == 1
    assert len(twin._steps) == 2


def test_global_generators_are_left_alone() -> None:
    env = started()
    before = pickle.dumps((random.getstate(), np.random.get_state()))
    env.step(DRAW)
    env.clone().step(DRAW)
    assert pickle.dumps((random.getstate(), np.random.get_state())) == before
