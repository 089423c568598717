"""A new environment, without the lines that put it behind its server and the client that reaches it."""

from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Answer(Action):
    text: str


class Question(Observation):
    question: str = ""


class SumEnvironment(Environment):
    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Question:
        self._state = State(episode_id=episode_id)
        return Question(question="What is 48 + 24?")

    def step(self, action: Answer, timeout_s: float | None = None, **kwargs: Any) -> Question:
        self._state.step_count += 1
        return Question(done=True, reward=float(action.text.strip() == "72"))

    @property
    def state(self) -> State:
        return self._state
