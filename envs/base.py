"""The environment: a dialogue as a Markov decision process, in Gymnasium's terms.

The state is the dialogue so far, an action is one assistant turn, the transition runs the tools that the turn
calls, and the rubric pays each step. A turn without a call is the final answer.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, ClassVar, Self

import gymnasium

from trajgym.envs.spaces import Unicode
from trajgym.envs.tasks import TaskSource, as_source
from trajgym.envs.tools import Tool, ToolSessions, select_tools
from trajgym.envs.transcript import transcript
from trajgym.errors import ConfigError, EpisodeError, UnknownNameError
from trajgym.protocols import Protocol, SingleCall, get_protocol
from trajgym.rewards import RewardLike, get_rubric
from trajgym.types import Action, CallError, Message, Observation, Step, StopReason, Task, ToolResult, in_view

__all__ = ["ToolEnv"]

INSTRUCTION_STYLES = ("schema", "signature", "none")

# What a clone shares with its original, since nobody changes it.
_SHARED = ("tasks", "rubric", "protocol", "spec", "_task", "_prompt")


class ToolEnv(gymnasium.Env[str, str]):
    """An LLM agent's task with tools: text in, text out.

    ## Description
    ``reset`` draws a task and returns its prompt. Each ``step`` takes one assistant turn, runs the tool calls in it
    (concurrently, results in call order) and returns what they answered. A turn without a call is the final answer.

    ## Action Space
    ``Unicode()``: any string. Text that cannot be read as a call earns an error observation, never an exception.

    ## Observation Space
    ``Unicode()``: the text of the new messages. ``info["messages"]`` is the full state.

    ## Rewards
    ``"sparse"``: the right answer at the end pays 1. ``"dense"``: each step with a new successful call pays 0.1, up to
    the number of steps the task needs, taken back at the end unless the answer is right; without tools, the same as
    ``"sparse"``. ``"hybrid"``: 1 for the right answer and 0.1 for such steps, which are kept. Or any other that
    :mod:`trajgym.rewards` lists.

    ## Episode End
    Terminated: the policy answered, or wrote ``max_invalid`` turns in a row without one valid call. Truncated: the
    turn budget ran out. Never both.

    ## Arguments
    See ``Args``.

    ## Version History
    * v0: first version

    Args:
        tasks: A :class:`TaskSource`, or any iterable of tasks.
        tools: Tools by name or as objects.
        reward: ``"sparse"``, ``"dense"``, ``"hybrid"``, a registered name, or a rubric.
        protocol: The written form of a call, by name or as an object.
        max_turns: Most turns in an episode; the last one may still answer.
        max_invalid: Invalid turns in a row after which the episode is over.
        instructions: How the system message describes the tools: ``"schema"`` (each tool's JSON schema),
            ``"signature"`` (one short line per tool) or ``"none"``.
        system: Replaces the system message; ``{tools}`` in it stands for the description of the tools, and an empty
            string leaves the message out.
        render_mode: ``"ansi"`` (``render()`` returns the dialogue), ``"human"`` (printed as it happens) or ``None``.

    Raises:
        ConfigError: For an argument that is unknown or has a value it cannot have.
    """

    # Gymnasium declares it as an instance attribute.
    metadata: dict[str, Any] = {"render_modes": ["ansi", "human"], "render_fps": 4}  # noqa: RUF012

    answer_rule: ClassVar[str] = "When you know the answer, end with a line: #### followed by the answer."
    """Tells the policy how to answer; part of the system message."""

    grows: ClassVar[bool] = True
    """Whether an episode is one dialogue that grows; false where observations may begin anew."""

    def __init__(
        self,
        tasks: TaskSource | Iterable[Task],
        *,
        tools: Iterable[str | Tool] = (),
        reward: RewardLike = "hybrid",
        protocol: str | Protocol = "hermes",
        max_turns: int = 8,
        max_invalid: int = 3,
        instructions: str = "schema",
        system: str | None = None,
        render_mode: str | None = None,
        **unknown: Any,
    ) -> None:
        for name in unknown:
            raise UnknownNameError(f"argument of {type(self).__name__}", name, _arguments(type(self)))
        for key, value in (("max_turns", max_turns), ("max_invalid", max_invalid)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{key} must be a whole number of at least 1, got {value!r}.")
        if instructions not in INSTRUCTION_STYLES:
            raise UnknownNameError("instructions style", instructions, INSTRUCTION_STYLES)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise UnknownNameError("render_mode", render_mode, self.metadata["render_modes"])
        if isinstance(tools, (str, Tool)) or not isinstance(tools, Iterable):
            raise ConfigError(f"tools must be a list of names or tools, got {tools!r}; write [{tools!r}].")
        if not isinstance(system, (str, NoneType)):
            raise ConfigError(f"system must be text or None, got {system!r}.")
        self.tasks = as_source(tasks)
        self.tools: dict[str, Tool] = select_tools(tools)
        # Without tools the answer is the only step there is, so a reward at each step is one for the answer.
        self.rubric = get_rubric("sparse" if reward == "dense" and not self.tools else reward)
        self.protocol = get_protocol(protocol)
        _check_callable(self.protocol, self.tools)
        self.max_turns = max_turns
        self.max_invalid = max_invalid
        self.render_mode = render_mode
        self.system = self._system_message(instructions, system)
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._sessions: ToolSessions | None = None
        self._task: Task | None = None
        self._prompt: tuple[Message, ...] = ()
        self._steps: list[Step] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Seeds ``np_random``; all randomness of the episode comes from it.
            options: ``{"task": id or Task}`` chooses the task instead of drawing one.

        Raises:
            ConfigError: For an unknown option or task.
        """
        super().reset(seed=seed)
        self._close_sessions()
        options = {} if options is None else options
        if not isinstance(options, dict):
            raise ConfigError(f'options must be a dict such as {{"task": id}}, got {options!r}.')
        for name in options:
            if name != "task":
                raise UnknownNameError("reset option", name, ["task"])
        chosen = options.get("task")
        # Both draws happen whether they are used or not: the episode's seed does not depend on how it was chosen.
        drawn = self.tasks.sample(self.np_random)
        tool_seed = int(self.np_random.integers(2**63))
        self._task = drawn if chosen is None else chosen if isinstance(chosen, Task) else self.tasks.get(chosen)
        self._prompt = self.prompt(self._task)
        self._steps = []
        if self.tools:
            self._sessions = self._open_tools(self._task, tool_seed)
        self._show(self._prompt)
        return "\n\n".join(m.content for m in self._prompt), {"task": self._task, "messages": self._prompt}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one assistant turn.

        Args:
            action: What the policy wrote; any string.

        Returns:
            ``(text, reward, terminated, truncated, info)``; ``info["step"]`` is the :class:`Step`.

        Raises:
            EpisodeError: Before ``reset`` or after the end.
            EnvironmentFault: When our machinery failed, not the policy.
        """
        self._check_turn(action)
        return self._conclude(action, self._transition(action))

    def cut(self, action: str, reason: StopReason) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """End the episode in a turn that a token budget cut short: nothing in it runs, and the rubric scores it.

        Whoever drives the policy calls this in place of :meth:`step`, which only takes whole turns.

        Args:
            action: What the policy wrote up to there.
            reason: The budget, as the stop reason to record.

        Returns:
            As :meth:`step`.

        Raises:
            EpisodeError: Before ``reset`` or after the end.
        """
        self._check_turn(action)
        return self._conclude(action, _step(Action(action), stop=reason))

    @property
    def can_clone(self) -> bool:
        """Whether :meth:`clone` works in every state; where not, it may still work before a tool's first call."""
        return all(tool.can_clone and not self._is_own(tool) for tool in self.tools.values())

    def clone(self) -> Self:
        """Return an independent environment in exactly the same state, in the middle of an episode or outside one.

        From then on the same actions give both the same observations, rewards and information, and neither notices
        the other. Task source, rubric and protocol are shared; attributes that a subclass adds are copied deeply, as
        :func:`copy.deepcopy` does, which calls this. Of a wrapped environment ``env.unwrapped.clone()`` is the inside
        alone; :func:`trajgym.rollout_states.clone_env` keeps the wrappers.

        Raises:
            ConfigError: A tool has a state that cannot be cloned, or an attribute cannot be copied.
            EnvironmentFault: A tool failed to clone itself.
        """
        for tool in self.tools.values():
            if self._is_own(tool):
                raise ConfigError(
                    f"Tool {tool.name!r} is a method of the environment and would go on acting on the original. Make "
                    "it a class that holds its own state and has a clone()."
                )
        twin = object.__new__(type(self))
        shared = [self.__dict__.get(name) for name in _SHARED]
        memo = {id(part): part for part in (*shared, *self._steps)} | {id(self): twin}
        for name, value in self.__dict__.items():
            try:
                twin.__dict__[name] = copy.deepcopy(value, memo)
            except TypeError as error:
                raise ConfigError(
                    f"{type(self).__name__} cannot be cloned: its attribute {name!r} cannot be copied ({error}). Give "
                    "the class a clone() that takes care of it."
                ) from error
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The state: the dialogue so far, from where it last began anew (:attr:`Observation.begins_anew`)."""
        return in_view(self._dialogue())

    def prompt(self, task: Task) -> tuple[Message, ...]:
        """Return the messages an episode of ``task`` begins with; families may override it."""
        system = (Message("system", self.system),) if self.system else ()
        return (*system, Message("user", task.question))

    def expert(self, task: Task) -> list[str]:
        """Return the demonstration of ``task`` as actions, written in this environment's protocol.

        Where the environment has no tools, that is the last turn alone, which answers.
        """
        turns = task.solution if self.tools else task.solution[-1:]
        return [self.protocol.render_turn(turn) for turn in turns]

    def render(self) -> str | None:
        """Return the dialogue as text for ``"ansi"``; ``"human"`` has printed it already."""
        return transcript(self._dialogue(), self._steps) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """End the episode and its tools; may be called again."""
        self._close_sessions()
        self._task = None

    def _dialogue(self) -> list[Message]:
        """Return everything that was said in the episode."""
        out = list(self._prompt)
        for step in self._steps:
            out += [Message("assistant", step.action.text), *step.observation.messages]
        return out

    def _open_tools(self, task: Task, seed: int) -> ToolSessions:
        """Return the tools of an episode; families whose tools act on one world override it."""
        return ToolSessions(tuple(self.tools.values()), seed=seed)

    def _is_own(self, tool: Tool) -> bool:
        return getattr(tool.target, "__self__", None) is self

    def _check_turn(self, action: str) -> None:
        if self._task is None:
            raise EpisodeError("step() was called before reset(). Call reset() first.")
        if self._steps and self._steps[-1].stop_reason is not None:
            reason = self._steps[-1].stop_reason.value
            raise EpisodeError(f"The episode is over ({reason}); nothing is paid twice. Call reset() to begin another.")
        if not isinstance(action, str):
            raise ConfigError(f"An action is one assistant turn as a str, got {type(action).__name__}: {action!r}.")

    def _conclude(self, action: str, step: Step) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Pay a step, record it, and say it in Gymnasium's form."""
        assert self._task is not None
        terms = self.rubric.score(step, self._task, self._steps)
        step = _paid(step, terms)
        self._steps.append(step)
        if step.stop_reason is not None:
            self._close_sessions()
        self._show((Message("assistant", action), *step.observation.messages), step)
        info = {
            "step": step,
            "task": self._task,
            "messages": self.messages,
            "reward_terms": dict(terms),
            "stop_reason": step.stop_reason,
        }
        return step.observation.text, step.reward, step.terminated, step.truncated, info

    def _transition(self, action: str) -> Step:
        """Run one turn: parse, call, and decide whether the episode ends; the reward comes later."""
        parsed = self.protocol.parse(action, self.tools) if self.tools else None
        if parsed is None or not (parsed.calls or parsed.error):
            return _step(Action(action), stop=StopReason.ANSWERED)
        results = self._sessions.run(parsed.calls) if self._sessions and parsed.calls else ()
        messages = [Message("tool", r.content, name=r.call.name, call_id=r.call.id) for r in results]
        if parsed.error is not None:
            messages.append(Message("tool", f"Error ({parsed.error.kind}): {parsed.error.message}"))
        stop = None
        if not parsed.calls and self._invalid_in_a_row() + 1 >= self.max_invalid:
            stop = StopReason.INVALID_CALLS
        elif len(self._steps) + 1 >= self.max_turns:
            stop = StopReason.MAX_TURNS
        return _step(Action(action, calls=parsed.calls), tuple(messages), results, parsed.error, stop)

    def _invalid_in_a_row(self) -> int:
        count = 0
        for step in reversed(self._steps):
            if step.action.calls:
                break
            count += 1
        return count

    def _system_message(self, style: str, system: str | None) -> str:
        tools = self.protocol.instructions(self.tools, style) if self.tools and style != "none" else ""
        if system is not None:
            return system.replace("{tools}", tools)
        return "\n\n".join(part for part in (tools, self.answer_rule) if part)

    def _show(self, messages: Iterable[Message], step: Step | None = None) -> None:
        if self.render_mode == "human":
            print(transcript(messages, [step] if step else []), flush=True)

    def _close_sessions(self) -> None:
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            sessions.close()


def _check_callable(protocol: Protocol, tools: Iterable[str]) -> None:
    """Refuse tools that a protocol without names could never call."""
    only = protocol.only_tool if isinstance(protocol, SingleCall) else None
    others = [name for name in tools if name != only]
    if only is not None and others:
        raise ConfigError(
            f"The protocol {protocol.name!r} can only call the tool {only!r}, and tools= has {', '.join(others)}. Pass "
            f"tools=[{only!r}], or choose another protocol."
        )


def _step(
    action: Action,
    messages: tuple[Message, ...] = (),
    results: tuple[ToolResult, ...] = (),
    error: CallError | None = None,
    stop: StopReason | None = None,
) -> Step:
    terminated = stop is not None and stop.terminates
    truncated = stop is not None and not stop.terminates
    return Step(
        action,
        Observation(messages),
        results=results,
        error=error,
        terminated=terminated,
        truncated=truncated,
        stop_reason=stop,
    )


def _paid(step: Step, terms: Mapping[str, float]) -> Step:
    # dataclasses.replace() costs three times as much as the rest of a calculator step's bookkeeping.
    return Step(
        step.action,
        step.observation,
        float(sum(terms.values())),
        dict(terms),
        step.results,
        step.error,
        step.terminated,
        step.truncated,
        step.stop_reason,
    )


def _arguments(cls: type[ToolEnv]) -> list[str]:
    """Names of the keyword arguments that ``cls`` and its bases take."""
    names: set[str] = set()
    for base in cls.__mro__:
        if issubclass(base, ToolEnv):
            parameters = inspect.signature(base.__init__).parameters.values()
            names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return sorted(names - {"self"})
