"""How long a policy takes to write its turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from trajgym.policies.base import Policy
from trajgym.protocols import Protocol
from trajgym.types import Action, Message, Task, TokenStream, ToolSpec

__all__ = ["Timed"]


class Timed(Policy):
    """A policy with a watch: the time from asking for a turn to getting it, summed over an episode's turns.

    Episodes are played side by side, so an episode's time is what its user waits for in that company, and the times
    add up to more than the whole took. What environments and tools take is not in it.

    Args:
        policy: Who acts.
        clock: Gives the time in seconds.

    Attributes:
        seconds: Of each episode, by the caller's number for it.
    """

    def __init__(self, policy: Policy, clock: Callable[[], float] = time.perf_counter) -> None:
        self._policy, self._clock = policy, clock
        self._asked: dict[int, float] = {}
        self.seconds: dict[int, float] = {}

    @property
    def capacity(self) -> int:
        """How many episodes may be live at once."""
        return self._policy.capacity

    def tokens(self, episode: int) -> tuple[int, int] | None:
        """Return the tokens that an endpoint has read and written for an episode; ``None`` from other policies."""
        spent: Mapping[int, tuple[int, int] | None] = getattr(self._policy, "spent", {})
        return spent.get(episode)

    def start(self, episode: int, messages: Sequence[Message], *, task: Task, seed: int) -> None:
        """Begin an episode and ask for its first turn."""
        self.seconds[episode] = 0.0
        self._asked[episode] = self._clock()
        self._policy.start(episode, messages, task=task, seed=seed)

    def observe(self, episode: int, messages: Sequence[Message]) -> None:
        """Append what the environment answered and ask for the next turn."""
        self._asked[episode] = self._clock()
        self._policy.observe(episode, messages)

    def context(self, episode: int) -> tuple[int, ...]:
        """Return the tokens before the turn that was asked for last."""
        return self._policy.context(episode)

    def poll(self) -> list[tuple[int, Action]]:
        """Work a little on the waiting turns; return those that are ready."""
        ready = self._policy.poll()
        now = self._clock()
        for episode, _ in ready:
            self.seconds[episode] += now - self._asked.pop(episode)
        return ready

    def finish(self, episode: int) -> tuple[TokenStream, ...]:
        """End an episode and return its token rows."""
        self._asked.pop(episode, None)
        return self._policy.finish(episode)

    def agree_on_protocol(self, protocol: Protocol, tools: Mapping[str, ToolSpec], *, named: bool = True) -> Protocol:
        """Return the written form in which the policy is to call the tools of an environment."""
        return self._policy.agree_on_protocol(protocol, tools, named=named)
