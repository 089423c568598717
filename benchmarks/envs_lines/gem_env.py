"""A new environment."""

from typing import Any

import gem


class SumEnv(gem.Env):
    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed)
        return "What is 48 + 24?", {}

    def step(self, action: str) -> tuple[Any, ...]:
        return "", float(action.strip() == "72"), True, False, {}


gem.register("sum", SumEnv)
