"""Gymnasium-native multi-step environments for LLM agents, and a trainer that uses the reward of every step.

>>> import gymnasium as gym
>>> import trajgym
>>> env = gym.make("ArithmeticTool-v0", reward="hybrid")
>>> text, info = env.reset(seed=0)
>>> for action in env.unwrapped.expert(info["task"]):
...     text, reward, terminated, truncated, info = env.step(action)
>>> reward, terminated, truncated
(1.0, True, False)
"""

from __future__ import annotations

from trajgym import envs

__all__ = ["__version__", "envs"]

__version__ = "0.1.0"
