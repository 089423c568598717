"""A scripted episode: a call of its calculator, then the answer."""

import asyncio
from typing import Any

from aviary.core import ToolCall, ToolRequestMessage
from aviary.envs.gsm8k import CalculatorEnv


async def play() -> Any:
    env = CalculatorEnv("sum", "What is 48 + 24?", 72.0)
    await env.reset()
    for call in (ToolCall.from_name("calculator", expr="48 + 24"), ToolCall.from_name("submit_answer", answer="72")):
        outcome = await env.step(ToolRequestMessage(tool_calls=[call]))
    return outcome[1]


reward = asyncio.run(play())
