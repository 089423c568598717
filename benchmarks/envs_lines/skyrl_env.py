"""A new environment."""

from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput


class SumEnv(BaseTextEnv):
    def __init__(self, env_config: Any = None, extras: Any = None) -> None:
        super().__init__()

    def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
        return [{"role": "user", "content": "What is 48 + 24?"}], {}

    def step(self, action: str) -> Any:
        reward = float(action.strip() == "72")
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})


skyrl_gym.register("sum", entry_point=SumEnv)
