# ruff: noqa: D102  # what the methods do stands in envs_driver.Contender
"""aviary's environments, for the benchmark of environments: its GSM8K with its calculator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from aviary.core import Message, Tool, ToolCall, ToolRequestMessage
from aviary.envs.gsm8k import CalculatorEnv
from envs_driver import EXPRESSION, SLOW, Contender

__all__ = ["Make"]


class Slow(CalculatorEnv):
    """The same with a slow tool."""

    async def reset(self) -> Any:
        messages, _ = await super().reset()
        self.tools = [Tool.from_function(self.nap)]
        return messages, self.tools

    def nap(self) -> tuple[str, float, bool]:
        """Sleep."""
        time.sleep(SLOW)
        return "rested", 0.0, False


class Make(Contender):
    """Episodes of aviary's."""

    lacks: ClassVar[dict[str, str]] = {"python": "its GSM8K has no code tool; the notebook is a package of its own"}

    def __init__(self, problems: Sequence[dict[str, str]]) -> None:
        super().__init__(problems)
        self._loop = asyncio.Runner()

    def open(self, number: int) -> Any:
        problem = self.problems[number % len(self.problems)]
        env = CalculatorEnv(str(number), problem["question"], float(problem["answer"].replace(",", "")))
        self._loop.run(env.reset())
        return env, _request("submit_answer", answer=problem["answer"].replace(",", ""))

    def step(self, episode: Any, kind: str) -> Any:
        return self.run([episode], kind)[0]

    def run(self, episodes: Sequence[Any], kind: str) -> list[Any]:
        async def one_by_one() -> list[Any]:
            return [await self._step(episode, kind) for episode in episodes]

        return self._loop.run(one_by_one())

    def together(self, fleet: Any, kinds: Sequence[str]) -> list[Any]:
        async def at_once() -> list[Any]:
            return await asyncio.gather(*map(self._step, fleet, kinds))

        return self._loop.run(at_once())

    def text(self, outcome: Any) -> str:
        return str(outcome[0][0].content)

    def reward(self, outcome: Any) -> float:
        return float(outcome[1])

    def slow(self) -> Callable[[], Any]:
        env = Slow("slow", "", 0.0)
        self._loop.run(env.reset())
        request = ToolRequestMessage(tool_calls=[ToolCall.from_name("nap") for _ in range(4)])
        return lambda: self._loop.run(env.step(request))

    def try_tool(self, tool: Any) -> str:
        env = CalculatorEnv("tool", "", 0.0)
        self._loop.run(env.reset())
        env.tools.append(tool.area_tool)
        answers = self._loop.run(env.exec_tool_calls(_request("area", width=8.0, height=9.0)))
        return str(answers[0].content)

    def try_env(self, module: Any) -> tuple[str, float]:
        env = module.SumEnv()
        messages, _ = self._loop.run(env.reset())
        return str(messages[0].content), float(self._loop.run(env.step(_request("submit", answer="72")))[1])

    @staticmethod
    async def _step(episode: tuple[Any, Message], kind: str) -> Any:
        env, answer = episode
        return await env.step(answer if kind == "final" else CALCULATE)


def _request(name: str, **arguments: Any) -> Message:
    return ToolRequestMessage(tool_calls=[ToolCall.from_name(name, **arguments)])


CALCULATE = _request("calculator", expr=EXPRESSION)
