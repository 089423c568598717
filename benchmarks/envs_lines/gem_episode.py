"""A scripted episode: a call of its Python tool, then the answer."""

from datasets import Dataset
from gem.envs.math_env import MathEnv
from gem.tools.python_code_tool import PythonCodeTool
from gem.tools.tool_env_wrapper import ToolEnvWrapper

data = Dataset.from_list([{"problem": "What is 48 + 24?", "answer": "72"}])
env = ToolEnvWrapper(MathEnv(dataset=data), [PythonCodeTool()])
observation, info = env.reset()
for action in ("<python>print(48 + 24)</python>", "\\boxed{72}"):
    observation, reward, terminated, truncated, info = env.step(action)
