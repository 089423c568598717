"""A scripted episode of one turn, of the new environment: no other comes with the package."""

from openenv_env import Answer, SumEnvironment

env = SumEnvironment()
observation = env.reset()
for action in (Answer(text="72"),):
    observation = env.step(action)
reward = observation.reward
