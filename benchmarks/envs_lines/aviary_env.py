"""A new environment."""

from typing import Any

from aviary.core import Environment, Message, Tool


class SumEnv(Environment):
    async def reset(self) -> Any:
        self.tools = [Tool.from_function(self.submit, allow_empty_param_descriptions=True)]
        return [Message(content="What is 48 + 24?")], self.tools

    async def step(self, action: Message) -> Any:
        messages = await self.exec_tool_calls(action)
        return messages, self.reward, True, False

    def submit(self, answer: str) -> str:
        """Submit the answer."""
        self.reward = float(answer == "72")
        return "done"
