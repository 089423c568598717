"""``/agent``: the model works on a question with an environment's tools, which run here, isolated as in training."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trajgym.envs.make import make
from trajgym.errors import ConfigError
from trajgym.evaluation.evaluate import env_maker
from trajgym.policies.llm import LLMPolicy
from trajgym.rewards.answer import read
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.serving.engine import Busy
from trajgym.serving.engine_sampler import EngineSampler
from trajgym.serving.refusals import Refusal
from trajgym.serving.schemas import AgentRequest
from trajgym.serving.service import AgentPlan, Service
from trajgym.types import Step, Task, Trajectory, to_json

__all__ = ["Agents"]

# Nobody knows the answer to a client's question, and no reward is told; a rubric wants to read one all the same.
_PLACEHOLDER = Task("question", "?", "0")


class _StoppedError(Exception):
    """The client is gone, or out of time."""


class Agents:
    """Plays episodes for clients, each in a thread of its own, all through the one engine.

    Args:
        service: With the plan of what to play.

    Raises:
        ConfigError: When the environment cannot be played with a client's question, or not by this model.
    """

    def __init__(self, service: Service) -> None:
        assert service.agent is not None
        self._service, self._plan = service, service.agent
        self._places = threading.BoundedSemaphore(service.limits.agents)
        self._threads = ThreadPoolExecutor(service.limits.agents, thread_name_prefix="trajgym-agent")
        self._arguments = _arguments(self._plan)
        self._make_env(1.0, service.limits.agent_turns)  # what is wrong with the environment is told at the start

    async def answer(self, request: AgentRequest) -> dict[str, Any]:
        """Play one episode and return what happened.

        Raises:
            Refusal: When it failed by our doing, or the request is beyond a limit.
            Busy: When there is no room for it.
            TimeoutError: When it takes longer than a request may.
        """
        turns = self._service.limits.agent_turns if request.max_turns is None else request.max_turns
        if turns > self._service.limits.agent_turns:
            most = self._service.limits.agent_turns
            raise Refusal(400, f"max_turns is {turns}; at most {most}.", "invalid_value", param="max_turns")
        if not self._places.acquire(blocking=False):
            raise Busy(f"All {self._service.limits.agents} agents are at work. Try again later.", 5)
        stop = threading.Event()
        # The place is given back by the thread: it may need a moment longer than the client that has gone away.
        playing = self._threads.submit(self._play, request, turns, stop)
        playing.add_done_callback(lambda _: self._places.release())
        try:
            async with self._service.deadline():
                return await asyncio.wrap_future(playing)
        finally:
            stop.set()

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _play(self, request: AgentRequest, turns: int, stop: threading.Event) -> dict[str, Any]:
        policy, make_env = self._make_env(request.temperature, turns)
        sampler = policy.sampler
        assert isinstance(sampler, EngineSampler)

        def look_up(_: int) -> None:
            if stop.is_set():
                raise _StoppedError

        (seed,) = self._service.seeds(request.seed, 1)
        task = Task("question", request.question, _PLACEHOLDER.answer)
        with EnvPool(make_env, threads=1) as pool:
            (played,) = collect(policy, pool, [Episode(seed % 2**32, seed, task)], on_tick=look_up)
        if played.fault is not None:
            raise Refusal(503, f"The episode failed by no fault of the model: {played.fault}", "fault", retry_after=1)
        return {**_told(played), "usage": _usage(sampler), "model": self._service.name, "env": self._plan.env}

    def _make_env(self, temperature: float, turns: int) -> tuple[LLMPolicy, Any]:
        policy = LLMPolicy(
            EngineSampler(self._service.engine, temperature=temperature),
            self._service.renderer,
            max_turn_tokens=min(self._service.limits.max_new_tokens, self._service.engine.max_length - 1),
            max_episode_tokens=self._service.engine.max_length,
        )
        return policy, env_maker(policy, self._plan.env, **{**self._arguments, "max_turns": turns})


def _arguments(plan: AgentPlan) -> dict[str, Any]:
    """Return the environment's arguments, without its data set if it can be made without."""
    arguments = {key: value for key, value in plan.arguments.items() if key != "max_turns"}
    if "tasks" in arguments:
        return arguments
    try:
        make(plan.env, **arguments, tasks=[_PLACEHOLDER]).close()
    except (ConfigError, TypeError):
        return arguments
    return {**arguments, "tasks": [_PLACEHOLDER]}


def _told(played: Trajectory) -> dict[str, Any]:
    last = played.steps[-1]
    answered = played.stop_reason.value == "answered"
    value = read(last.action.text).value if answered else None
    return {
        "answer": last.action.text if answered else None,
        "number": None if value is None else float(value) if value.denominator > 1 else int(value),
        "stop_reason": played.stop_reason.value,
        "steps": [_step(step) for step in played.steps],
        "messages": [to_json(message) for message in played.messages],
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "text": step.action.text,
        "calls": [
            {
                "name": result.call.name,
                "arguments": to_json(result.call.arguments),
                "content": result.content,
                "error": result.error,
                "seconds": round(result.seconds, 6),
                "isolation": result.isolation,
            }
            for result in step.results
        ],
        "error": None if step.error is None else to_json(step.error),
    }


def _usage(sampler: EngineSampler) -> dict[str, int]:
    read_, written = sampler.prompt_tokens, sampler.sampled_tokens
    return {"prompt_tokens": read_, "completion_tokens": written, "total_tokens": read_ + written}
