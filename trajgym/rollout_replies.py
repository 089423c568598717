"""What environments answer, read into the project's types: ours, wrapped ones, and anybody's with text spaces."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

from trajgym.errors import ConfigError
from trajgym.types import Action, Message, Observation, Step, StopReason, Task

__all__ = ["Reply", "read_reset", "read_step"]

Reply: TypeAlias = tuple[Any, ...]
"""What ``reset`` or ``step`` of an environment returns."""


def read_reset(seed: int, reply: Reply) -> tuple[Task, tuple[Message, ...]]:
    """Return the task and the prompt of an episode; environments that are not ours tell the text alone.

    Args:
        seed: What ``reset`` was given.
        reply: What it returned.

    Raises:
        ConfigError: When the observation is no text.
    """
    text, info = reply
    _require_text(text)
    task, messages = info.get("task"), info.get("messages")
    if not isinstance(task, Task):
        task = Task(f"seed-{seed}", text, "")
    ours = isinstance(messages, tuple) and all(isinstance(m, Message) for m in messages)
    if not ours or text != "\n\n".join(m.content for m in messages):  # a wrapper may have rewritten it
        messages = (Message("user", text),)
    return task, messages


def read_step(action: Action, reply: Reply) -> Step:
    """Make the step of a reply; where a wrapper says something else than the environment, the wrapper counts.

    Args:
        action: What the policy did.
        reply: What ``step`` returned.

    Raises:
        ConfigError: When the observation is no text.
    """
    text, reward, terminated, truncated, info = reply
    _require_text(text)
    reward, terminated = float(reward), bool(terminated)
    truncated = bool(truncated) and not terminated  # who answers in the last turn has answered
    inner = info.get("step")
    if not isinstance(inner, Step):
        inner = Step(action, Observation(), reward, {"reward": reward})
    observation = inner.observation
    if text != observation.text:
        role = observation.messages[0].role if observation.messages else "user"
        observation = Observation((Message(role, text),))
    stop = inner.stop_reason if inner.terminated == terminated and inner.truncated == truncated else None
    if stop is None and (terminated or truncated):
        stop = StopReason.ENDED if terminated else StopReason.TIME_LIMIT
    terms = inner.reward_terms
    if reward != inner.reward:
        terms = {**terms, "wrapper": reward - inner.reward}
    return dataclasses.replace(
        inner,
        action=dataclasses.replace(action, calls=inner.action.calls),
        observation=observation,
        reward=reward,
        reward_terms=terms,
        terminated=terminated,
        truncated=truncated,
        stop_reason=stop,
    )


def _require_text(text: Any) -> None:
    if not isinstance(text, str):
        raise ConfigError(
            f"A policy that writes needs observations that are text, got {type(text).__name__}. "
            "Use an environment with text spaces, or a wrapper that writes its observations out."
        )
