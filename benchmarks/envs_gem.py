# ruff: noqa: D102  # what the methods do stands in envs_driver.Contender
"""GEM's environments, for the benchmark of environments: its mathematics with its tool wrapper and Python tool."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import gem
from datasets import Dataset
from envs_driver import CODE, EXPRESSION, SLOW, Contender, arithmetic
from gem.envs.math_env import MathEnv
from gem.tools.base_tool import BaseTool
from gem.tools.python_code_tool import PythonCodeTool
from gem.tools.tool_env_wrapper import ToolEnvWrapper

__all__ = ["Make"]

ACTIONS = {"calculator": f"<calculator>{EXPRESSION}</calculator>", "python": f"<python>{CODE}</python>"}


class Calculator(BaseTool):
    """A user's tool: the project has no calculator."""

    tool_type = "calculator"

    def instruction_string(self) -> str:
        return "Write <calculator>EXPRESSION</calculator> to have an expression evaluated."

    def execute_action(self, action: str) -> tuple[bool, bool, str, str]:
        found = re.search(r"<calculator>(.*?)</calculator>", action, re.DOTALL)
        if found is None:
            return False, True, "", action
        return True, False, arithmetic(found[1]), action[: found.end()]


class Nap(BaseTool):
    """A slow tool."""

    tool_type = "nap"

    def instruction_string(self) -> str:
        return "Write <nap/> to sleep."

    def execute_action(self, action: str) -> tuple[bool, bool, str, str]:
        time.sleep(SLOW)
        return True, False, "rested", action


class Make(Contender):
    """Episodes of GEM's."""

    gives_up = "its grader has one second"

    def __init__(self, problems: Sequence[dict[str, str]]) -> None:
        super().__init__(problems)
        self._data = Dataset.from_list([{"problem": p["question"], "answer": p["answer"]} for p in problems])
        self._idle: list[Any] = []
        gem.register("benchmark:Problems", MathEnv, dataset=self._data)

    def open(self, number: int) -> Any:
        env = self._idle.pop() if self._idle else _with_tools(MathEnv(dataset=self._data, seed=number))
        env.reset()
        return env

    def step(self, episode: Any, kind: str) -> Any:
        return episode.step(_answer(episode) if kind == "final" else ACTIONS[kind])

    def close(self, episode: Any) -> None:
        self._idle.append(episode)

    def text(self, outcome: Any) -> str:
        return str(outcome[0])

    def reward(self, outcome: Any) -> float:
        return float(outcome[1])

    def fleet(self, count: int) -> Any:
        return self.renew(gem.make_vec(["benchmark:Problems"] * count, wrappers=[_with_tools], async_mode=True))

    def renew(self, fleet: Any) -> Any:
        fleet.reset()
        return fleet

    def together(self, fleet: Any, kinds: Sequence[str]) -> list[Any]:
        pairs = zip(fleet.envs, kinds, strict=True)
        actions = [_answer(env) if kind == "final" else ACTIONS[kind] for env, kind in pairs]
        observations, rewards, _, _, _ = fleet.step(actions)
        return list(zip(observations, rewards, strict=True))

    def scrap(self, fleet: Any) -> None:
        fleet.thread_pool_executer.shutdown()
        for env in fleet.envs:
            env.unwrapped.mp_pool.terminate()
            env.unwrapped.mp_pool.join()

    def slow(self) -> Callable[[], Any]:
        env = ToolEnvWrapper(MathEnv(dataset=self._data, use_mp=False), [Nap()])
        env.reset()
        return lambda: [env.step("<nap/>") for _ in range(4)]

    def try_tool(self, tool: Any) -> str:
        env = ToolEnvWrapper(MathEnv(dataset=self._data, use_mp=False), [tool.Area()])
        env.reset()
        return str(env.step("<area>8 9</area>")[0])

    def try_env(self, module: Any) -> tuple[str, float]:
        env = gem.make("sum")
        question, _ = env.reset(seed=0)
        return str(question), float(env.step("72")[1])


def _with_tools(env: Any) -> Any:
    return ToolEnvWrapper(env, [Calculator(), PythonCodeTool()])


def _answer(env: Any) -> str:
    return f"So the answer is \\boxed{{{env.unwrapped.answer}}}."
