"""Asking an OpenAI-compatible endpoint: many requests at once, each with a deadline, tried again where that may help.

Nothing that goes wrong here is the model's doing. A refusal that no second try will change (a wrong key, an unknown
model) is the caller's error and is raised at once; whatever may pass (a busy or a broken server, a lost connection, a
reply that is no reply) is tried again after a pause that grows, and then is an outage.
"""

from __future__ import annotations

import asyncio
import email.utils
import random
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import openai

from trajgym.errors import ConfigError, EnvironmentFault

__all__ = ["Endpoint", "EndpointError", "Reply", "Usage"]

T = TypeVar("T")

_PASSING = (408, 409, 425, 429)  # and everything from 500 on
_TOO_LONG = ("context_length_exceeded", "maximum context length", "max_model_len")


class EndpointError(EnvironmentFault):
    """An endpoint is out of order: after all attempts there is no reply."""


@dataclass(frozen=True)
class Reply:
    """What an endpoint answered.

    Args:
        text: What the model said.
        calls: Name and arguments, the latter as JSON, of each call in the endpoint's own form.
        finish: ``"stop"``, ``"length"`` when the budget cut it, ``"full"`` when the dialogue no longer fits.
        tokens: Read and written, as the endpoint counts them; ``None`` when it does not say.
    """

    text: str
    calls: tuple[tuple[str, str], ...] = ()
    finish: str = "stop"
    tokens: tuple[int, int] | None = None


@dataclass
class Usage:
    """What was asked for so far.

    Args:
        requests: Replies that came.
        retries: Attempts that failed and were followed by another one.
        outages: Requests without a reply after all attempts.
        prompt_tokens: As the endpoint counts them.
        completion_tokens: As the endpoint counts them.
        seconds: Time between the first attempts and the replies, summed over requests.
    """

    requests: int = 0
    retries: int = 0
    outages: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def cost(self, prompt_price: float, completion_price: float) -> float:
        """Return what the tokens cost at these prices per million.

        >>> Usage(prompt_tokens=2_000_000, completion_tokens=500_000).cost(0.5, 2.0)
        2.0
        """
        return (self.prompt_tokens * prompt_price + self.completion_tokens * completion_price) / 1e6


