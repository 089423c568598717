"""Policies without a model: the demonstration, noise, and a person at the keyboard."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from trajgym.errors import ConfigError
from trajgym.policies.base import TextPolicy
from trajgym.protocols import Protocol, get_protocol
from trajgym.types import ExpertTurn, Message, Task, ToolCall, ToolSpec

__all__ = ["ExpertPolicy", "HumanPolicy", "RandomPolicy"]


class ExpertPolicy(TextPolicy):
    """Plays each task's own demonstration.

    Args:
        protocol: The written form of a call; must be the environment's.
        capacity: How many episodes may be live at once.
        tools: Whether the environment has any; without, the last turn, which answers, is all there is to play.
    """

    def __init__(self, protocol: str | Protocol = "hermes", capacity: int = 64, *, tools: bool = True) -> None:
        super().__init__(capacity)
        self._protocol = get_protocol(protocol)
        self._tools = tools

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        """Write the demonstration's next turn; the last one again when there is no next.

        Raises:
            ConfigError: When the task has no demonstration.
        """
        if not task.solution:
            raise ConfigError(f"Task {task.id!r} has no demonstration (Task.solution is empty).")
        turns = task.solution if self._tools else task.solution[-1:]
        turn = sum(m.role == "assistant" for m in messages)
        return self._protocol.render_turn(turns[min(turn, len(turns) - 1)])


class RandomPolicy(TextPolicy):
    """Writes noise: text, calls with wrong names and values, broken calls, and now and then an answer.

    Args:
        protocol: The written form of a call.
        tools: The environment's tools, to call some of them by their right name.
        capacity: How many episodes may be live at once.
    """

    def __init__(
        self,
        protocol: str | Protocol = "hermes",
        tools: Mapping[str, ToolSpec] | None = None,
        capacity: int = 64,
    ) -> None:
        super().__init__(capacity)
        self._protocol = get_protocol(protocol)
        self._tools = dict(tools or {})

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        """Write a turn that depends on nothing but the seed and the length of the dialogue."""
        rng = random.Random(f"{seed}/{len(messages)}")
        kind = rng.choice(["text", "call", "call", "call", "broken", "answer"])
        if kind == "text":
            return "".join(
                chr(rng.choice([9, 10, 32, 48, 97, 0x20AC, 0x4E00, 0x1F600])) for _ in range(rng.randrange(40))
            )
        if kind == "answer":
            return f"#### {rng.randrange(1000)}"
        try:
            call = self._protocol.render(ToolCall(rng.choice([*self._tools, "nothing"]), self._arguments(rng)))
        except ConfigError as error:  # this protocol has no words for it
            return str(error)
        return self._protocol.render_turn(ExpertTurn(call[: rng.randrange(1, len(call))] if kind == "broken" else call))

    def _arguments(self, rng: random.Random) -> dict[str, object]:
        number = f"{rng.randrange(100)}{rng.choice('+-*/')}{rng.randrange(100)}"
        names = sorted({n for tool in self._tools.values() for n in tool.parameters.get("properties", {})})
        return {rng.choice([*names, "x"]): rng.choice([number, number, number, rng.randrange(9), None, ""])}


class HumanPolicy(TextPolicy):
    """Asks a person for each turn.

    Args:
        ask: Shows the prompt it is given and returns one line without its end; :func:`input` unless given.
    """

    def __init__(self, ask: Callable[[str], str] = input) -> None:
        super().__init__(capacity=1)
        self._ask = ask

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        """Return what the person typed; a backslash at the end of a line goes on with the next."""
        lines: list[str] = []
        while True:
            line = self._ask("… " if lines else "> ")
            lines.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                return "\n".join(lines)
