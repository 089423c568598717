"""What stands before every handler: the key, the size and the pace of the body, and the counters.

A handler never sees a body that is too large or that does not come: it is read here, up to its limit and in its time,
and handed on whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trajgym.serving.metrics import Metrics
from trajgym.serving.refusals import Refusal
from trajgym.serving.service import Service

__all__ = ["Gate"]

_OPEN = ("/health",)  # whoever watches the server's health need not know its key
_READ_ON = 16  # bodies of up to so many times the limit are read to their end, so that the client hears why


class Gate:
    """An ASGI application around another one.

    Args:
        app: The handlers.
        service: Has the key and the limits.
        metrics: Counts requests.
    """

    def __init__(self, app: ASGIApp, *, service: Service, metrics: Metrics) -> None:
        self._app, self._service, self._metrics = app, service, metrics
        self._key = None if service.api_key is None else _digest(service.api_key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102 - ASGI's own name
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 499  # nothing was answered: the client was gone

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                self._check_key(scope)
                body = await self._body(scope, receive)
            except Refusal as refusal:
                await _refuse(refusal, noted)
                return
            if body is not None:
                await self._app(scope, _replay(body, receive), noted)
        finally:
            self._metrics.request(scope["path"], status, time.monotonic() - began)

    def _check_key(self, scope: Scope) -> None:
        if self._key is None or scope["path"] in _OPEN:
            return
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        # Digests have one length, so the time of comparing tells nothing of the key, not even how long it is.
        if not hmac.compare_digest(_digest(key.strip()), self._key) or scheme.lower() != b"bearer":
            raise Refusal(401, "Send the server's key: Authorization: Bearer KEY.", "invalid_api_key")

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body, or ``None`` when the client is gone.

        Raises:
            Refusal: When it is too large or too slow.
        """
        most = self._service.limits.max_body_bytes
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        chunks: list[bytes] = []
        size, more = 0, True
        too_large = Refusal(413, f"The body exceeds {most} bytes.", "body_too_large")
        if announced.isdigit() and int(announced) > _READ_ON * most:
            raise too_large
        try:
            async with asyncio.timeout(self._service.limits.receive_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    more = message.get("more_body", False)
                    size += len(message.get("body", b""))
                    if size <= most:
                        chunks.append(message.get("body", b""))
                    elif size > _READ_ON * most:
                        raise too_large
        except TimeoutError:
            seconds = self._service.limits.receive_seconds
            raise Refusal(408, f"The body was not there within {seconds:g} s.", "slow_body") from None
        if size > most:
            raise too_large
        return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return what gives the whole body at once, and afterwards whatever comes, which is the end of the connection."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


async def _refuse(refusal: Refusal, send: Send) -> None:
    body = json.dumps(refusal.body).encode()
    headers: dict[str, Any] = {**refusal.headers, "Content-Type": "application/json", "Content-Length": len(body)}
    # What is left of the request is not read, so the connection cannot carry another one.
    headers["Connection"] = "close"
    raw = [(name.lower().encode(), str(value).encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
