"""TextPolicy: many dialogues at once, each turn a function of its own dialogue."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trajgym.policies.base import TextPolicy
from trajgym.types import Action, Message, Task

TASK = Task("sum", "48 + 24?", "72")
PROMPT = (Message("user", "48 + 24?"),)


class Listing(TextPolicy):
    """Says its seed and what it was told."""

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        return f"{seed}: {' '.join(m.content for m in messages)}"


class Refusing(TextPolicy):
    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        raise ValueError("no")


def test_turns_come_once_and_in_the_order_asked_for() -> None:
    policy = Listing(capacity=3)
    assert policy.capacity == 3
    assert policy.poll() == []
    policy.start(8, PROMPT, task=TASK, seed=1)
    policy.start(2, PROMPT, task=TASK, seed=2)
    assert policy.poll() == [(8, Action("1: 48 + 24?")), (2, Action("2: 48 + 24?"))]
    assert policy.poll() == []


def test_the_dialogue_grows_by_its_own_turn_and_the_answer_to_it() -> None:
    policy = Listing()
    policy.start(0, PROMPT, task=TASK, seed=1)
    policy.start(1, PROMPT, task=TASK, seed=2)
    policy.poll()
    policy.observe(1, [Message("tool", "a"), Message("tool", "b")])
    assert policy.poll() == [(1, Action("2: 48 + 24? 2: 48 + 24? a b"))]


def test_an_episode_leaves_nothing_behind() -> None:
    policy = Listing()
    policy.start(0, PROMPT, task=TASK, seed=1)
    policy.start(1, PROMPT, task=TASK, seed=2)
    assert policy.finish(0) == ()  # in the middle of its turn
    assert policy.poll() == [(1, Action("2: 48 + 24?"))]
    policy.start(0, PROMPT, task=TASK, seed=3)  # its number is free again
    assert policy.poll() == [(0, Action("3: 48 + 24?"))]
    policy.finish(0)
    policy.finish(0)
    with pytest.raises(KeyError):
        policy.observe(0, [])


def test_the_callers_messages_are_not_touched() -> None:
    messages = list(PROMPT)
    policy = Listing()
    policy.start(0, messages, task=TASK, seed=1)
    policy.poll()
    assert messages == list(PROMPT)


def test_what_a_policy_raises_is_not_hidden() -> None:
    policy = Refusing()
    policy.start(0, PROMPT, task=TASK, seed=1)
    with pytest.raises(ValueError, match="no"):
        policy.poll()


def test_a_dialogue_can_be_gone_on_with() -> None:
    policy, other = Listing(), Listing()
    policy.start(0, PROMPT, task=TASK, seed=1)
    policy.poll()
    policy.observe(0, [Message("tool", "a")])
    assert policy.context(0) == ()  # no tokens
    dialogue = [*PROMPT, Message("assistant", "1: 48 + 24?"), Message("tool", "a")]
    other.resume(5, dialogue, policy.context(0), task=TASK, seed=1)
    assert other.poll() == [(5, policy.poll()[0][1])]
    other.resume(6, dialogue, (), task=TASK, seed=9)
    assert other.poll()[0][1].text.startswith("9: 48 + 24? 1: 48 + 24? a")
