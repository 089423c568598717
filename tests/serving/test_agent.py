"""``/agent``: an environment's own tool loop behind an address."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from trajgym.errors import ConfigError, TrajgymError
from trajgym.serving.limits import Limits
from trajgym.serving.service import AgentPlan

QUESTION = "Mia has 12 apples. She buys 5 more. How many apples does Mia have now?"
Start = Callable[..., Any]


def ask(server: Any, **body: Any) -> Any:
    with server.http() as client:
        return client.post("/agent", json={"question": QUESTION, "temperature": 0, **body})


def test_the_loop_runs_to_the_answer(server: Any) -> None:
    found = ask(server).json()
    assert found["stop_reason"] == "answered"
    assert found["number"] == 17
    assert found["answer"].endswith("#### 17")
    (call,) = found["steps"][0]["calls"]
    assert (call["name"], call["arguments"], call["content"]) == ("calculator", {"expression": "12+5"}, "17")
    assert [message["role"] for message in found["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert found["usage"]["completion_tokens"] > 5


def test_no_reward_is_told(server: Any) -> None:
    """Nobody knows the answer to a client's question."""
    assert "reward" not in ask(server).text


def test_a_turn_limit_acts(server: Any) -> None:
    found = ask(server, max_turns=1).json()
    assert found["stop_reason"] == "max_turns"
    assert found["answer"] is None
    assert ask(server, max_turns=10**6).status_code == 400
    assert ask(server, max_turns=0).status_code == 400
    assert ask(server, question="").status_code == 400


def test_many_episodes_share_the_engine(server: Any) -> None:
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(server).json()["number"])) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [17] * 6
    assert server.settled()


def test_a_question_that_does_not_fit_ends_by_its_budget_or_is_refused(server: Any) -> None:
    reply = ask(server, question="x " * 4000)
    assert reply.status_code == 200
    assert reply.json()["stop_reason"] == "episode_tokens"


def test_one_agent_too_many_is_turned_away(start: Start) -> None:
    limits = Limits(slots=2, agents=1, max_new_tokens=256)
    busy = start(limits, agent=AgentPlan("ArithmeticTool-v0"))
    busy.slow_down(0.05)
    first = threading.Thread(target=ask, args=(busy,))
    first.start()
    while busy.service.engine.load.running == 0:
        pass
    reply = ask(busy)
    assert reply.status_code == 429
    assert int(reply.headers["retry-after"]) >= 1
    first.join()
    assert ask(busy).json()["number"] == 17


def test_an_episode_that_takes_too_long_is_ended(start: Start) -> None:
    slow = start(Limits(slots=2, request_seconds=0.3), agent=AgentPlan("ArithmeticTool-v0"))
    slow.slow_down(0.1)
    assert ask(slow).status_code == 504
    assert slow.settled()


def test_a_server_without_an_environment_says_so(start: Start) -> None:
    reply = ask(start())
    assert reply.status_code == 404
    assert "--env" in reply.json()["error"]["message"]


@pytest.mark.parametrize("plan", [AgentPlan("Nothing-v0"), AgentPlan("ArithmeticTool-v0", {"colour": "red"})])
def test_a_wrong_environment_is_told_at_the_start(tiny: tuple[Any, Any], plan: AgentPlan) -> None:
    from trajgym.serving.agent import Agents
    from trajgym.serving.service import open_service

    service = open_service(*tiny, name="tiny", agent=plan)
    try:
        with pytest.raises((ConfigError, TrajgymError)):
            Agents(service)
    finally:
        service.engine.close()


def test_the_isolated_interpreter_runs_server_side(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """With turns put into the model's mouth: what it writes as a program is run in the sandbox, here."""
    from trajgym.policies.base import SampledTurn
    from trajgym.serving.engine_sampler import EngineSampler
    from trajgym.types import ToolCall

    server = start(agent=AgentPlan("ArithmeticTool-v0", {"tools": ["python"]}))
    call = server.service.protocol.render(ToolCall("python", {"code": "print(6 * 7)"}))
    texts = iter([call, "#### 42"])

    def step(self: EngineSampler) -> list[SampledTurn]:
        ids = (*server.service.renderer.turn(next(texts)), server.service.renderer.end_id)
        return [SampledTurn(next(iter(self._streams)), ids, (0.0,) * len(ids), "stop")]

    monkeypatch.setattr(EngineSampler, "step", step)
    found = ask(server).json()
    assert found["number"] == 42
    (run,) = found["steps"][0]["calls"]
    assert run["content"].strip() == "42"
    assert run["isolation"] != "none"
