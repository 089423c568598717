"""Calling a function that lives elsewhere, such as a served model: in batches, with a memory, a limit and a fuse.

>>> shout = Outside(lambda texts: [text.upper() for text in texts], name="shouter", linger=0.0)
>>> shout(["a", "b", "a"])
['A', 'B', 'A']
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from trajgym.errors import ConfigError, EnvironmentFault
from trajgym.rewards.functions import is_number

__all__ = ["Outside"]

Request = TypeVar("Request", bound=Hashable)
Reply = TypeVar("Reply")
_Waiting = tuple[Request, "Future[Reply]"]


class Outside(Generic[Request, Reply]):
    """A function from a list of requests to a list of replies that may be slow or away.

    Equal requests are made once and remembered. Requests that threads make at the same time travel together: whoever
    asks first waits ``linger`` seconds for the others. Whatever the function raises, an answer that is late and a list
    of the wrong length are an outage: the call is tried again, and then everyone who waits gets an
    :class:`~trajgym.errors.EnvironmentFault`. After an outage, requests fail at once for ``cooldown`` seconds, so that
    a hundred episodes do not each wait for the limit.

    Args:
        ask: The function. It may be called from several threads at once.
        name: What it is, for messages.
        batch_size: Most requests in one call.
        linger: How long to wait for company, in seconds.
        timeout: How long one call may take, in seconds.
        attempts: How often a call is tried.
        cooldown: See above, in seconds.
        remembered: Most replies that are kept.

    Raises:
        ConfigError: For a value that is not allowed.
    """

    def __init__(
        self,
        ask: Callable[[list[Request]], Sequence[Reply]],
        *,
        name: str = "judge",
        batch_size: int = 32,
        linger: float = 0.01,
        timeout: float = 60.0,
        attempts: int = 2,
        cooldown: float = 10.0,
        remembered: int = 10_000,
    ) -> None:
        if not callable(ask):
            raise ConfigError(f"A {name} is a function from a list of requests to a list of replies, got {ask!r}.")
        for key, value in (("batch_size", batch_size), ("attempts", attempts), ("remembered", remembered)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{key} must be a whole number of at least 1, got {value!r}.")
        for key, seconds in (("linger", linger), ("timeout", timeout), ("cooldown", cooldown)):
            if not is_number(seconds) or seconds < 0 or (key == "timeout" and seconds == 0):
                raise ConfigError(f"{key} must be a finite number of seconds, got {seconds!r}.")
        self.ask, self.name = ask, name
        self.batch_size, self.attempts, self.remembered = batch_size, attempts, remembered
        self.linger, self.timeout, self.cooldown = linger, timeout, cooldown
        self._open()

    _waiting: list[_Waiting[Request, Reply]]
    _why: str
    _down_until: float  # by time.monotonic(), in seconds

    def __call__(self, requests: Sequence[Request]) -> list[Reply]:
        """Return the reply to each request.

        Raises:
            EnvironmentFault: When the function is out of order.
        """
        with self._lock:
            futures = [self._future(request) for request in requests]
            somebody_waits = bool(self._waiting)
        if somebody_waits:
            time.sleep(self.linger)
            while batch := self._take():
                self._answer(batch)
        return [future.result() for future in futures]

    def _future(self, request: Request) -> Future[Reply]:
        future = self._known.get(request)
        if future is None:
            future = self._known[request] = Future()
            self._waiting.append((request, future))
            while len(self._known) > self.remembered:
                self._known.popitem(last=False)  # who waits for it holds it
        self._known.move_to_end(request)
        return future

    def _take(self) -> list[_Waiting[Request, Reply]]:
        with self._lock:
            batch, self._waiting = self._waiting[: self.batch_size], self._waiting[self.batch_size :]
        return batch

    def _answer(self, batch: list[_Waiting[Request, Reply]]) -> None:
        try:
            replies = self._replies([request for request, _ in batch])
        except BaseException as error:  # KeyboardInterrupt as well: nobody may be left waiting
            with self._lock:
                for request, future in batch:
                    if self._known.get(request) is future:
                        del self._known[request]
            for _, future in batch:
                future.set_exception(EnvironmentFault(f"The {self.name} is out of order: {error}"))
            if not isinstance(error, Exception):
                raise
        else:
            for (_, future), reply in zip(batch, replies, strict=True):
                future.set_result(reply)

    def _replies(self, requests: list[Request]) -> Sequence[Reply]:
        if time.monotonic() < self._down_until:
            raise EnvironmentFault(self._why)
        for attempt in range(self.attempts):
            try:
                return self._in_time(requests)
            except Exception as error:  # of any kind: it is somebody else's function
                if attempt + 1 == self.attempts:
                    self._why, self._down_until = f"{type(error).__name__}: {error}", time.monotonic() + self.cooldown
                    raise EnvironmentFault(self._why) from error
        raise AssertionError("attempts is at least 1")

    def _in_time(self, requests: list[Request]) -> Sequence[Reply]:
        """Call the function in a thread of its own, which is left behind when it is late."""
        done: Future[Sequence[Reply]] = Future()

        def work() -> None:
            try:
                done.set_result(list(self.ask(requests)))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=work, name=f"trajgym-{self.name}", daemon=True).start()
        try:
            replies = done.result(self.timeout)
        except TimeoutError as error:
            if done.done():
                raise  # its own
            raise TimeoutError(f"no answer within {self.timeout:g} s") from error
        if len(replies) != len(requests):
            raise ValueError(f"{len(replies)} replies to {len(requests)} requests")
        return replies

    def _open(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Request, Future[Reply]] = OrderedDict()
        self._waiting = []
        self._why, self._down_until = "", 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
