"""The catalogue: one line per environment id, registered by ``import trajgym``."""

from __future__ import annotations

from gymnasium import register

__all__: list[str] = []

ONE_TURN = {"tools": (), "max_turns": 1}

register("Arithmetic-v0", entry_point="trajgym.envs.arithmetic:ArithmeticEnv", kwargs=ONE_TURN)
register("ArithmeticTool-v0", entry_point="trajgym.envs.arithmetic:ArithmeticEnv")
register("CodeTool-v0", entry_point="trajgym.envs.code:CodeEnv")
register("Debug-v0", entry_point="trajgym.envs.debug:DebugEnv")
register("Detour-v0", entry_point="trajgym.envs.detour:DetourEnv")
register("GSM8K-v0", entry_point="trajgym.envs.gsm8k:GSM8KEnv", kwargs=ONE_TURN)
register("GSM8KTool-v0", entry_point="trajgym.envs.gsm8k:GSM8KEnv")
register("Grid-v0", entry_point="trajgym.envs.grid:GridEnv")
register("Memory-v0", entry_point="trajgym.envs.memory:MemoryEnv")
register("ToolChoice-v0", entry_point="trajgym.envs.choice:ToolChoiceEnv")
