"""The tool ``python`` in environments: an interpreter per episode, and a fault in one costs that one alone."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import os
import pickle
import select
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import gymnasium
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from trajgym.envs.base import ToolEnv
from trajgym.envs.check import check_env
from trajgym.envs.sandbox import Pool
from trajgym.envs.tools import Tool, ToolSessions
from trajgym.envs.tools.python import python_tool
from trajgym.errors import ConfigError, RewardError
from trajgym.policies.base import TextPolicy
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.types import Message, StopReason, Task, ToolCall, ToolResult

SECONDS = 20.0  # for what should happen at once, on a machine that is busy
TASKS = [Task("six", "6 * 7?", "42"), Task("seven", "7 * 7?", "49")]


pytestmark = pytest.mark.usefixtures("isolated", "nothing_is_left")


def live(pool: Pool) -> int:
    """Return how many of a pool's sessions have not ended."""
    return sum(session.dead is None for session in list(pool._link.members))


def ask(sessions: ToolSessions, *codes: str) -> list[ToolResult]:
    return [sessions.run([ToolCall("python", {"code": code})])[0] for code in codes]


def turn(*codes: str) -> str:
    calls = (json.dumps({"name": "python", "arguments": {"code": code}}) for code in codes)
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def zygote(pool: Pool) -> int:
    children = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{entry}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) == pool._link.pid:
                children.append(int(entry))
    (pid,) = children
    return pid


@pytest.mark.parametrize("end", ["close", "reset", "answer", "turns", "error", "drop"])
def test_the_interpreter_goes_with_its_episode(python: Tool, pool: Pool, end: str) -> None:
    def broken(step: Any, task: Task, history: Sequence[Any]) -> float:
        return 1 / 0 if "fail" in step.action.text else 0.0

    env = ToolEnv(TASKS, tools=[python], max_turns=3, reward={"broken": (broken, 1.0)})
    env.reset(seed=0)
    assert env.step(turn("x = 6", "x * 7"))[0] == "(no output)\n\n42"
    assert live(pool) == 1
    if end == "close":
        env.close()
    elif end == "reset":
        env.reset(seed=1)
        assert env.step(turn("x"))[4]["step"].results[0].error == "exception"
        assert live(pool) == 1
        env.close()
    elif end == "answer":
        env.step("#### 42")
    elif end == "turns":
        env.step(turn("x"))
        assert env.step(turn("x"))[4]["stop_reason"] is StopReason.MAX_TURNS
    elif end == "error":
        with pytest.raises(RewardError):
            env.step(turn("'fail'"))
        env.close()
    else:
        del env
        gc.collect()
    assert live(pool) == 0


def test_copies_and_pickles_of_an_environment_work_on_their_own(python: Tool) -> None:
    env = ToolEnv(TASKS, tools=[python, python_tool(name="other", stateless=True, packages=())])
    twins = [copy.deepcopy(env), cloudpickle.loads(cloudpickle.dumps(env))]
    for twin in twins:
        twin.reset(seed=0)
        assert twin.step(turn("x = 6", "x * 7"))[0] == "(no output)\n\n42"
        assert twin.tools["other"].description == env.tools["other"].description
        twin.close()
    assert pickle.loads(cloudpickle.dumps(python))().limits == python().limits


def test_an_interpreter_that_runs_cannot_be_cloned_and_one_for_each_call_can(python: Tool) -> None:
    each = python_tool(name="each", stateless=True, packages=())
    assert (python.can_clone, each.can_clone) == (False, True)
    with ToolSessions([each], seed=3) as sessions:
        ask_each = [ToolCall("each", {"code": "import random; print(random.random())"})]
        drawn = sessions.run(ask_each)
        with sessions.clone() as twin:
            assert twin.run(ask_each) == sessions.run(ask_each) == drawn
    env = ToolEnv(TASKS, tools=[python])
    env.reset(seed=0)
    env.step(turn("x = 6"))
    with pytest.raises(ConfigError, match=r"Tool 'python' cannot be cloned now.*python_tool\(stateless=True\)"):
        env.clone()
    assert env.step(turn("x * 7"))[0] == "42"  # the original is none the worse
    env.close()


