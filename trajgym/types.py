"""The nouns of the project, each one a frozen dataclass.

``s_t`` is the dialogue so far, ``a_t`` one assistant turn, ``r_t`` its reward. Everything here is plain
data from the standard library: it prints as JSON (:func:`to_json`) and compares by value.

>>> step = Step(Action("#### 72"), Observation(), reward=1.0, terminated=True, stop_reason=StopReason.ANSWERED)
>>> trajectory = Trajectory(Task("t-0", "48 + 24?", "72"), prompt=(), steps=(step,))
>>> trajectory.total_reward, trajectory.stop_reason.value
(1.0, 'answered')
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

__all__ = [
    "Action",
    "CallError",
    "ExpertTurn",
    "Group",
    "Message",
    "Observation",
    "Step",
    "StopReason",
    "Task",
    "TokenStream",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
    "Trajectory",
    "discounted_return",
    "from_json",
    "in_view",
    "to_json",
]

T = TypeVar("T")


class StopReason(str, enum.Enum):
    """Why an episode ended. ``terminated`` reasons belong to the task, ``truncated`` ones to a budget."""

    ANSWERED = "answered"  # terminated: the policy gave its final answer
    INVALID_CALLS = "invalid_calls"  # terminated: too many turns in a row without one valid call
    ENDED = "ended"  # terminated: by a wrapper, or by an environment that gives no reason
    MAX_TURNS = "max_turns"  # truncated: the turn budget is used up
    TURN_TOKENS = "turn_tokens"  # truncated: one turn was cut by its token budget
    EPISODE_TOKENS = "episode_tokens"  # truncated: the dialogue no longer fits its token budget
    TIME_LIMIT = "time_limit"  # truncated: by a wrapper outside the environment
    FAULT = "fault"  # neither: our machinery failed, the trajectory is invalid

    @property
    def terminates(self) -> bool:
        """Whether this reason is part of the task (Gymnasium's ``terminated``)."""
        return self in (StopReason.ANSWERED, StopReason.INVALID_CALLS, StopReason.ENDED)


@dataclass(frozen=True)
class Message:
    """One message of the dialogue.

    Args:
        role: ``"system"``, ``"user"``, ``"assistant"`` or ``"tool"``.
        content: The text; for an assistant exactly what the policy wrote, calls included.
        name: The tool's name, for a tool message.
        call_id: Which call a tool message answers.
    """

    role: str
    content: str
    name: str | None = None
    call_id: str | None = None


@dataclass(frozen=True)
class ToolCall:
    """A request to run a tool: ``(name, arguments)``; ``id`` ties the result to it."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True)
class CallError:
    """Why a call could not be run: a kind from a fixed list, and a sentence for the policy."""

    kind: str
    message: str


@dataclass(frozen=True)
class ToolResult:
    """What a tool answered.

    Args:
        call: The call this answers.
        content: What the policy is shown, for an error too.
        error: ``None`` for success, else the kind of error (``"timeout"``, ``"division_by_zero"``, …).
        seconds: Wall-clock time the tool took; not compared, since it is never the same twice.
        isolation: How the tool was isolated from the host (``"none"`` for in-process tools).
    """

    call: ToolCall
    content: str
    error: str | None = None
    seconds: float = field(default=0.0, compare=False)
    isolation: str = "none"


class ToolSpec(Protocol):
    """What a protocol needs to know of a tool in order to describe it and to check a call."""

    @property
    def name(self) -> str:
        """The name the policy calls."""

    @property
    def description(self) -> str:
        """One or more sentences for the policy."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema (an object) of the arguments."""

    def check(self, arguments: Mapping[str, Any]) -> CallError | None:
        """Return what is wrong with ``arguments``, or ``None``. Nothing is coerced."""


@dataclass(frozen=True)
class ExpertTurn:
    """One turn of a demonstration: some text, then the calls (none in the last turn, which answers)."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Task:
    """One problem and its ground truth.

    Args:
        id: Unique and stable within its data set.
        question: What the policy is asked.
        answer: The ground truth as text.
        solution: A demonstration, turn by turn; empty when none is known.
        difficulty: Number of reasoning steps, or ``None`` when unknown.
        metadata: Anything else a reward term may want (JSON values).
    """

    id: str
    question: str
    answer: str
    solution: tuple[ExpertTurn, ...] = ()
    difficulty: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Action:
    """What the policy emitted in one turn.

    Args:
        text: The turn as text, without the end-of-turn token.
        token_ids: The sampled token ids, the end-of-turn token included when it was sampled.
        logprobs: log-probability of each sampled token (nats) under the sampling temperature.
        calls: The tool calls read from the text (filled in by the environment).
        finish: ``"stop"`` (the policy ended its turn), ``"turn_tokens"`` or ``"episode_tokens"`` (cut).
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    finish: str = "stop"


@dataclass(frozen=True)
class Observation:
    """What the environment answered: the messages it appended to the dialogue."""

    messages: tuple[Message, ...] = ()

    @property
    def text(self) -> str:
        """The contents, one blank line apart: what ``env.step`` returns."""
        return "\n\n".join(m.content for m in self.messages)

    @property
    def begins_anew(self) -> bool:
        """Whether a new dialogue begins here: the first message is a system message.

        A model that goes on sees this observation and nothing of what was before it.
        """
        return bool(self.messages) and self.messages[0].role == "system"


@dataclass(frozen=True)
class Step:
    """One transition: action, observation, and the reward with its named parts.

    Args:
        action: What the policy did.
        observation: What came back.
        reward: Sum of ``reward_terms``.
        reward_terms: Weighted value of each rubric term.
        results: Tool results in call order.
        error: The first thing wrong with the written calls, if any.
        terminated: Gymnasium's meaning: the episode ended within the task.
        truncated: Gymnasium's meaning: a budget ended it.
        stop_reason: Set exactly when the episode ended.
    """

    action: Action
    observation: Observation
    reward: float = 0.0
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    results: tuple[ToolResult, ...] = ()
    error: CallError | None = None
    terminated: bool = False
    truncated: bool = False
    stop_reason: StopReason | None = None


@dataclass(frozen=True)
class TokenStream:
    """A training row: one append-only token sequence.

    Args:
        ids: Token ids, prompt first.
        mask: 1 where the policy sampled the token, 0 elsewhere.
        turns: The turn each sampled token belongs to, -1 elsewhere.
        logprobs: The sampler's log-probability (nats) of each sampled token, 0 elsewhere.

    Shape: all four have the same length.
    """

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    turns: tuple[int, ...]
    logprobs: tuple[float, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.mask), len(self.turns), len(self.logprobs)}
        if len(lengths) != 1:
            raise ValueError(f"ids, mask, turns and logprobs must have one length, got {sorted(lengths)}")


