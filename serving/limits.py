"""What one server accepts, in one place."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from trajgym.errors import ConfigError

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """The limits of a server. Whatever exceeds one is refused or cut off, and nobody else notices.

    Args:
        slots: Sequences that are generated at the same time.
        queue: Sequences that may wait for a slot; one more is refused with status 429.
        max_prompt_tokens: Most tokens of a prompt; ``None`` leaves it to ``max_length``.
        max_new_tokens: Most tokens that a request may ask for.
        max_length: Most tokens of prompt and answer together; ``None`` takes what the model was built for.
        max_choices: Most answers to one prompt (``n``).
        max_connections: Connections at the same time, idle ones included; one more is closed at once.
        max_body_bytes: Most bytes of a request's body.
        request_seconds: Wall-clock time of one request, waiting for a slot included.
        receive_seconds: Time in which a request's headers, and after them its body, must have arrived.
        drain_seconds: Time that requests under way are given when the server is told to stop.
        agents: Episodes of ``/agent`` at the same time; one more is refused with status 429.
        agent_turns: Most turns of such an episode.

    Raises:
        ConfigError: For a value that is not a positive number.
    """

    slots: int = 16
    queue: int = 128
    max_prompt_tokens: int | None = None
    max_new_tokens: int = 1024
    max_length: int | None = None
    max_choices: int = 8
    max_connections: int = 4096
    max_body_bytes: int = 1 << 20
    request_seconds: float = 120.0
    receive_seconds: float = 10.0
    drain_seconds: float = 30.0
    agents: int = 8
    agent_turns: int = 16

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            whole = not field.name.endswith("seconds")
            right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
            least = 0 if field.name == "queue" else 1 if whole else 0.01
            if not right or not math.isfinite(value) or value < least:
                kind = "a whole number" if whole else "a number of seconds"
                raise ConfigError(f"{field.name} must be {kind} of at least {least}, got {value!r}.")
