# ruff: noqa: D102  # what the methods do stands in envs_driver.Contender
"""Our environments, for the benchmark of environments: as ``gymnasium.make`` and ``gymnasium.make_vec`` give them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from envs_driver import CODE, EXPRESSION, SLOW, Contender

import trajgym  # noqa: F401  # registers the environments
from trajgym.envs.tasks import ListTasks
from trajgym.envs.tools import tool
from trajgym.types import Task

__all__ = ["Make"]

ID = "GSM8KTool-v0"
CALLS = {
    "calculator": {"name": "calculator", "arguments": {"expression": EXPRESSION}},
    "python": {"name": "python", "arguments": {"code": CODE}},
}


def written(*calls: dict[str, Any]) -> str:
    """Write calls as a policy does."""
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


ACTIONS = {kind: written(call) for kind, call in CALLS.items()}


@tool
def nap(seconds: float) -> str:
    """Sleep.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "rested"


class Make(Contender):
    """Episodes of ours."""

    def __init__(self, problems: Sequence[dict[str, str]]) -> None:
        super().__init__(problems)
        self._options: dict[str, Any] = {
            "tasks": ListTasks(Task(str(i), one["question"], one["answer"]) for i, one in enumerate(problems)),
            "tools": ("calculator", "python"),
        }
        self._idle: list[Any] = []

    def open(self, number: int) -> tuple[Any, str]:
        env = self._idle.pop() if self._idle else gymnasium.make(ID, **self._options)
        _, info = env.reset(seed=number)
        return env, _answer(info["task"])

    def step(self, episode: tuple[Any, str], kind: str) -> Any:
        env, answer = episode
        return env.step(answer if kind == "final" else ACTIONS[kind])

    def close(self, episode: tuple[Any, str]) -> None:
        episode[0].unwrapped.close()  # ends its interpreter
        self._idle.append(episode[0])

    def text(self, outcome: Any) -> str:
        return str(outcome[0])

    def reward(self, outcome: Any) -> float:
        return float(outcome[1])

    def fleet(self, count: int) -> Any:
        envs = gymnasium.make_vec(ID, num_envs=count, **self._options)
        return self._begun(envs)

    def renew(self, fleet: Any) -> Any:
        return self._begun(fleet[0])

    def together(self, fleet: Any, kinds: Sequence[str]) -> list[Any]:
        envs, answers = fleet
        actions = [answer if kind == "final" else ACTIONS[kind] for answer, kind in zip(answers, kinds, strict=True)]
        texts, rewards, _, _, _ = envs.step(actions)
        return list(zip(texts, rewards, strict=True))

    def scrap(self, fleet: Any) -> None:
        fleet[0].close()

    def slow(self) -> Callable[[], Any]:
        env = gymnasium.make(ID, **{**self._options, "tools": (nap,)})
        env.reset(seed=0)
        action = written(*[{"name": "nap", "arguments": {"seconds": SLOW}}] * 4)
        return lambda: env.step(action)

    def try_tool(self, tool: Any) -> str:
        env = gymnasium.make(ID, **{**self._options, "tools": (tool.area,)})
        env.reset(seed=0)
        return str(env.step(written({"name": "area", "arguments": {"width": 8.0, "height": 9.0}}))[0])

    def try_env(self, module: Any) -> tuple[str, float]:
        env = gymnasium.make("Sum-v0")
        _, info = env.reset(seed=0)
        return info["task"].question, float(env.step("#### 72")[1])

    @staticmethod
    def _begun(envs: Any) -> tuple[Any, tuple[str, ...]]:
        _, infos = envs.reset(seed=0)
        return envs, tuple(map(_answer, infos["task"]))


def _answer(task: Task) -> str:
    return f"So the answer is {task.answer}.\n#### {task.answer}"
