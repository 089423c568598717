"""What the parts of a server share: the engine, the model's written forms, the limits."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trajgym.errors import TemplateError
from trajgym.policies.render import Renderer
from trajgym.protocols import Protocol, get_protocol
from trajgym.protocols.describe import check_style
from trajgym.serving.engine import Engine
from trajgym.serving.limits import Limits
from trajgym.serving.refusals import Refusal
from trajgym.serving.sampler import ServedSampler
from trajgym.types import Message

__all__ = ["AgentPlan", "Service", "open_service"]

_LONGEST = 4096  # tokens of a sequence where neither the operator nor the model says less


@dataclass(frozen=True)
class AgentPlan:
    """The environment whose tool loop ``/agent`` runs.

    Args:
        env: Its id.
        arguments: Its arguments.
    """

    env: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Service:
    """A model that is ready to answer.

    Args:
        engine: Writes the answers.
        renderer: The model's chat template and tokenizer.
        name: What clients call the model.
        limits: What is accepted.
        protocol: The form in which the model writes calls.
        instructions: How tools are described to it: ``"schema"`` or ``"signature"``.
        api_key: What clients must show, if anything.
        agent: What ``/agent`` plays, if anything.
        created: Unix time at which it was made.
    """

    engine: Engine
    renderer: Renderer
    name: str
    limits: Limits
    protocol: Protocol
    instructions: str = "schema"
    api_key: str | None = None
    agent: AgentPlan | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    def prompt(self, messages: Sequence[Message], *, behind: str = "") -> tuple[int, ...]:
        """Return the token ids of a dialogue, with the beginning of the next turn behind it.

        Raises:
            Refusal: When it is too long.
            TemplateError: When the chat template refuses it.
        """
        ids = self.renderer.prompt(messages) + (self.renderer.turn(behind) if behind else [])
        most = min(self.limits.max_prompt_tokens or self.engine.max_length, self.engine.max_length - 1)
        if len(ids) > most:
            raise Refusal(
                400,
                f"The prompt has {len(ids)} tokens; at most {most} are allowed. Shorten the messages.",
                "context_length_exceeded",
                param="messages",
            )
        return tuple(ids)

    def budget(self, asked: int | None, prompt: int, *, param: str, default: int) -> int:
        """Return most new tokens behind a prompt of so many.

        Args:
            asked: What the client wants, if it says so.
            prompt: Tokens of the prompt.
            param: The client's key for it.
            default: Taken when the client does not say, as far as there is room.

        Raises:
            Refusal: When the client asks for more than there may be.
        """
        room = min(self.limits.max_new_tokens, self.engine.max_length - prompt)
        if asked is None:
            return min(default, room)
        if asked > room:
            raise Refusal(
                400,
                f"{param} is {asked}, but behind a prompt of {prompt} tokens at most {room} new ones are allowed.",
                "context_length_exceeded",
                param=param,
            )
        return asked

    @contextlib.asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        """Let the block take no longer than a request may.

        Raises:
            TimeoutError: When it does.
        """
        async with asyncio.timeout(self.limits.request_seconds):
            yield

    @staticmethod
    def seeds(seed: int | None, count: int) -> list[int]:
        """Return a seed for each answer: always the same ones for a given ``seed``, and fresh ones without."""
        first = secrets.randbits(63) if seed is None else seed
        return [first + number * 0x9E3779B97F4A7C15 for number in range(count)]


def open_service(
    model: Any,
    tokenizer: Any,
    *,
    name: str,
    limits: Limits | None = None,
    thinking: bool = False,
    instructions: str = "schema",
    api_key: str | None = None,
    agent: AgentPlan | None = None,
) -> Service:
    """Make a service of a model in memory; close its engine when it is not needed any more.

    Args:
        model: A causal language model of transformers.
        tokenizer: Its tokenizer, with a chat template.
        name: What clients call it.
        limits: What is accepted.
        thinking: Whether the model reasons before it answers.
        instructions: How tools are described to it: ``"schema"``, or ``"signature"`` as for the embedded model.
        api_key: What clients must show, if anything.
        agent: What ``/agent`` plays, if anything.

    Raises:
        ConfigError: When the model cannot be served within these limits.
        TemplateError: When there is no chat template, or it cannot be followed.
    """
    limits = limits or Limits()
    check_style(instructions)
    ends = model.generation_config.eos_token_id
    stop_ids = ends if isinstance(ends, list) else [] if ends is None else [ends]
    renderer = Renderer(tokenizer, thinking=thinking, stop_ids=stop_ids)
    built_for = getattr(model.config.get_text_config(), "max_position_embeddings", None) or _LONGEST
    sampler = ServedSampler(
        model,
        slots=limits.slots,
        max_length=limits.max_length or min(_LONGEST, built_for),
        stop_ids=renderer.stop_ids,
    )
    try:
        protocol = get_protocol(renderer.protocol or "hermes")
    except TemplateError:  # calls in a form that nobody reads; ours can be described to the model as well
        protocol = get_protocol("hermes")
    engine = Engine(sampler, queue=limits.queue)
    return Service(engine, renderer, name, limits, protocol, instructions, api_key, agent)
