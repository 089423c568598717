"""The process around the application, as a user starts it."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trajgym.cli import main

for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package)

Launch = Callable[..., Any]


class Launched:
    """A server in a process of its own."""

    def __init__(self, *options: str, **variables: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "trajgym.cli",
            "serve",
            "tiny",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        self.process = subprocess.Popen(
            [*command, *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        while not any("Uvicorn running" in line for line in self.lines):
            assert self.process.poll() is None, self.lines
            time.sleep(0.05)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def post(self, body: dict[str, Any], **headers: str) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/generate",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **headers},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    def health(self) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=60) as reply:
            return json.load(reply)

    def end(self, sent: int = signal.SIGTERM) -> int:
        self.process.send_signal(sent)
        status = self.process.wait(30)
        self.reader.join()
        return status


@pytest.fixture
def launch() -> Iterator[Launch]:
    started: list[Launched] = []

    def start(*options: str, **variables: str) -> Launched:
        started.append(Launched(*options, **variables))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        each.reader.join()
        assert each.process.stderr is not None
        each.process.stderr.close()


def test_sigterm_lets_answers_finish_and_takes_no_more(launch: Launch) -> None:
    server = launch(TRAJGYM_API_KEY="k")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        server.post({"prompt": "x"})
    replies: list[Any] = []

    def ask(seed: int) -> None:
        body = {"prompt": "go", "max_new_tokens": 800, "temperature": 9, "seed": seed}
        replies.append(server.post(body, Authorization="Bearer k"))

    asking = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in asking:
        thread.start()
    while server.health()["running"] < 6 - len(replies):
        time.sleep(0.01)
    assert len(replies) < 6
    assert server.end() in (0, -signal.SIGTERM)
    for thread in asking:
        thread.join()
    assert len(replies) == 6
    assert sum(reply["new_tokens"] for reply in replies) > 500
    with pytest.raises(urllib.error.URLError):
        server.post({"prompt": "x"})


def test_a_taken_port_is_one_clear_error_and_an_open_server_is_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAJGYM_API_KEY", raising=False)
    before = threading.active_count()
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", "tiny", "--port", port]) == 2
    said = capsys.readouterr().err
    assert "Anybody who reaches 0.0.0.0" in said
    assert f"Cannot listen on 0.0.0.0:{port}" in said
    assert threading.active_count() == before


@pytest.mark.slow
def test_a_thousand_slow_clients_disturb_nobody(launch: Launch) -> None:
    """In a process of its own, whose limit of open files is the usual one when it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        server = launch("--receive-seconds", "20")
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(1000)]
        for number, client in enumerate(clients):
            client.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\n"[: 5 + number % 30])
        times = []
        for _ in range(20):
            began = time.monotonic()
            assert server.post({"prompt": "hello", "max_new_tokens": 4})["new_tokens"]
            times.append(time.monotonic() - began)
            for client in clients[::10]:
                client.sendall(b"a")
        assert sorted(times)[10] < 2
        for client in clients:
            client.close()
        assert server.end() in (0, -signal.SIGTERM)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