def test_a_faulted_trajectory_is_invalid_and_the_others_are_fine(python: Tool, pool: Pool) -> None:
    restarts = pool.restarts

    class Scripted(TextPolicy):
        def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
            done = sum(message.role == "assistant" for message in messages)
            if done == 0:
                return turn(task.question.rstrip("?"))
            if task.id == "victim":
                threading.Timer(0.3, os.kill, (zygote(pool), signal.SIGKILL)).start()
                return turn("import time; time.sleep(30)")
            return f"#### {messages[-1].content}"

    tasks = [TASKS[0], Task("victim", "1", "1"), TASKS[1]]
    with EnvPool(lambda: ToolEnv(tasks, tools=[python])) as envs:
        for _ in range(2):
            plans = [Episode(number, 0, task.id) for number, task in enumerate(tasks)]
            first, victim, last = collect(Scripted(), envs, plans, deterministic=True)
            assert (first.valid, victim.valid, last.valid) == (True, False, True)
            assert first.total_reward >= 1
            assert "The Python interpreter is gone" in (victim.fault or "")
            assert victim.steps[-1].stop_reason is StopReason.FAULT
            assert [r.isolation for r in first.steps[0].results] == [pool.isolation]
    assert pool.restarts == restarts + 1


def test_gsm8k_with_both_tools_keeps_the_contract() -> None:
    tasks = [Task("a", "6 * 7?", "42", difficulty=1), Task("b", "48 / 2?", "24", difficulty=1)]
    env = gymnasium.make("GSM8KTool-v0", tools=("calculator", "python"), tasks=tasks)
    check_env(env)
    env.reset(seed=0, options={"task": "a"})
    text, reward, *_ = env.step(turn("import sympy, numpy\nprint(numpy.arange(3).sum())\nsympy.Integer(6) * 7"))
    assert (text, float(reward) > 0) == ("3\n42", True)
    assert env.step("#### 42")[1] == 1.0
    env.close()


@pytest.mark.parametrize("mode", ["sync", "fork", "spawn"])
def test_in_vector_environments(python: Tool, pool: Pool, mode: str) -> None:
    def make() -> gymnasium.Env[str, str]:
        return ToolEnv(TASKS, tools=[python])

    with ToolSessions([python], seed=0) as sessions, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        ask(sessions, "x = 'the parent'")  # so a pool is open, and a session, when the process is forked
        makers: list[Callable[[], gymnasium.Env[str, str]]] = [make] * 3
        envs = SyncVectorEnv(makers) if mode == "sync" else AsyncVectorEnv(makers, context=mode, shared_memory=False)
        try:
            envs.reset(seed=0)
            texts, *_ = envs.step([turn(f"x = {number}", "x + 1") for number in range(3)])
            assert list(texts) == [f"(no output)\n\n{number + 1}" for number in range(3)]
            texts, *_ = envs.step([turn("x * 10")] * 3)
            assert list(texts) == ["0", "10", "20"]
            pids = [] if isinstance(envs, SyncVectorEnv) else [process.pid or 0 for process in envs.processes]
            ends = [os.pidfd_open(pid) for pid in _below(pids)]
        finally:
            envs.close()
        assert ask(sessions, "x")[0].content == "'the parent'"
    for pidfd in ends:  # what the workers had started is gone with them
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        assert poller.poll(SECONDS * 1000)
        os.close(pidfd)
    assert bool(ends) == (mode != "sync")


def _below(parents: Sequence[int]) -> list[int]:
    """Return the descendants of some processes."""
    above = {}
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{entry}/stat") as file:
            above[int(entry)] = int(file.read().rpartition(")")[2].split()[1])
    found: list[int] = []
    level = set(parents)
    while level := {pid for pid, parent in above.items() if parent in level}:
        found += level
    return found
