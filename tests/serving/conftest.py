"""The embedded model behind a server of this process, and clients for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from trajgym.serving.limits import Limits


@dataclass
class Running:
    """A server under way."""

    service: Any
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> Any:
        """The official client."""
        openai = pytest.importorskip("openai")
        return openai.OpenAI(
            base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, "timeout": 60, **options}
        )

    def http(self, **options: Any) -> Any:
        """A plain client."""
        httpx = pytest.importorskip("httpx2")
        return httpx.Client(base_url=self.url, timeout=60, **options)

    def slow_down(self, seconds: float, *, endless: bool = False) -> None:
        """Let each token take so long from now on, and no answer end before its budget."""
        real = type(self.service.engine._sampler).step
        sampler = self.service.engine._sampler
        if endless:
            sampler._rows._stops = sampler._rows._stops[:0]

        def step() -> Any:
            time.sleep(seconds)
            return real(sampler)

        sampler.step = step

    def settled(self, seconds: float = 10.0) -> bool:
        """Whether nothing is written or waits, within some seconds."""
        return until(lambda: not (self.service.engine.load.running or self.service.engine.load.waiting), seconds)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(scope="session")
def tiny() -> tuple[Any, Any]:
    """The embedded model and its tokenizer."""
    from trajgym.trainers.models import load_model

    return load_model("tiny")


@contextlib.contextmanager
def running(model: tuple[Any, Any], *, limits: Limits | None = None, **options: Any) -> Iterator[Running]:
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(package)
    from trajgym.serving.server import make_server
    from trajgym.serving.service import open_service

    settings: dict[str, Any] = {"name": "tiny", "instructions": "signature", **options}
    service = open_service(*model, limits=limits or Limits(slots=8, max_new_tokens=256), **settings)
    server = make_server(service, host="127.0.0.1", port=0, quiet=True)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert until(lambda: server.started)
        yield Running(service, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive()
    assert not service.engine.alive


@pytest.fixture(scope="session")
def server(tiny: tuple[Any, Any]) -> Iterator[Running]:
    """A server that several tests share."""
    from trajgym.serving.service import AgentPlan

    pytest.importorskip("fastapi")
    with running(tiny, agent=AgentPlan("ArithmeticTool-v0")) as found:
        yield found


@pytest.fixture
def start(tiny: tuple[Any, Any]) -> Iterator[Callable[..., Running]]:
    """Starts a server with limits and options of one's own."""
    with contextlib.ExitStack() as stack:
        yield lambda limits=None, **options: stack.enter_context(running(tiny, limits=limits, **options))
