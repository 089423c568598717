"""Any OpenAI-compatible endpoint as a policy: our own server, vLLM, or a provider."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Any

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.policies.api_endpoint import Endpoint, EndpointError, Reply, Usage
from trajgym.policies.api_messages import native_messages, native_tools, native_turn, text_messages
from trajgym.policies.base import LostTurn, TextPolicy
from trajgym.policies.images import with_images
from trajgym.protocols import Protocol
from trajgym.types import Action, Message, Task, TokenStream, ToolSpec

__all__ = ["APIPolicy", "EndpointError", "Usage"]

_LOOK_UP = 0.05  # seconds for which one poll waits for replies
_OUTAGES = 3  # requests in a row without a reply after which it is no use to go on


class APIPolicy(TextPolicy):
    """Plays many episodes at once with a model behind an address.

    A reply that the endpoint's budget has cut ends its episode as ``turn_tokens``, a dialogue that it finds too long as
    ``episode_tokens``. An endpoint that is out of order is never the model's failure: a single request that stays
    without a reply makes its one trajectory invalid, several in a row raise.

    Args:
        model: What the endpoint calls it.
        base_url: Such as ``"http://127.0.0.1:8000/v1"``; ``$OPENAI_BASE_URL`` when ``None``.
        api_key: ``$OPENAI_API_KEY`` when ``None``; endpoints that want none take any.
        temperature: Of the draws.
        max_turn_tokens: Most new tokens of one turn.
        calls: ``"text"`` lets the model write calls in the environment's protocol; ``"native"`` converts the endpoint's
            own tool calls to it and back.
        tool_role: Where calls are text: how the endpoint is given tool messages, see
            :func:`trajgym.policies.api_messages.text_messages`. ``"tool"`` is right for ``trajgym serve``.
        seeded: Whether to send a seed, different for each turn and the same in each run.
        concurrency: Most episodes, and so requests, at the same time.
        timeout: Seconds for one attempt.
        attempts: How often a request is tried.
        backoff: Seconds before the second attempt.
        prices: Price of a million prompt tokens and of a million new tokens.
        extra: Further keys of each request, such as ``{"top_p": 0.9}``.

    Attributes:
        spent: Tokens that the replies of an episode have read and written, by the caller's number for it, until another
            one begins under that number; ``None`` where the endpoint did not tell them. The dialogue is read anew in
            each turn.

    Raises:
        ConfigError: When an option has a value it cannot have.
    """

    sees_all = False

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        temperature: float = 0.0,
        max_turn_tokens: int = 512,
        calls: str = "text",
        tool_role: str = "user",
        seeded: bool = True,
        concurrency: int = 16,
        timeout: float = 60.0,
        attempts: int = 5,
        backoff: float = 0.5,
        prices: tuple[float, float] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value, allowed in (("calls", calls, ("native", "text")), ("tool_role", tool_role, ("tool", "user"))):
            if value not in allowed:
                raise UnknownNameError(name, value, allowed)
        for name, count in (("max_turn_tokens", max_turn_tokens), ("concurrency", concurrency), ("attempts", attempts)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {count!r}.")
        for name, number in (("temperature", temperature), ("timeout", timeout), ("backoff", backoff)):
            if not math.isfinite(number) or number < 0 or (name == "timeout" and number == 0):
                raise ConfigError(f"{name} must be finite and not negative, and timeout above 0, got {number!r}.")
        if prices is not None and not (len(prices) == 2 and all(0 <= price < math.inf for price in prices)):
            raise ConfigError(f"prices must be two finite numbers from 0, of a million tokens each, got {prices!r}.")
        address = base_url or os.environ.get("OPENAI_BASE_URL") or ""
        if not address.startswith(("http://", "https://")):
            raise ConfigError(f"base_url must be a web address such as http://127.0.0.1:8000/v1, got {address!r}.")
        super().__init__(concurrency)
        self.model, self._prices = model, prices
        self._native, self._tool_role, self._seeded = calls == "native", tool_role, seeded
        self._options = {"temperature": temperature, "max_tokens": max_turn_tokens, **(extra or {})}
        self._endpoint = Endpoint(
            base_url=address,
            api_key=api_key or os.environ.get("OPENAI_API_KEY") or "none",
            timeout=timeout,
            attempts=attempts,
            concurrency=concurrency,
            backoff=backoff,
        )
        self._agreed: tuple[Protocol, Mapping[str, ToolSpec]] | None = None
        self.spent: dict[int, tuple[int, int] | None] = {}
        self._asked: dict[int, Future[Reply]] = {}
        self._lost = 0  # requests in a row without a reply

    @property
    def usage(self) -> Usage:
        """What was asked for so far."""
        return self._endpoint.usage

    @property
    def cost(self) -> float | None:
        """What it cost so far, in the unit of the prices; ``None`` without prices."""
        return None if self._prices is None else self.usage.cost(*self._prices)

    def agree_on_protocol(self, protocol: Protocol, tools: Mapping[str, ToolSpec], *, named: bool = True) -> Protocol:
        """Take the environment's protocol, whatever it is: this policy writes each."""
        self._agreed = (protocol, tools)
        return protocol

    def start(self, episode: int, messages: Sequence[Message], *, task: Task, seed: int) -> None:
        """Begin an episode."""
        super().start(episode, messages, task=task, seed=seed)
        self.spent[episode] = (0, 0)

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        """Write the next assistant turn.

        Raises:
            ConfigError: When the endpoint refuses the request for good.
            EndpointError: When it does not answer.
        """
        return self._action(self._ask(messages, seed).result()).text

    def poll(self) -> list[tuple[int, Action]]:
        """Ask for the turns that wait; return those whose replies have come.

        Raises:
            ConfigError: When the endpoint refuses a request for good.
            EndpointError: When it has been out of order for several requests in a row.
        """
        waiting, self._waiting = self._waiting, []
        for episode in waiting:
            messages, _, seed = self._live[episode]
            self._asked[episode] = self._ask(messages, seed)
        wait(self._asked.values(), timeout=_LOOK_UP, return_when=FIRST_COMPLETED)
        ready = []
        for episode in [episode for episode, asked in self._asked.items() if asked.done()]:
            action = self._received(episode, self._asked.pop(episode))
            self._live[episode][0].append(Message("assistant", action.text))
            ready.append((episode, action))
        return ready

    def finish(self, episode: int) -> tuple[TokenStream, ...]:
        """Forget the episode, and give up its request."""
        asked = self._asked.pop(episode, None)
        if asked is not None:
            asked.cancel()
        return super().finish(episode)

    def close(self) -> None:
        """Close all connections; may be called again."""
        self._endpoint.close()

    def _ask(self, messages: Sequence[Message], seed: int) -> Future[Reply]:
        body = {"model": self.model, **self._options}
        if self._seeded:
            # One draw per turn; many endpoints take 31 bits.
            body["seed"] = (seed * 0x9E3779B1 + len(messages)) % 2**31
        if not self._native:
            return self._endpoint.ask({**body, "messages": with_images(text_messages(messages, self._tool_role))})
        protocol, tools = self._agreement()
        shown = {"tools": native_tools(tools)} if tools else {}
        return self._endpoint.ask(
            {**body, **shown, "messages": with_images(native_messages(messages, protocol, tools))}
        )

    def _received(self, episode: int, asked: Future[Reply]) -> Action:
        try:
            reply = asked.result()
        except (EndpointError, CancelledError) as error:
            self._lost += 1
            if self._lost >= _OUTAGES:
                raise
            return LostTurn("", error=error)
        self._lost = 0
        before, more = self.spent[episode], reply.tokens
        self.spent[episode] = None if before is None or more is None else (before[0] + more[0], before[1] + more[1])
        return self._action(reply)

    def _action(self, reply: Reply) -> Action:
        text = reply.text
        if reply.calls:
            # Some protocols can call one tool alone; a call of any other is no call to them.
            with contextlib.suppress(ConfigError):
                text = native_turn(reply.text, reply.calls, self._agreement()[0])
        return Action(text, finish={"length": "turn_tokens", "full": "episode_tokens"}.get(reply.finish, "stop"))

    def _agreement(self) -> tuple[Protocol, Mapping[str, ToolSpec]]:
        if self._agreed is None:
            raise ConfigError(
                "calls='native' needs the environment's tools: call agree_on_protocol(env.protocol, env.tools) first, "
                "as trajgym.evaluation.evaluate does, or use calls='text'."
            )
        return self._agreed
