# ruff: noqa: D102  # what the methods do stands in envs_driver.Contender
"""OpenEnv's environments, for the benchmark of environments: a user's class with its Python executor, in process.

The package ships no mathematics. Its environments are meant to run behind its HTTP server; without that they cost less.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from envs_driver import CODE, EXPRESSION, SLOW, Contender, arithmetic
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.rubrics import Rubric
from openenv.core.tools import PyExecutor

__all__ = ["Make"]


class Turn(Action):
    """What the policy does: a tool and its input, or the answer."""

    tool: str
    text: str


class Said(Observation):
    """What a tool answered."""

    text: str = ""


class Exact(Rubric):
    """Pays the answer that is the same text."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, action: Turn, observation: Said) -> float:
        return float(action.text.strip() == self.answer)


class Problem(Environment):
    """A user's environment."""

    def __init__(self, question: str, answer: str) -> None:
        super().__init__(rubric=Exact(answer))
        self.question = question
        self._state = State()
        self._python = PyExecutor()
        self.tools: dict[str, Callable[[str], str]] = {
            "calculator": arithmetic,
            "python": lambda code: str(self._python.run(code).stdout),
            "nap": _nap,
        }

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Said:
        self._reset_rubric()
        self._state = State(episode_id=episode_id)
        return Said(text=self.question)

    def step(self, action: Turn, timeout_s: float | None = None, **kwargs: Any) -> Said:
        self._state.step_count += 1
        if action.tool != "answer":
            return Said(text=self.tools[action.tool](action.text), reward=0.0)
        said = Said(done=True)
        said.reward = self._apply_rubric(action, said)
        return said

    @property
    def state(self) -> State:
        return self._state


def _nap(text: str) -> str:
    time.sleep(SLOW)
    return "rested"


ACTIONS = {"calculator": Turn(tool="calculator", text=EXPRESSION), "python": Turn(tool="python", text=CODE)}


class Make(Contender):
    """Episodes of OpenEnv's."""

    def open(self, number: int) -> Any:
        problem = self.problems[number % len(self.problems)]
        env = Problem(problem["question"], problem["answer"])
        env.reset()
        return env, Turn(tool="answer", text=problem["answer"])

    def step(self, episode: tuple[Any, Turn], kind: str) -> Any:
        env, answer = episode
        return env.step(answer if kind == "final" else ACTIONS[kind])

    def text(self, outcome: Any) -> str:
        return str(outcome.text)

    def reward(self, outcome: Any) -> float:
        return float(outcome.reward)

    def slow(self) -> Callable[[], Any]:
        env, _ = self.open(0)
        return lambda: [env.step(Turn(tool="nap", text="")) for _ in range(4)]

    def try_tool(self, tool: Any) -> str:
        class Host(MCPEnvironment):
            state = None

            def reset(self, *args: Any, **kwargs: Any) -> Any:
                return Observation()

            def _step_impl(self, action: Any, **kwargs: Any) -> Any:
                return Observation()

        call = CallToolAction(tool_name="area", arguments={"width": 8.0, "height": 9.0})
        return str(Host(tool.server).step(call).result.data)

    def try_env(self, module: Any) -> tuple[str, float]:
        env = module.SumEnvironment()
        question = env.reset().question
        return str(question), float(env.step(module.Answer(text="72")).reward)
