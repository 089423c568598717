"""A scripted episode: an embedded problem, its demonstration with a calculator."""

import gymnasium

env = gymnasium.make("trajgym:ArithmeticTool-v0")
text, info = env.reset(seed=0)
for action in env.unwrapped.expert(info["task"]):
    text, reward, terminated, truncated, info = env.step(action)
