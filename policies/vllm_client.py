"""Asking a server over HTTP: many requests at once, each with a deadline, tried again where that may help.

Every request waits in a thread of its own, so that replies come in whatever order they are ready. A refusal that no
second try will change is the caller's error and is raised at once; whatever may pass (a busy or a broken server, a lost
connection, a reply that is no reply) is tried again after a pause that grows, and then is an outage.
"""

from __future__ import annotations

import http.client
import json
import queue
import random
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trajgym.errors import ConfigError, EnvironmentFault

__all__ = ["Answer", "Client", "Refused", "ServerError"]

_PASSING = (408, 409, 425, 429)  # and everything from 500 on
_LONGEST_WAIT = 30.0  # seconds between attempts
_CONNECT = 10.0  # seconds for a connection


class ServerError(EnvironmentFault):
    """A server is out of order: after all attempts there is no reply."""


class Refused(ConfigError):
    """A server refuses a request for good.

    Args:
        message: What to show.
        status: HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.status))


@dataclass(frozen=True)
class Answer:
    """What became of a request.

    Args:
        ticket: From :meth:`Client.ask`.
        value: What was read from the reply; ``None`` with an error.
        error: Why there is none.
    """

    ticket: int
    value: Any = None
    error: Exception | None = None


@dataclass
class _Request:
    path: str
    body: Mapping[str, Any] | None
    read: Callable[[Any], Any]
    given_up: threading.Event = field(default_factory=threading.Event)
    connection: http.client.HTTPConnection | None = None


class Client:
    """A server's address, and the requests that are under way there.

    Args:
        url: Such as ``"http://127.0.0.1:8000"``.
        key: Sent as bearer token; empty sends none.
        timeout: Seconds for one attempt, to the last byte of its reply.
        attempts: How often a request is tried.
        backoff: Seconds before the second attempt; doubled for each further one, and varied by half.
    """

    def __init__(self, url: str, *, key: str, timeout: float, attempts: int, backoff: float) -> None:
        parts = urllib.parse.urlsplit(url.rstrip("/"))
        self.url, self._prefix = url.rstrip("/"), parts.path
        self._host, self._secure = parts.netloc.rpartition("@")[2], parts.scheme == "https"
        self._headers = {"Content-Type": "application/json", "Connection": "close"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._timeout, self._attempts, self._backoff = timeout, attempts, backoff
        self._draws = random.Random()  # only for pauses
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._under_way: dict[int, _Request] = {}
        self._asked = 0

    def call(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request, wait for its reply and return what its JSON says; ``GET`` without a body.

        Raises:
            Refused: When the server refuses it for good.
            ServerError: When there is no reply after all attempts.
        """
        return self._tried(_Request(path, body, lambda value: value))

    def ask(self, path: str, body: Mapping[str, Any], read: Callable[[Any], Any]) -> int:
        """Send a request without waiting, and return the ticket under which :meth:`answers` will bring its answer.

        Args:
            path: Below the address.
            body: Sent as JSON.
            read: Takes the value out of the reply; a ValueError, KeyError, IndexError or TypeError in it means that the
                reply is none.
        """
        self._asked += 1
        ticket, request = self._asked, _Request(path, body, read)
        self._under_way[ticket] = request
        # A daemon, so that a server which does not answer cannot keep this process from ending.
        threading.Thread(target=self._work, args=(ticket, request), name="trajgym-request", daemon=True).start()
        return ticket

    def answers(self, seconds: float) -> list[Answer]:
        """Return the answers that are there, after waiting for the first one for at most so many seconds."""
        found: list[Answer] = []
        while True:
            try:
                answer = self._answers.get(timeout=seconds) if not found else self._answers.get_nowait()
            except queue.Empty:
                return found
            if self._under_way.pop(answer.ticket, None) is not None:
                found.append(answer)

    def give_up(self, ticket: int) -> None:
        """Forget a request and close its connection, whereupon the server stops working on it."""
        request = self._under_way.pop(ticket, None)
        if request is None:
            return
        request.given_up.set()
        connection = request.connection
        if connection is not None and connection.sock is not None:
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # closed already

    def _work(self, ticket: int, request: _Request) -> None:
        try:
            self._answers.put(Answer(ticket, self._tried(request)))
        except Exception as error:
            self._answers.put(Answer(ticket, error=error))

    def _tried(self, request: _Request) -> Any:
        for attempt in range(1, self._attempts + 1):
            try:
                return request.read(self._attempt(request))
            except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError) as error:
                if isinstance(error, Refused):
                    raise
                if attempt == self._attempts or request.given_up.is_set():
                    raise ServerError(
                        f"{self.url}{request.path} gave no reply in {attempt} attempts: {_what(error, self._timeout)}"
                    ) from error
            pause = self._backoff * 2.0 ** (attempt - 1) * self._draws.uniform(0.5, 1.5)
            request.given_up.wait(min(_LONGEST_WAIT, pause))
        raise AssertionError("attempts is at least 1")

    def _attempt(self, request: _Request) -> Any:
        """Send a request once and return its JSON.

        Raises:
            Refused: For a status that will not change.
            OSError, HTTPException, ValueError: For what may pass.
        """
        end = time.monotonic() + self._timeout
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, timeout=min(_CONNECT, self._timeout))
        try:
            connection.connect()
            request.connection = connection
            if request.given_up.is_set():
                raise ConnectionAbortedError("the request was given up")
            sock = connection.sock
            sock.settimeout(self._timeout)
            body = None if request.body is None else json.dumps(request.body)
            connection.request("GET" if body is None else "POST", self._prefix + request.path, body, self._headers)
            parts = []
            with connection.getresponse() as response:
                while part := response.read1(1 << 20):
                    parts.append(part)
                    if (left := end - time.monotonic()) <= 0:
                        raise TimeoutError
                    sock.settimeout(left)
        finally:
            request.connection = None
            connection.close()
        text = b"".join(parts).decode("utf-8", errors="replace")
        if response.status >= 500 or response.status in _PASSING:
            raise http.client.HTTPException(f"status {response.status}, {_message(text)}")
        if response.status >= 400:
            raise Refused(
                f"{self.url}{request.path} refuses the request ({response.status}): {_message(text)}", response.status
            )
        try:
            return json.loads(text) if text else None
        except ValueError:
            if response.headers.get_content_type() == "application/json":
                raise
            return text


def _message(text: str) -> str:
    """Return the server's own words, in whichever of its forms they come."""
    try:
        value = json.loads(text)
        found = value.get("error", value)
        words = found if isinstance(found, str) else found.get("message") or found.get("detail") or text
    except (ValueError, AttributeError):
        words = text
    words = " ".join(str(words).split())[:400]
    return words if words.endswith(".") else f"{words}."


def _what(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no whole reply within {timeout:g} s."
    text = " ".join(str(error).split())[:400] or "no reason given"
    return f"{type(error).__name__}: {text}"
