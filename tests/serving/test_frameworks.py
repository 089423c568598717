"""Agent frameworks of others with the served model as their LLM: they run the tools, it calls them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
QUESTION = "Mia has 12 apples. She buys 5 more. How many apples does Mia have now?"
SYSTEM = "End with #### and the number."


def work_out(expression: str) -> str:
    a, _, b = expression.partition("+")
    return str(int(a) + int(b))


@pytest.mark.parametrize("streamed", [False, True])
def test_openai_agents_runs_the_loop_to_the_answer(server: Any, streamed: bool) -> None:
    agents = pytest.importorskip("agents")
    from openai import AsyncOpenAI

    calls = []

    @agents.function_tool
    def calculator(expression: str) -> str:
        """Work out an expression."""
        calls.append(expression)
        return work_out(expression)

    async def play() -> str:
        agents.set_tracing_disabled(True)
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            agent = agents.Agent(
                name="reckoner",
                instructions=SYSTEM,
                tools=[calculator],
                model=agents.OpenAIChatCompletionsModel(model="tiny", openai_client=client),
                model_settings=agents.ModelSettings(temperature=0),
            )
            if not streamed:
                return str((await agents.Runner.run(agent, QUESTION)).final_output)
            run = agents.Runner.run_streamed(agent, QUESTION)
            async for _ in run.stream_events():
                pass
            return str(run.final_output)

    assert asyncio.run(play()) == "#### 17"
    assert calls == ["12+5"]


def test_smolagents_calls_the_tool(server: Any) -> None:
    """Its own prompts are longer than the embedded model's context, so it gets short ones."""
    smolagents = pytest.importorskip("smolagents")
    calls = []

    @smolagents.tool
    def calculator(expression: str) -> str:
        """Work out an expression.

        Args:
            expression: What to work out.
        """
        calls.append(expression)
        return work_out(expression)

    model = smolagents.OpenAIServerModel(
        "tiny", api_base=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=60
    )
    prompts = {
        "system_prompt": SYSTEM,
        "planning": {"initial_plan": "", "update_plan_pre_messages": "", "update_plan_post_messages": ""},
        "managed_agent": {"task": "", "report": ""},
        "final_answer": {"pre_messages": "Answer.", "post_messages": "{{task}}"},
    }
    agent = smolagents.ToolCallingAgent([calculator], model, prompt_templates=prompts, max_steps=1, verbosity_level=0)
    agent.run(QUESTION)
    assert calls
    assert all("+" in call for call in calls)
