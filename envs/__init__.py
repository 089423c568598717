"""The catalogue: one line per environment id, registered by ``import trajgym``."""

from __future__ import annotations

from typing import Any

from gymnasium import register

__all__: list[str] = []

ONE_TURN = {"tools": (), "max_turns": 1}


def _register(env_id: str, family: str, **kwargs: Any) -> None:
    module = f"trajgym.envs.{family.partition(':')[0]}"
    register(env_id, entry_point=f"trajgym.envs.{family}", vector_entry_point=f"{module}:vector_env", kwargs=kwargs)


_register("Arithmetic-v0", "arithmetic:ArithmeticEnv", **ONE_TURN)
_register("ArithmeticTool-v0", "arithmetic:ArithmeticEnv")
_register("CodeTool-v0", "code:CodeEnv")
_register("Debug-v0", "debug:DebugEnv")
_register("Detour-v0", "detour:DetourEnv")
_register("GSM8K-v0", "gsm8k:GSM8KEnv", **ONE_TURN)
_register("GSM8KTool-v0", "gsm8k:GSM8KEnv")
_register("Grid-v0", "grid:GridEnv")
_register("Memory-v0", "memory:MemoryEnv")
_register("ToolChoice-v0", "choice:ToolChoiceEnv")
