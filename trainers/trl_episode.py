"""One episode that TRL's tool loop plays.

TRL runs one call after the other and says nothing of turns; only when a completion is finished does it show the whole
dialogue. So calls run as they come and their results are kept. Afterwards the environment takes its steps turn by turn,
with these results in place of new ones: rubric, turn limit and end of the episode are its own, as in any other rollout.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from trajgym.envs.base import ToolEnv
from trajgym.errors import ConfigError, EnvironmentFault, EpisodeError
from trajgym.protocols import Parsed, Protocol
from trajgym.protocols.checking import Findings, checked_call
from trajgym.rewards import Rubric
from trajgym.rewards.completions import Completion, read_completions
from trajgym.types import CallError, ExpertTurn, Step, StopReason, ToolCall, ToolResult, ToolSpec, Trajectory

__all__ = ["Episode", "GivenTurn"]


class GivenTurn(Protocol):
    """A protocol for turns that somebody else has read: what :attr:`turn` holds is what was written.

    Args:
        written: The protocol that describes the tools and writes calls.
    """

    def __init__(self, written: Protocol) -> None:
        self.name = written.name
        self.turn = Parsed("")
        self._written = written

    def tries_to_call(self, text: str, tools: Mapping[str, ToolSpec]) -> bool:
        """Whether there is a call in ``text``, well written or not."""
        parsed = self._written.parse(text, tools) if tools else Parsed(text)
        return bool(parsed.calls or parsed.error)

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        """Return the turn that was given, whatever the text."""
        return self.turn

    def render(self, call: ToolCall) -> str:
        """Write one call."""
        return self._written.render(call)

    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        """Tell a policy which tools there are and how to call them."""
        return self._written.instructions(tools, style)


class _Results:
    """Stands in for an episode's tools where their results are known."""

    def __init__(self, tools: Any, results: tuple[ToolResult, ...]) -> None:
        self._tools, self._results = tools, results

    def run(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        return self._results

    def close(self) -> None:
        if self._tools is not None:
            self._tools.close()


class Episode:
    """An environment that is called from TRL's tool loop, and steps when the completion is finished.

    Args:
        env: One of ours, made with ``protocol``.
        protocol: The protocol it was made with.
        seed: Seeds its random numbers.
        gamma: Discount per turn of the trainer, which some reward terms must know.

    Attributes:
        steps: The steps taken.
        rewards: What each of them was paid, by the environment and its wrappers.
        fault: What of our machinery failed, if anything did: such an episode says nothing about the policy.
        over: Whether the environment has ended the episode.
    """

    def __init__(self, env: gymnasium.Env[str, str], protocol: GivenTurn, *, seed: int, gamma: float = 1.0) -> None:
        inner = env.unwrapped
        assert isinstance(inner, ToolEnv)  # the factory has seen to it
        self._env, self._inner, self._protocol = env, inner, protocol
        self._plan: Rubric = inner.rubric.discounted(gamma)
        inner.rubric = self._plan
        self._seed: int | None = seed
        self._began = False
        self.steps: list[Step] = []
        self.rewards: list[float] = []
        self.fault: str | None = None
        self.over = False
        self._results: deque[ToolResult] = deque()
        self._mistake: Exception | None = None

    def reset(self, task: str) -> None:
        """Begin an episode of the task with this id.

        Raises:
            UnknownNameError: When the environment has no such task.
        """
        self.steps, self.rewards, self.fault, self.over = [], [], None, False
        self._results.clear()
        self._mistake = None
        _, info = self._env.reset(seed=self._seed, options={"task": task})
        self._seed, self._began = None, True  # later episodes go on with the same generator
        self._task, self._prompt = info["task"], info["messages"]

    @property
    def trajectory(self) -> Trajectory:
        """The episode as far as the environment has stepped, without tokens."""
        return Trajectory(self._task, self._prompt, tuple(self.steps), fault=self.fault)

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run a call and return what the model is shown; nothing is paid yet.

        Raises:
            EpisodeError: When no episode is under way.
        """
        if not self._began or self.over:
            raise EpisodeError(f"{name} was called outside an episode. Call reset() first.")
        call = checked_call(name, arguments, self._inner.tools)
        if isinstance(call, CallError):
            return f"Error ({call.kind}): {call.message}"
        tools = self._inner._sessions
        if self.fault is None and tools is not None:
            try:
                (result,) = tools.run([call])
            except EnvironmentFault as error:
                self.fault = f"{type(error).__name__}: {error}"
            except Exception as error:  # TRL would show it to the model as a tool's answer, and train on
                self._mistake = error
            else:
                self._results.append(result)
                return result.content
        return "The tools are out of order."

    def finish(self, completion: Completion, *, ended: bool, progress: float = 0.0) -> None:
        """Take the steps of a finished completion; a second time changes nothing.

        Args:
            completion: TRL's messages: of the assistant with its ``tool_calls``, and of the tools.
            ended: Whether the model ended its last turn itself; a turn that a budget cut is no answer.
            progress: Share of the training that is done, for rewards with a schedule.

        Raises:
            RewardError: When a reward term fails.
            ConfigError: When a tool cannot run as the environment was set up.
        """
        if self._mistake is not None:
            raise self._mistake
        if self.over or self.fault is not None:
            return
        if self._plan.scheduled:
            self._inner.rubric = self._plan.at(progress)
        ((_, turns),) = read_completions([completion], {})
        try:
            self._take_all(turns, ended=ended)
        except EnvironmentFault as error:
            self.fault = f"{type(error).__name__}: {error}"

    def _take_all(self, turns: Sequence[Step], *, ended: bool) -> None:
        for number, turn in enumerate(turns):
            self._take(turn, ended=ended or number + 1 < len(turns))
            if self.over:
                return
        self._cut("", StopReason.EPISODE_TOKENS)  # no room was left behind the tools' last answers

    def _take(self, turn: Step, *, ended: bool) -> None:
        """Step with one turn of the completion."""
        calls, text = turn.action.calls, self._text(turn)
        if not calls and turn.error is None:
            if not ended:
                self._cut(text, StopReason.EPISODE_TOKENS)
            elif self._protocol.tries_to_call(text, self._inner.tools):
                self._cut(text, StopReason.INVALID_CALLS)  # TRL has read no call and gives no second chance
            else:
                self._step(text, Parsed(text), ())
            return
        if turn.stop_reason is not None and not turn.observation.messages and not self._results:
            # TRL was out of rounds and has not run them. In the environment's own last turn they still count.
            if len(self.steps) + 1 < self._inner.max_turns:
                self._cut(text, StopReason.MAX_TURNS)
                return
            for call in calls:
                self.call(call.name, call.arguments)
        results, error = self._results_of(calls)
        calls = tuple(result.call for result in results)
        self._step(text, Parsed(turn.action.text, calls, turn.error or error), results)

    def _results_of(self, calls: Sequence[ToolCall]) -> tuple[tuple[ToolResult, ...], CallError | None]:
        """Return the kept results of a turn's calls, and what is wrong with the first of those that have none."""
        findings = Findings()
        results: list[ToolResult] = []
        for call in calls:
            found = checked_call(call.name, call.arguments, self._inner.tools)
            kept = self._results[0].call if self._results else None
            if isinstance(found, ToolCall) and found != kept:
                found = CallError("unknown_tool", f"{call.name[:60]} was not run.")
            findings.add(found)
            if isinstance(found, ToolCall):
                results.append(dataclasses.replace(self._results.popleft(), call=findings.calls[-1]))
        return tuple(results), findings.error

    def _text(self, turn: Step) -> str:
        """Return the turn as the environment's own protocol writes it."""
        try:
            return self._protocol.render_turn(ExpertTurn(turn.action.text, turn.action.calls))
        except ConfigError:  # arguments that no JSON holds, such as NaN
            calls = "\n".join(f"{call.name}({dict(call.arguments)})" for call in turn.action.calls)
            return f"{turn.action.text}\n{calls}"

    def _step(self, text: str, parsed: Parsed, results: tuple[ToolResult, ...]) -> None:
        tools: Any = self._inner._sessions
        stand_in: Any = _Results(tools, results)
        self._inner._sessions, self._protocol.turn = stand_in, parsed
        try:
            reply = self._env.step(text)
        finally:
            if self._inner._sessions is stand_in:  # unless the episode is over, and they are closed
                self._inner._sessions = tools
        self._record(reply)

    def _cut(self, text: str, reason: StopReason) -> None:
        self._record(self._env.get_wrapper_attr("cut")(text, reason))

    def _record(self, reply: tuple[Any, ...]) -> None:
        _, reward, terminated, truncated, info = reply
        self.steps.append(info["step"])
        self.rewards.append(float(reward))
        self.over = bool(terminated or truncated)
