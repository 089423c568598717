"""The process around the application: connections, signals, an orderly end."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trajgym.errors import ConfigError
from trajgym.serving.app import build_app
from trajgym.serving.limits import Limits
from trajgym.serving.service import Service

__all__ = ["make_server", "serve"]


def make_server(service: Service, *, host: str = "0.0.0.0", port: int = 8000, quiet: bool = False) -> uvicorn.Server:  # noqa: S104 - a service is there to be reached
    """Return a server that is ready to run; ``should_exit`` ends it as a signal does.

    Args:
        service: What it serves.
        host: Address to listen on.
        port: Port to listen on; 0 takes any that is free.
        quiet: Whether to say nothing but warnings.

    Raises:
        ConfigError: When the environment of ``/agent`` cannot be played.
    """
    config = uvicorn.Config(
        build_app(service),
        host=host,
        port=port,
        http=_patient(service.limits),
        ws="none",
        lifespan="on",
        access_log=not quiet,
        log_level="warning" if quiet else "info",
        server_header=False,
        timeout_graceful_shutdown=max(1, round(service.limits.drain_seconds)),
    )
    return uvicorn.Server(config)


def serve(service: Service, *, host: str = "0.0.0.0", port: int = 8000) -> None:  # noqa: S104
    """Serve until SIGTERM or Ctrl-C; then take no more connections, finish what is under way, and return.

    Args:
        service: What to serve; its engine is closed afterwards.
        host: Address to listen on.
        port: Port to listen on.

    Raises:
        ConfigError: When the address cannot be had, or the environment of ``/agent`` cannot be played.
    """
    _allow_connections(service.limits.max_connections)
    server = make_server(service, host=host, port=port)
    try:
        server.run()
    except SystemExit as error:  # how uvicorn says that it could not start; it has logged why
        raise ConfigError(f"Cannot listen on {host}:{port}. Choose another --host or --port.") from error
    except KeyboardInterrupt:
        pass  # it has ended in order by then
    finally:
        service.engine.close()


def _patient(limits: Limits) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with an end to its patience: with how many connections, and for a request's headers."""

    class PatientProtocol(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.max_connections:
                transport.abort()
                return
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._late is not None:
                self._late.cancel()

        def _watch(self) -> None:
            """Keep a timer while headers are awaited; more of them do not set it back."""
            answering = self.cycle is not None and not self.cycle.response_complete
            if answering and self._late is not None:
                self._late.cancel()
                self._late = None
            elif not answering and self._late is None:
                self._late = self.loop.call_later(limits.receive_seconds, self.transport.abort)

    return PatientProtocol


def _allow_connections(count: int) -> None:
    """Raise this process's limit of open files, where it may be raised, to what the connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted: Any = count + 256
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
