"""Comparing within a state, and what makes two states of a dialogue the same."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.errors import UnknownNameError
from trajgym.trainers.advantages_returns import return_to_go
from trajgym.trainers.advantages_states import anchor, state_keys
from trajgym.types import Action, Message, Observation, Step, Task, ToolCall, Trajectory

NUMBERS = st.floats(-2, 2, allow_subnormal=False)


def played(*steps: tuple[str, dict[str, Any], str], last: str = "#### 72") -> Trajectory:
    """A trajectory of calculator calls, (what is said, arguments, result), and an answer."""
    turns = [
        Step(
            Action(text, calls=(ToolCall("calculator", arguments, id=f"call-{text}"),)),
            Observation((Message("tool", result, name="calculator", call_id=f"call-{text}"),)),
        )
        for text, arguments, result in steps
    ]
    return Trajectory(Task("t", "?", "72"), (), (*turns, Step(Action(last), Observation(), terminated=True)))


def test_other_visits_at_any_time_are_the_baseline() -> None:
    rewards = [[0.0, 1.0], [3.0], [0.0, 0.0, 5.0]]
    states = [["a", "b"], ["b"], ["a", "b", "b"]]
    first, second, third = anchor(rewards, gamma=0.5, states=states)
    assert first == [0.5 - 1.25, 0.5 * (1.0 - (3.0 + 2.5 + 5.0) / 3)]
    assert second == [3.0 - (1.0 + 2.5 + 5.0) / 3]
    assert third == [1.25 - 0.5, 0.5 * (2.5 - (1.0 + 3.0) / 2), 0.25 * (5.0 - (1.0 + 3.0) / 2)]


def test_where_nobody_came_by_it_falls_back() -> None:
    rewards, states = [[0.0, 1.0], [3.0, 4.0], [2.0]], [["a", "b"], ["a", "c"], ["d"]]
    assert anchor(rewards, gamma=1.0, states=states)[0][1] == 1.0 - 4.0
    assert anchor(rewards, gamma=1.0, states=states, fallback="absorbing")[0][1] == 1.0 - 4.0 / 2
    assert anchor(rewards, gamma=1.0, states=states, fallback="none")[0][1] == 1.0
    with pytest.raises(UnknownNameError, match="fallback"):
        anchor(rewards, gamma=1.0, states=states, fallback="v0")


@settings(max_examples=25)
@given(st.lists(st.lists(NUMBERS, min_size=1, max_size=4), min_size=2, max_size=4), st.floats(0, 1))
def test_with_the_turn_as_state_it_is_return_to_go(rewards: list[list[float]], gamma: float) -> None:
    states = [list(range(len(row))) for row in rewards]
    by_turn = return_to_go(rewards, gamma=gamma)
    for a, b in zip(anchor(rewards, gamma=gamma, states=states), by_turn, strict=True):
        assert a == pytest.approx(b, abs=1e-9)


def test_wording_and_order_of_arguments_are_left_out() -> None:
    one = state_keys(played(("Let me see.", {"a": 1, "b": [2]}, "24"), ("Then", {"a": 2}, "3")))
    other = state_keys(played(("Hm,", {"b": [2], "a": 1}, "24"), ("so", {"a": 2}, "3"), last="It is 3."))
    assert one == other
    assert len(set(one)) == len(one) == 3


@pytest.mark.parametrize(
    "changed",
    [
        played(("", {"a": 2}, "24")),
        played(("", {"a": 1}, "25")),
        played(("", {"a": "1"}, "24")),
        played(("", {"a": 1}, "24"), ("", {}, "")),
    ],
)
def test_what_was_done_and_seen_is_not(changed: Trajectory) -> None:
    plain = state_keys(played(("", {"a": 1}, "24")))
    assert plain[0] == state_keys(changed)[0] == ()
    assert plain[-1] != state_keys(changed)[-1]


def test_a_key_says_nothing_of_the_turn_it_stands_before() -> None:
    a, b = played(("", {"a": 1}, "24")), played(("", {"a": 2}, "25"))
    assert state_keys(a)[0] == state_keys(b)[0]
    a, b = played(("", {"a": 1}, "24"), last="72"), played(("", {"a": 1}, "24"), ("", {"a": 9}, "9"))
    assert state_keys(a) == state_keys(b)[:2]


def test_what_an_environment_plays_has_keys() -> None:
    env = gymnasium.make("trajgym:ArithmeticTool-v0")
    steps, over = [], False
    _, info = env.reset(seed=0)
    turns = iter(["nothing to read <tool_call>", *env.unwrapped.expert(info["task"])])
    while not over:
        _, _, terminated, truncated, info = env.step(next(turns))
        steps.append(info["step"])
        over = terminated or truncated
    keys = state_keys(Trajectory(info["task"], (), tuple(steps)))
    assert len(keys) == len(steps)
    assert len(set(keys)) == len(keys)
    env.close()
