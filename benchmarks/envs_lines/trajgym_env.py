"""A new environment."""

from typing import Any

import gymnasium

from trajgym.envs.base import ToolEnv
from trajgym.types import Task


class SumEnv(ToolEnv):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__([Task("sum", "What is 48 + 24?", "72")], **kwargs)


gymnasium.register("Sum-v0", entry_point=SumEnv)
