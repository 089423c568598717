"""The paths of a server: which handler answers what, and how a failure is told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, Protocol, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from trajgym import __version__
from trajgym.errors import TrajgymError
from trajgym.serving.agent import Agents
from trajgym.serving.chat import Chat
from trajgym.serving.gate import Gate
from trajgym.serving.generate import Generate
from trajgym.serving.metrics import Metrics
from trajgym.serving.refusals import Refusal, refusal_of
from trajgym.serving.schemas import AgentRequest, ChatRequest, GenerateRequest
from trajgym.serving.service import Service

__all__ = ["build_app"]

T = TypeVar("T")

_log = logging.getLogger(__name__)
_UNREAD = "There was an error parsing the body"  # what FastAPI says where json raises anything but a JSONDecodeError
_KIND = re.compile(r"(?:constrained-)?str|_Chosen|(?:list|literal)\[.*\]")  # pydantic's names of what a value may be


class _Cancellable(Protocol):
    def cancel(self) -> None: ...


def build_app(service: Service) -> FastAPI:
    """Return the ASGI application that serves ``service``, and closes its engine when it ends.

    Raises:
        ConfigError: When the environment of ``/agent`` cannot be played.
    """
    agents = None if service.agent is None else Agents(service)
    metrics = Metrics(service.engine)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            if agents is not None:
                agents.close()
            await asyncio.to_thread(service.engine.close)

    app = FastAPI(title=f"trajgym: {service.name}", version=__version__, lifespan=lifespan)
    _add_paths(app, service, agents, metrics)
    _add_failures(app)
    app.add_middleware(Gate, service=service, metrics=metrics)
    return app


def _add_paths(app: FastAPI, service: Service, agents: Agents | None, metrics: Metrics) -> None:
    model = {"id": service.name, "object": "model", "created": service.created, "owned_by": "trajgym"}

    @app.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        chat = Chat(service, body)
        if body.stream:
            return _Events(chat, service.limits.request_seconds)
        return JSONResponse(await _unless_gone(request, chat.whole(), chat))

    @app.post("/generate")
    async def generate(body: GenerateRequest, request: Request) -> dict[str, Any]:
        generation = Generate(service, body)
        return await _unless_gone(request, generation.whole(), generation)

    @app.post("/agent")
    async def agent(body: AgentRequest, request: Request) -> dict[str, Any]:
        if agents is None:
            raise Refusal(404, "This server plays no environment; start it with --env.", "no_environment")
        return await _unless_gone(request, agents.answer(body))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        if name != service.name:
            raise Refusal(404, f"There is no model {name!r} here; this server has {service.name!r}.", "model_not_found")
        return model

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        load = service.engine.load
        state = {"status": "ok", "model": service.name, "running": load.running, "waiting": load.waiting}
        if service.engine.alive:
            return JSONResponse(state)
        return JSONResponse({**state, "status": "stopped"}, status_code=503)

    @app.get("/metrics")
    async def metrics_text() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_failures(app: FastAPI) -> None:
    def tell(refusal: Refusal) -> Response:
        return JSONResponse(refusal.body, refusal.status, refusal.headers)

    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, error: RequestValidationError) -> Response:
        first = _telling(error.errors())
        place = _place(first)
        if not place and first["type"] in ("missing", "model_attributes_type", "dict_type"):
            message = "The body must be a JSON object, sent with the header Content-Type: application/json."
            return tell(Refusal(400, message, "invalid_json"))
        if first["type"] == "json_invalid":
            return tell(Refusal(400, f"The body is not JSON: {first['ctx']['error']}.", "invalid_json"))
        where = ".".join(place)
        message = str(first["msg"]).removeprefix("Value error, ")
        return tell(Refusal(400, f"{where}: {message}" if where else message, "invalid_value", param=where or None))

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400 and error.detail == _UNREAD:
            message = (
                "The body is no JSON that can be read: it is not UTF-8, is nested too deeply, or has too long numbers."
            )
            return tell(Refusal(400, message, "invalid_json"))
        message = f"{request.method} {request.url.path}: {error.detail}."
        return tell(Refusal(error.status_code, message, "not_found" if error.status_code == 404 else "http_error"))

    @app.exception_handler(TrajgymError)
    @app.exception_handler(TimeoutError)
    async def refused(request: Request, error: Exception) -> Response:
        return tell(refusal_of(error))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return tell(refusal_of(error))


def _telling(errors: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the error that says most.

    Where a value may be of several kinds, each kind has its own complaint: one about more than the kind, and the one
    that lies deepest, is of the kind that was meant.
    """
    same = [error for error in errors if error["loc"][:2] == errors[0]["loc"][:2]]
    return max(same, key=lambda error: (not error["type"].endswith("_type"), len(error["loc"])))


def _place(error: dict[str, Any]) -> list[str]:
    """Return the keys that lead to what is wrong."""
    *way, last = [part for part in error["loc"] if part != "body"] or [""]
    way = [part for part in way if not _KIND.fullmatch(str(part))]
    named = error["type"] == "extra_forbidden" or not _KIND.fullmatch(
        str(last)
    )  # a client's key may be called anything
    return [str(part) for part in (*way, *([last] if named and last != "" else []))]


async def _unless_gone(request: Request, work: Awaitable[T], cancellable: _Cancellable | None = None) -> T:
    """Return what ``work`` gives; a client that hangs up ends it, and frees its slot.

    Raises:
        Refusal: When the client is gone; nobody reads it.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Refusal(499, "The client has closed the connection.", "client_gone")
    finally:
        gone.cancel()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await working
        if cancellable is not None:
            cancellable.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Events(StreamingResponse):
    """Server-sent events of a chat that is given up when nobody reads them, or not fast enough.

    Args:
        chat: Where they come from.
        seconds: Within which they must be read.
    """

    def __init__(self, chat: Chat, seconds: float) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(chat.events(), media_type="text/event-stream", headers=headers)
        self._chat, self._seconds = chat, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # A little longer than the answer may take, so that its own last event is still sent.
            async with asyncio.timeout(self._seconds + 5):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            _log.warning("A client did not read its events within %g s.", self._seconds + 5)
        finally:
            self._chat.cancel()
