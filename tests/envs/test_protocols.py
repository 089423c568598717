"""Environments in every written form."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from trajgym.envs.sandbox import IsolationUnavailable
from trajgym.envs.tools import tool
from trajgym.errors import ConfigError
from trajgym.protocols import PROTOCOLS, SingleCall, get_protocol
from trajgym.types import StopReason, Task, ToolCall

CALCULATING = [
    name
    for name, protocol in PROTOCOLS.items()
    if not isinstance(protocol, SingleCall) or protocol.only_tool in (None, "calculator")
]
RUNNING = [
    name
    for name, protocol in PROTOCOLS.items()
    if not isinstance(protocol, SingleCall) or protocol.only_tool in (None, "python")
]


def make(env_id: str, **kwargs: Any) -> tuple[Any, Any]:
    env = gymnasium.make(env_id, **kwargs)
    return env, env.unwrapped


def play(env: Any, inner: Any, task: Task) -> tuple[float, StopReason]:
    """Play a task's demonstration; return the total reward and how it ended."""
    env.reset(seed=0, options={"task": task})
    total = 0.0
    for turn in inner.expert(task):
        _, reward, terminated, truncated, info = env.step(turn)
        total += reward
        assert info["step"].error is None
        assert all(result.error is None for result in info["step"].results)
    assert terminated
    assert not truncated
    return total, info["stop_reason"]


@pytest.mark.parametrize("instructions", ["schema", "signature"])
@pytest.mark.parametrize("name", CALCULATING)
def test_demonstrations_with_the_calculator_earn_everything(name: str, instructions: str) -> None:
    env, inner = make("ArithmeticTool-v0", protocol=name, instructions=instructions, max_turns=9)
    for seed in range(10):
        _, info = env.reset(seed=seed)
        task = info["task"]
        assert "calculator" in info["messages"][0].content
        total, stop = play(env, inner, task)
        assert total == pytest.approx(1.0 + 0.1 * task.difficulty)
        assert stop is StopReason.ANSWERED
    env.close()


@pytest.mark.parametrize("name", RUNNING)
def test_demonstrations_with_the_interpreter_earn_everything(name: str) -> None:
    env, inner = make("CodeTool-v0", protocol=name, kinds=["prime_sum", "lamps"])
    try:
        _, info = env.reset(seed=3)
        total, stop = play(env, inner, info["task"])
    except IsolationUnavailable as error:
        pytest.skip(f"no isolation here: {error}")
    assert total == pytest.approx(1.0 + 0.1 * (len(info["task"].solution) - 1))
    assert stop is StopReason.ANSWERED
    env.close()


@pytest.mark.parametrize(
    ("name", "tools", "words"),
    [
        ("python_block", ("calculator",), ["'python_block'", "'python'", "calculator", "tools=['python']"]),
        ("python_block", ("calculator", "python"), ["tools= has calculator."]),
        ("gsm8k_annotation", ("python",), ["'gsm8k_annotation'", "tools=['calculator']"]),
    ],
)
def test_tools_that_a_form_cannot_call_are_refused(name: str, tools: tuple[str, ...], words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        gymnasium.make("ArithmeticTool-v0", protocol=name, tools=tools)
    assert [word for word in words if word not in str(raised.value)] == []


@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_without_tools_every_turn_is_the_answer(name: str) -> None:
    env, inner = make("Arithmetic-v0", protocol=name)
    _, info = env.reset(seed=0)
    _, reward, terminated, _, _ = env.step(inner.expert(info["task"])[-1])
    assert (reward, terminated) == (1.0, True)


@pytest.mark.parametrize(
    ("answer", "paid"), [("#### 72", 1.0), ("Final Answer: 72", 1.0), ("Thought: hm\nFinal Answer: 70", 0.0)]
)
def test_react_answers_in_either_form(answer: str, paid: float) -> None:
    env, _ = make("ArithmeticTool-v0", protocol="react", reward="sparse", tasks=[Task("t", "?", "72")])
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(answer)
    assert (reward, terminated, info["stop_reason"]) == (paid, True, StopReason.ANSWERED)


@pytest.mark.parametrize("answer", ["#### 72", "Final Answer: 72"])
@pytest.mark.parametrize("name", ["react", "gsm8k_annotation", "python_block"])
def test_a_turn_that_calls_and_answers_calls(name: str, answer: str) -> None:
    @tool
    def python(code: str) -> str:
        """Run."""
        return code

    block = name == "python_block"
    call = ToolCall("python", {"code": "24"}) if block else ToolCall("calculator", {"expression": "48/2"})
    options: dict[str, Any] = {"tools": [python]} if block else {}
    env, _ = make("ArithmeticTool-v0", protocol=name, reward="sparse", tasks=[Task("t", "?", "72")], **options)
    env.reset(seed=0)
    shown, reward, terminated, _, info = env.step(f"{answer}\n{get_protocol(name).render(call)}")
    assert (shown, reward, terminated, info["stop_reason"]) == ("24", 0.0, False, None)
    _, reward, terminated, _, _ = env.step(answer)
    assert (reward, terminated) == (1.0, True)
