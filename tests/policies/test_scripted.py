"""Policies without a model: the demonstration, noise, and a person at the keyboard."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.envs.tools import get_tool
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.policies.scripted import ExpertPolicy, HumanPolicy, RandomPolicy
from trajgym.protocols import Hermes
from trajgym.types import ExpertTurn, Message, Task, ToolCall

SOLUTION = (ExpertTurn("First", (ToolCall("calculator", {"expression": "48+24"}),)), ExpertTurn("#### 72"))
TASK = Task("sum", "48 + 24?", "72", solution=SOLUTION)
CALCULATOR = {"calculator": get_tool("calculator")}


def dialogue(turns: int) -> list[Message]:
    out = [Message("system", "s"), Message("user", "48 + 24?")]
    for _ in range(turns):
        out += [Message("assistant", "…"), Message("tool", "72")]
    return out


def test_the_expert_plays_the_demonstration_and_then_stays_at_its_end() -> None:
    expert = ExpertPolicy()
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "48+24"}}\n</tool_call>'
    assert [expert.act(dialogue(n), TASK) for n in range(4)] == [f"First\n{call}", "#### 72", "#### 72", "#### 72"]
    assert [ExpertPolicy(tools=False).act(dialogue(n), TASK) for n in range(2)] == ["#### 72", "#### 72"]
    with pytest.raises(ConfigError, match="Task 't' has no demonstration"):
        expert.act(dialogue(0), Task("t", "?", "1"))
    with pytest.raises(UnknownNameError, match="hermes"):
        ExpertPolicy("hermse")


@given(st.integers(), st.integers(0, 20))
def test_noise_depends_on_the_seed_and_the_length_alone(seed: int, turns: int) -> None:
    state = random.getstate()
    noise = RandomPolicy(tools=CALCULATOR)
    assert noise.act(dialogue(turns), TASK, seed) == RandomPolicy(tools=CALCULATOR).act(dialogue(turns), TASK, seed)
    assert random.getstate() == state


def test_noise_shows_an_environment_everything_that_can_happen() -> None:
    noise = RandomPolicy(tools=CALCULATOR)
    parsed = [Hermes().parse(noise.act(dialogue(0), TASK, seed), CALCULATOR) for seed in range(300)]
    errors = {turn.error.kind for turn in parsed if turn.error}
    assert errors == {"unknown_tool", "truncated_call", "missing_argument", "wrong_type"}
    answers = [turn.text.startswith("#### ") for turn in parsed if not turn.error and not turn.calls]
    assert any(answers)
    assert not all(answers)
    assert {c.name for turn in parsed for c in turn.calls} == {"calculator"}


def test_noise_knows_no_tools_unless_told() -> None:
    texts = [RandomPolicy().act(dialogue(0), TASK, s) for s in range(100)]
    assert any('"nothing"' in text for text in texts)
    assert not any("calculator" in text for text in texts)


def typing(lines: list[str], prompts: list[str]) -> HumanPolicy:
    left: Iterator[str] = iter(lines)

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return next(left)

    return HumanPolicy(ask)


def test_a_person_types_a_turn_a_backslash_goes_on() -> None:
    prompts: list[str] = []
    human = typing(["#### 72", "one\\", "\\", " two", ""], prompts)
    assert human.capacity == 1
    assert [human.act((), TASK) for _ in range(3)] == ["#### 72", "one\n\n two", ""]
    assert prompts == ["> ", "> ", "… ", "… ", "> "]


def test_the_end_of_input_is_not_hidden() -> None:
    def ask(prompt: str) -> str:
        raise EOFError

    with pytest.raises(EOFError):
        HumanPolicy(ask).act((), TASK)