class Endpoint:
    """A connection to an endpoint, with a thread of its own that all requests go through.

    Args:
        base_url: Such as ``"http://127.0.0.1:8000/v1"``.
        api_key: Its key; endpoints that want none take any.
        timeout: Seconds for one attempt, from its first byte sent to its last byte received.
        attempts: How often a request is tried.
        concurrency: Most requests at the same time.
        backoff: Seconds before the second attempt; doubled for each further one, and varied by half.
        longest_wait: Most seconds between attempts, whatever the endpoint asks for.

    Attributes:
        usage: What was asked for so far.
    """

    def __init__(
        self,
        *,
        base_url: str,
        api_key: str,
        timeout: float = 60.0,
        attempts: int = 5,
        concurrency: int = 16,
        backoff: float = 0.5,
        longest_wait: float = 60.0,
    ) -> None:
        self.base_url = base_url
        self.usage = Usage()
        self._timeout, self._attempts = timeout, attempts
        self._backoff, self._longest_wait = backoff, longest_wait
        self._draws = random.Random()  # only for pauses
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trajgym-endpoint", daemon=True)
        self._thread.start()
        self._client, self._places = self._within(self._open(base_url, api_key, concurrency)).result()

    def ask(self, body: Mapping[str, Any]) -> Future[Reply]:
        """Send a request; its result is the reply.

        The future raises ConfigError when the endpoint refuses the request for good, and EndpointError when it does not
        answer. Cancelling it closes its connection.

        Args:
            body: As for ``/chat/completions``.

        Raises:
            EndpointError: When the connection was closed.
        """
        if self._loop.is_closed():
            raise EndpointError(f"The connection to {self.base_url} was closed.")
        return self._within(self._answer(dict(body)))

    def close(self) -> None:
        """Give up what is under way and end the thread; may be called again."""
        if self._loop.is_closed():
            return
        self._within(self._shut()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _within(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(self, base_url: str, api_key: str, concurrency: int) -> tuple[Any, asyncio.Semaphore]:
        # Attempts are counted here, where replies that cannot be read count as well.
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=self._timeout)
        return client, asyncio.Semaphore(concurrency)

    async def _shut(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.close()

    async def _answer(self, body: dict[str, Any]) -> Reply:
        async with self._places:
            began = time.monotonic()
            for attempt in range(1, self._attempts + 1):
                try:
                    async with asyncio.timeout(self._timeout):
                        reply = self._read(await self._client.chat.completions.create(**body))
                except Exception as error:  # the client, its transport and a broken reply raise a dozen types
                    pause = self._pause(error, attempt)
                    if pause is None:
                        self.usage.outages += 1
                        what = _what(error, self._timeout)
                        raise EndpointError(f"{self.base_url} gave no reply in {attempt} attempts: {what}") from error
                    if pause < 0:
                        return Reply("", finish="full", tokens=(0, 0))  # a refusal costs nothing
                    self.usage.retries += 1
                    await asyncio.sleep(pause)
                else:
                    self.usage.requests += 1
                    self.usage.seconds += time.monotonic() - began
                    return reply
        raise AssertionError("attempts is at least 1")

    def _pause(self, error: Exception, attempt: int) -> float | None:
        """Return seconds until the next attempt, ``None`` when there is none, -1 when the dialogue is too long.

        Raises:
            ConfigError: When no further attempt can succeed.
        """
        asked = 0.0
        if isinstance(error, openai.APIStatusError):
            if error.status_code == 400 and any(words in f"{error.code} {error}" for words in _TOO_LONG):
                return -1.0
            if error.status_code not in _PASSING and error.status_code < 500:
                raise ConfigError(
                    f"{self.base_url} refuses the request ({error.status_code}): {error.message} Check base_url, "
                    "api_key, model and the other options."
                ) from error
            asked = _retry_after(error.response.headers.get("retry-after"))
        if attempt >= self._attempts:
            return None
        pause = self._backoff * 2.0 ** (attempt - 1) * self._draws.uniform(0.5, 1.5)
        return min(self._longest_wait, max(asked, pause))

    def _read(self, completion: Any) -> Reply:
        """Take the reply out of what the client made of a response.

        Raises:
            ValueError: When it is none.
        """
        tokens = self._count(completion)  # what is no reply costs what one costs
        choices: Any = getattr(completion, "choices", None)
        message = getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None
        text = getattr(message, "content", None)
        if message is None or not (text is None or isinstance(text, str)):
            raise ValueError("the response holds no message")
        calls = []
        for call in getattr(message, "tool_calls", None) or ():
            function = getattr(call, "function", None)
            name, arguments = getattr(function, "name", None), getattr(function, "arguments", None)
            if not isinstance(name, str) or not isinstance(arguments, (str, type(None))):
                raise ValueError("the response holds a broken tool call")
            calls.append((name, arguments or ""))
        cut = getattr(choices[0], "finish_reason", None) == "length"
        return Reply(text or "", tuple(calls), "length" if cut else "stop", tokens)

    def _count(self, completion: Any) -> tuple[int, int] | None:
        """Add a response's tokens to the usage, and return them; ``None`` when it does not tell them."""
        usage = getattr(completion, "usage", None)
        read, written = (getattr(usage, key, None) for key in ("prompt_tokens", "completion_tokens"))
        if not (isinstance(read, int) and isinstance(written, int) and min(read, written) >= 0):
            return None
        self.usage.prompt_tokens += read
        self.usage.completion_tokens += written
        return read, written


def _retry_after(value: str | None) -> float:
    """Read the header: seconds, or a date."""
    if value is None:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return max(0.0, seconds) if seconds < float("inf") else 0.0


def _what(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no whole reply within {timeout:g} s"
    cause = f" ({error.__cause__})" if isinstance(error, openai.APIConnectionError) and error.__cause__ else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{cause}"
