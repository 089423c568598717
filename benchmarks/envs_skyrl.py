# ruff: noqa: D102  # what the methods do stands in envs_driver.Contender
"""SkyRL-gym's environments, for the benchmark of environments: its GSM8K scoring, and its tools in a user's class."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import skyrl_gym
from envs_driver import CODE, EXPRESSION, SLOW, Contender, arithmetic
from skyrl_gym.envs.base_text_env import BaseTextEnvStepOutput
from skyrl_gym.envs.gsm8k.env import GSM8kEnv
from skyrl_gym.tools import PythonCodeExecutorToolGroup
from skyrl_gym.tools.core import ToolGroup, tool

__all__ = ["Make"]

THREADS = 32
ACTIONS = {"calculator": f"<calculator>{EXPRESSION}</calculator>", "python": f"<python>{CODE}</python>"}
CALL = re.compile(r"<(calculator|python|nap|area)>(.*?)</\1>", re.DOTALL)


class Calculator(ToolGroup):
    """A user's tools: the project has no calculator."""

    def __init__(self) -> None:
        super().__init__("Calculator")

    @tool
    def calculator(self, expression: str) -> str:
        """Evaluate arithmetic."""
        return arithmetic(expression)

    @tool
    def nap(self, _: str) -> str:
        """Sleep."""
        time.sleep(SLOW)
        return "rested"


class ToolEnv(GSM8kEnv):
    """A user's environment: the one for GSM8K that ships calls no tools."""

    def __init__(self, env_config: Any = None, extras: Any = None, groups: Sequence[Any] | None = None) -> None:
        super().__init__(env_config, extras)
        self.init_tool_groups(groups or [Calculator(), PythonCodeExecutorToolGroup()])

    def step(self, action: str) -> Any:
        found = CALL.search(action)
        if found is None:
            return super().step(action)
        said = self._execute_tool(self.tool_to_toolgroup[found[1]], found[1], [found[2]])
        return BaseTextEnvStepOutput(
            observations=[{"role": "user", "content": said}], reward=0.0, done=False, metadata={}
        )


class Make(Contender):
    """Episodes of SkyRL-gym's."""

    def __init__(self, problems: Sequence[dict[str, str]]) -> None:
        super().__init__(problems)
        skyrl_gym.register("benchmark", entry_point=ToolEnv)
        self._threads = ThreadPoolExecutor(THREADS)

    def open(self, number: int) -> Any:
        problem = self.problems[number % len(self.problems)]
        env = skyrl_gym.make("benchmark", extras={"reward_spec": {"ground_truth": problem["answer"]}})
        env.init([{"role": "user", "content": problem["question"]}])
        return env, f"So the answer is {problem['answer']}.\n#### {problem['answer']}"

    def step(self, episode: tuple[Any, str], kind: str) -> Any:
        env, answer = episode
        return env.step(answer if kind == "final" else ACTIONS[kind])

    def text(self, outcome: Any) -> str:
        return str(outcome["observations"][0]["content"])

    def reward(self, outcome: Any) -> float:
        return float(outcome["reward"])

    def together(self, fleet: Any, kinds: Sequence[str]) -> list[Any]:
        # Its trainer steps environments in threads; for what takes microseconds a loop is faster.
        pairs = list(zip(fleet, kinds, strict=True))
        waiting = {i: self._threads.submit(self.step, *pair) for i, pair in enumerate(pairs) if pair[1] == "python"}
        quick = {i: self.step(*pair) for i, pair in enumerate(pairs) if i not in waiting}
        return [waiting[i].result() if i in waiting else quick[i] for i in range(len(pairs))]

    def slow(self) -> Callable[[], Any]:
        env, _ = self.open(0)
        return lambda: [env.step("<nap></nap>") for _ in range(4)]

    def try_tool(self, tool: Any) -> str:
        problem = {"reward_spec": {"ground_truth": "72"}}
        return self.text(ToolEnv(extras=problem, groups=[tool.Shapes()]).step("<area>8 9</area>"))

    def try_env(self, module: Any) -> tuple[str, float]:
        env = skyrl_gym.make("sum")
        prompt, _ = env.init([])
        return str(prompt[0]["content"]), float(env.step("72")["reward"])
