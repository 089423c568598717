"""The nouns survive JSON, and say what they are."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.types import (
    Action,
    CallError,
    ExpertTurn,
    Group,
    Message,
    Observation,
    Step,
    StopReason,
    Task,
    TokenStream,
    ToolCall,
    ToolResult,
    Trajectory,
    discounted_return,
    from_json,
    to_json,
)

words = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
calls = st.builds(ToolCall, words, st.dictionaries(words, values, max_size=2), words)
messages = st.builds(Message, words, words, st.none() | words, st.none() | words)
tasks = st.builds(
    Task,
    words,
    words,
    words,
    st.lists(st.builds(ExpertTurn, words, st.lists(calls, max_size=2).map(tuple)), max_size=2).map(tuple),
    st.none() | st.integers(0, 9),
    st.dictionaries(words, values, max_size=2),
)
steps = st.builds(
    Step,
    st.builds(Action, words, calls=st.lists(calls, max_size=2).map(tuple)),
    st.builds(Observation, st.lists(messages, max_size=2).map(tuple)),
    st.floats(-1, 1),
    st.dictionaries(words, st.floats(-1, 1), max_size=2),
    st.lists(st.builds(ToolResult, calls, words, st.none() | words), max_size=2).map(tuple),
    st.none() | st.builds(CallError, words, words),
    st.booleans(),
    st.booleans(),
    st.none() | st.sampled_from(StopReason),
)
rows = st.integers(1, 3).map(
    lambda n: TokenStream(tuple(range(n)), (1,) * n, (0,) * n, (-0.5,) * n),
)
trajectories = st.builds(
    Trajectory,
    tasks,
    st.lists(messages, max_size=2).map(tuple),
    st.lists(steps, max_size=3).map(tuple),
    st.lists(rows, max_size=2).map(tuple),
    st.integers(0, 9),
    st.none() | words,
)


@given(trajectories)
def test_trajectories_survive_json(trajectory: Trajectory) -> None:
    text = json.dumps(to_json(trajectory))
    assert from_json(Trajectory, json.loads(text)) == trajectory
    group = Group(trajectory.task, (trajectory,))
    assert from_json(Group, json.loads(json.dumps(to_json(group)))) == group


def test_streams_are_aligned() -> None:
    with pytest.raises(ValueError, match="one length"):
        TokenStream((1, 2), (1,), (0, 0), (0.0, 0.0))


def test_a_trajectory_tells_why_it_ended() -> None:
    step = Step(Action("x"), Observation(), reward=0.25, stop_reason=StopReason.MAX_TURNS)
    trajectory = Trajectory(Task("t", "q", "1"), (Message("user", "q"),), (step, step))
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert trajectory.total_reward == 0.5
    assert [m.role for m in trajectory.messages] == ["user", "assistant", "assistant"]
    assert not Trajectory(Task("t", "q", "1"), (), ()).valid
    broken = Trajectory(Task("t", "q", "1"), (), (step,), fault="died")
    assert (broken.valid, broken.stop_reason) == (False, StopReason.FAULT)


def test_reasons_split_into_terminated_and_truncated() -> None:
    assert {r.value for r in StopReason if r.terminates} == {"answered", "invalid_calls", "ended"}


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan")])
def test_discount_is_checked(gamma: float) -> None:
    with pytest.raises(ValueError, match="gamma"):
        discounted_return([1.0], gamma)
