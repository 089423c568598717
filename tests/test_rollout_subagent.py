"""Agents as tools: a planner names subtasks, another policy makes the calls."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import pytest

from trajgym.envs.arithmetic import ArithmeticEnv
from trajgym.envs.check import check_env
from trajgym.envs.choice import ToolChoiceEnv
from trajgym.envs.choice_tasks import plan
from trajgym.envs.tools import ToolFailure
from trajgym.errors import ConfigError, EnvironmentFault
from trajgym.evaluation.audit import audit
from trajgym.policies.base import TextPolicy
from trajgym.policies.scripted import ExpertPolicy
from trajgym.protocols import get_protocol
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.rollout_subagent import PlannerEnv, Subagent, subagent
from trajgym.types import ExpertTurn, Message, StopReason, Task, ToolCall

HERMES = get_protocol("hermes")


class Clerk(TextPolicy):
    """Calls the tools that a question to the office names, in order, and says what the last one answered."""

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        question = messages[1].content
        if found := re.search(r"the (\w+) of the (\w+)\?", question):
            calls = [ToolCall(f"get_{found[1]}", {"item": found[2]})]
        elif found := re.search(r"the (\w+)'s code in the (\w+)\?", question):
            calls = [ToolCall(f"enter_{found[2]}"), ToolCall(f"{found[2]}_code", {"item": found[1]})]
        elif found := re.search(r"the (\w+)'s box (\d+) hold", question):
            calls = [ToolCall(f"enter_{found[1]}"), ToolCall(f"{found[1]}_box", {"code": found[2]})]
        else:
            return "I do not know. ####"
        turn = sum(m.role == "assistant" for m in messages)
        if turn < len(calls):
            return HERMES.render_turn(ExpertTurn(calls=(calls[turn],)))
        return f"#### {messages[-1].content}"


class Talker(TextPolicy):
    """Calls something that does not exist, again and again."""

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        return HERMES.render_turn(ExpertTurn(calls=(ToolCall("nothing"),)))


OFFICE = functools.partial(gymnasium.make, "ToolChoice-v0", tools_count=12, difficulty=3)


def planner(policy: TextPolicy | None = None, **kwargs: Any) -> PlannerEnv:
    return PlannerEnv(policy or Clerk(), OFFICE, plan=plan, **kwargs)


def test_a_planner_solves_what_its_clerk_cannot() -> None:
    env = planner(reward="sparse")
    for seed in range(5):
        _, info = env.reset(seed=seed)
        task = info["task"]
        for turn in env.expert(task):
            shown, reward, *_, info = env.step(turn)
        assert (reward, info["stop_reason"]) == (1.0, StopReason.ANSWERED)
        # Asked for the whole at once, the clerk says nothing: the second subtask needs what the first one found.
        whole = ExpertTurn(calls=(ToolCall("delegate", {"subtask": task.question}),))
        env.reset(options={"task": task})
        shown, *_ = env.step(env.protocol.render_turn(whole))
        assert shown == "(nothing)"
        assert "delegate(subtask: string)" in env.system
        assert "archive" not in env.system, "the tools are the clerk's"


def test_subtasks_live_in_the_world_of_the_task() -> None:
    env = planner()
    _, info = env.reset(seed=1)
    first = env.expert(info["task"])[0]
    answers = {env.step(first)[0]}
    other = Task("other", "?", "1", metadata={**info["task"].metadata, "office": 5})
    env.reset(options={"task": other})
    answers.add(env.step(first)[0])
    assert len(answers) == 2


def test_the_contract_holds_and_no_exploit_pays() -> None:
    check_env(planner(), skip_render_check=True, episodes=2)
    result = audit(planner, tasks=5)
    assert result.passed, result.findings


def test_a_planner_can_be_cloned_in_the_middle() -> None:
    env = planner()
    _, info = env.reset(seed=2)
    first, *others = env.expert(info["task"])
    env.step(first)
    twin = env.clone()
    mine = [env.step(turn)[:2] for turn in others]
    assert mine == [twin.step(turn)[:2] for turn in others]
    assert mine[-1][1] >= 1.0


def test_a_subagent_that_comes_to_no_answer_is_an_error_of_the_call() -> None:
    env = planner(Talker())
    env.reset(seed=0)
    *_, info = env.step(env.protocol.render_turn(ExpertTurn(calls=(ToolCall("delegate", {"subtask": "Say it."}),))))
    assert info["step"].results[0].error == "no_answer"
    assert "invalid_calls" in info["step"].results[0].content
    *_, info = env.step(env.protocol.render_turn(ExpertTurn(calls=(ToolCall("delegate", {"subtask": " "}),))))
    assert info["step"].results[0].error == "empty"


def test_a_tool_that_is_an_agent_works_in_any_environment() -> None:
    class Adder(TextPolicy):
        """Works a subtask out with the calculator of its own environment."""

        def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
            if messages[-1].role == "tool":
                return f"It is so. #### {messages[-1].content}"
            return HERMES.render_turn(ExpertTurn(calls=(ToolCall("calculator", {"expression": task.question}),)))

    helper = subagent(Adder(), lambda: gymnasium.make("ArithmeticTool-v0"), name="work_out")
    env = ArithmeticEnv(tasks=[Task("t", "What are 6 and 7, multiplied?", "42")], tools=[helper], reward="hybrid")
    env.reset(seed=0)
    ask = env.protocol.render_turn(ExpertTurn(calls=(ToolCall("work_out", {"subtask": "6*7"}),)))
    shown, reward, *_ = env.step(ask)
    assert (shown, reward) == ("42", pytest.approx(0.1))
    twin = env.clone()
    assert [e.step("#### 42")[1] for e in (env, twin)] == [1.0, 1.0]


def test_many_planners_share_one_clerk() -> None:
    agent = Subagent(Clerk(), OFFICE)
    tasks = [OFFICE().unwrapped.tasks.get(f"choice/train/12/3/{i}") for i in range(8)]  # type: ignore[attr-defined]
    subtasks = [Task(t.id, plan(t)[0].calls[0].arguments["subtask"], "", metadata=t.metadata) for t in tasks]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda task: agent.answer(task, 0), subtasks))
    assert found == [agent.answer(task, 0) for task in subtasks]
    assert len(set(found)) > 4
    with EnvPool(planner, threads=4) as pool_of_planners:
        trajectories = collect(ExpertPolicy(), pool_of_planners, [Episode(i, i) for i in range(6)])
    assert all(t.stop_reason is StopReason.ANSWERED and t.total_reward > 1.0 for t in trajectories)


def test_what_cannot_be_a_subagent_and_faults() -> None:
    with pytest.raises(ConfigError, match="CartPole"):
        Subagent(Clerk(), lambda: gymnasium.make("CartPole-v1"))

    class Broken(ToolChoiceEnv):
        def _transition(self, action: str) -> Any:
            raise OSError("gone")

    agent = Subagent(Clerk(), lambda: Broken())
    with pytest.raises(EnvironmentFault, match="gone"):
        agent.answer(Task("t", "What is the price of the lamp?", "", metadata={"office": 1}), 0)
    with pytest.raises(ToolFailure):
        Subagent(Talker(), OFFICE).answer(Task("t", "?", "", metadata={"office": 1}), 0)