@dataclass(frozen=True)
class Trajectory:
    """The steps of one episode.

    Args:
        task: The problem.
        prompt: The messages the episode began with.
        steps: The transitions in order.
        rows: Token rows to train on: one, or one per turn where a template rewrites its history;
            empty for policies without tokens.
        seed: Seed of the policy's random numbers in this episode.
        fault: What of *our* machinery failed; such a trajectory is not trained on.
    """

    task: Task
    prompt: tuple[Message, ...]
    steps: tuple[Step, ...]
    rows: tuple[TokenStream, ...] = ()
    seed: int = 0
    fault: str | None = None

    @property
    def rewards(self) -> list[float]:
        """Reward of each step."""
        return [s.reward for s in self.steps]

    @property
    def total_reward(self) -> float:
        """Undiscounted sum of rewards."""
        return float(sum(self.rewards))

    @property
    def stop_reason(self) -> StopReason:
        """Why the episode ended."""
        last = self.steps[-1].stop_reason if self.steps else None
        return last if last is not None and self.fault is None else StopReason.FAULT

    @property
    def valid(self) -> bool:
        """Whether the trajectory says something about the policy."""
        return self.fault is None and bool(self.steps)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole dialogue."""
        out = list(self.prompt)
        for step in self.steps:
            out.append(Message("assistant", step.action.text))
            out.extend(step.observation.messages)
        return tuple(out)


@dataclass(frozen=True)
class Group:
    """G trajectories of the same task, compared with one another by the trainer."""

    task: Task
    trajectories: tuple[Trajectory, ...]


def in_view(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return what of a dialogue a model sees: all of it, or what follows the last observation that began anew.

    >>> page = Message("system", "Page 2"), Message("user", "Go on.")
    >>> in_view([Message("user", "Page 1"), Message("assistant", "Turn."), *page]) == page
    True
    """
    for i in range(len(messages) - 1, 0, -1):
        if messages[i].role == "system" and messages[i - 1].role == "assistant":
            return tuple(messages[i:])
    return tuple(messages)


def discounted_return(rewards: Sequence[float], gamma: float) -> float:
    """Return ``Σ_t γ^t r_t``; ``gamma`` acts per turn.

    >>> discounted_return([0.1, 0.1, 0.2, 0.6], 1.0)
    1.0
    >>> round(discounted_return([0.1, 0.1, 0.2, 0.6], 0.9), 4)
    0.7894
    """
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma}")
    return float(sum(gamma**t * r for t, r in enumerate(rewards)))


def to_json(value: Any) -> Any:
    """Turn any of these types into JSON values (dicts, lists, strings, numbers)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    return value


def from_json(cls: type[T], value: Any) -> T:
    """Rebuild one of these types from what :func:`to_json` made.

    >>> from_json(Message, to_json(Message("user", "hi"))) == Message("user", "hi")
    True
    """
    return cast(T, _FROM[cls](value) if cls in _FROM else cls(**value))


def _each(cls: type[T]) -> Callable[[Any], tuple[T, ...]]:
    return lambda values: tuple(from_json(cls, v) for v in values)


def _maybe(cls: type[T]) -> Callable[[Any], T | None]:
    return lambda value: None if value is None else from_json(cls, value)


def _fields(cls: type[Any], **readers: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: cls(**{k: readers[k](v) if k in readers else v for k, v in value.items()})


_FROM: dict[type[Any], Callable[[Any], Any]] = {
    StopReason: StopReason,
    ExpertTurn: _fields(ExpertTurn, calls=_each(ToolCall)),
    Task: _fields(Task, solution=_each(ExpertTurn)),
    ToolResult: _fields(ToolResult, call=_maybe(ToolCall)),
    Action: _fields(Action, token_ids=tuple, logprobs=tuple, calls=_each(ToolCall)),
    Observation: _fields(Observation, messages=_each(Message)),
    TokenStream: _fields(TokenStream, ids=tuple, mask=tuple, turns=tuple, logprobs=tuple),
    Step: _fields(
        Step,
        action=_maybe(Action),
        observation=_maybe(Observation),
        results=_each(ToolResult),
        error=_maybe(CallError),
        stop_reason=lambda v: None if v is None else StopReason(v),
    ),
    Trajectory: _fields(
        Trajectory,
        task=_maybe(Task),
        prompt=_each(Message),
        steps=_each(Step),
        rows=_each(TokenStream),
    ),
    Group: _fields(Group, task=_maybe(Task), trajectories=_each(Trajectory)),
}
