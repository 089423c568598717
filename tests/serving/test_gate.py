"""Bodies that are too large, too slow or no JSON; keys; clients that hang up. Nobody else notices."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trajgym.serving.limits import Limits

Start = Callable[..., Any]
BODY = json.dumps({"prompt": "hello", "max_new_tokens": 3, "seed": 1}).encode()


def head(path: str = "/generate", length: int = len(BODY), **headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", "Content-Type: application/json"]
    return "\r\n".join([*lines, *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items()), "", ""]).encode()


def talk(server: Any, *parts: bytes, pause: float = 0.0) -> bytes:
    """Send raw bytes and return all that comes back."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
        except (BrokenPipeError, ConnectionResetError):
            pass
        out = b""
        try:
            while chunk := connection.recv(65536):
                out += chunk
        except ConnectionResetError:
            pass
        return out


def works(server: Any) -> bool:
    with server.http() as client:
        return bool(client.post("/generate", content=BODY, headers={"Content-Type": "application/json"}).is_success)


@pytest.fixture(scope="module")
def strict(tiny: tuple[Any, Any]) -> Iterator[Any]:
    """A server with little patience and a key."""
    pytest.importorskip("fastapi")
    from trajgym.serving.server import make_server
    from trajgym.serving.service import open_service

    limits = Limits(slots=2, queue=4, max_body_bytes=4096, receive_seconds=0.5)
    service = open_service(*tiny, name="tiny", limits=limits, api_key="s3cret-ключ")
    server = make_server(service, host="127.0.0.1", port=0, quiet=True)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)

    class Strict:
        port = server.servers[0].sockets[0].getsockname()[1]

    yield Strict
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", "Basic s3cret-ключ", "s3cret-ключ", "Bearer s3cret-ключ2"]
)
def test_a_wrong_key_is_turned_away(strict: Any, given: str) -> None:
    for path in ("/generate", "/v1/chat/completions", "/metrics", "/agent", "/docs"):
        header = head(path).replace(b"Host", f"Authorization: {given}\r\nHost".encode()) if given else head(path)
        reply = talk(strict, header, BODY)
        assert reply.startswith(b"HTTP/1.1 401"), reply
        assert b"authentication_error" in reply


def test_the_right_key_opens(strict: Any) -> None:
    header = head(Connection="close").replace(b"Host", "Authorization: bearer s3cret-ключ\r\nHost".encode())
    assert talk(strict, header, BODY).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_health_needs_no_key(strict: Any, method: bytes) -> None:
    reply = talk(strict, method + b" /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 200")


def test_a_body_of_10_mb_is_refused(server: Any) -> None:
    body = json.dumps({"prompt": "x" * 10_000_000})
    with server.http() as client:
        reply = client.post("/generate", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "body_too_large"
    assert works(server)


def test_an_endless_body_is_refused(server: Any) -> None:
    """Without an announced length, in chunks that never end."""
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    header = head().replace(f"Content-Length: {len(BODY)}".encode(), b"Transfer-Encoding: chunked")
    assert talk(server, header, *([chunk] * 400)).startswith((b"HTTP/1.1 413", b""))
    assert works(server)


def test_an_announced_giant_is_refused_at_once(server: Any) -> None:
    assert talk(server, head(length=10**12)).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "body",
    [b"{broken", b"", b"[]", b'"text"', b"null", b"\xff\xfe", b'{"prompt": "x", "seed": NaN}', b'{"prompt": "\\ud800"}',
     b"[" * 5000, b'{"a":' * 5000, b'{"prompt": "x", "max_new_tokens": 1e999}'],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/agent"])
def test_broken_json_is_refused(server: Any, path: str, body: bytes) -> None:
    with server.http() as client:
        reply = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400 or (body == b'{"prompt": "\\ud800"}' and reply.status_code in (200, 400))
    if reply.status_code == 400:
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert reply.json()["error"]["code"] in ("invalid_json", "invalid_value")


def test_a_body_that_is_not_announced_as_json_is_refused_with_the_reason(server: Any) -> None:
    """A page in somebody's browser could send one to a server on their machine."""
    with server.http() as client:
        reply = client.post("/generate", content=BODY, headers={"Content-Type": "text/plain"})
    assert reply.status_code == 400
    assert "Content-Type: application/json" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "request_line", [b"GARBAGE\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\r\n" * 99]
)
def test_what_is_no_http_disturbs_nobody(strict: Any, request_line: bytes) -> None:
    reply = talk(strict, request_line)
    assert reply == b"" or reply.startswith(b"HTTP/1.1 400")


def test_a_slow_body_is_given_up(strict: Any) -> None:
    key = "Authorization: Bearer s3cret-ключ\r\nHost".encode()
    reply = talk(strict, head(length=1000).replace(b"Host", key), *([b"x"] * 8), pause=0.1)
    assert reply.startswith(b"HTTP/1.1 408")


def test_slow_headers_are_given_up(strict: Any) -> None:
    assert talk(strict, b"POST /generate HTTP/1.1\r\n", *([b"X-A: b\r\n"] * 12), pause=0.1) == b""


def test_unknown_paths_and_methods(server: Any) -> None:
    with server.http() as client:
        assert client.get("/nothing").json()["error"]["code"] == "not_found"
        assert client.get("/generate").status_code == 405
        assert client.post("/health").status_code == 405


def test_hundreds_of_slow_clients_disturb_nobody(start: Start) -> None:
    """300 connections that send half a request and then nothing, and 100 that send nothing at all."""
    server = start(Limits(slots=4, receive_seconds=2.0))
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(400)]
    try:
        for number, connection in enumerate(slow[:300]):
            connection.sendall(head()[:20] if number % 2 else head(length=500) + b'{"prompt": ')
        assert all(works(server) for _ in range(5))
        for connection in slow:
            connection.settimeout(20)
            while connection.recv(4096):
                pass
    finally:
        for connection in slow:
            connection.close()
    assert server.settled()
    assert works(server)


def test_connections_are_limited(start: Start) -> None:
    server = start(Limits(slots=2, max_connections=5, receive_seconds=1.0))
    many = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    for connection in many:
        connection.settimeout(10)
        assert connection.recv(1) == b"" if connection in many[:5] else True
    for connection in many:
        connection.close()
    assert works(server)


def test_the_queue_is_bounded_and_says_when_to_come_back(start: Start) -> None:
    server = start(Limits(slots=1, queue=2, max_new_tokens=900))
    server.slow_down(0.02, endless=True)
    body = {"prompt": "go", "max_new_tokens": 40, "temperature": 5}
    replies: list[Any] = []

    def ask(seed: int) -> None:
        with server.http() as client:
            replies.append(client.post("/generate", json={**body, "seed": seed}))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = sorted(reply.status_code for reply in replies)
    assert statuses == [200] * 3 + [429] * 5
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies if reply.status_code == 429)


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "stream"])
def test_a_client_that_hangs_up_frees_its_slot(start: Start, path: str) -> None:
    server = start(Limits(slots=1, queue=1, max_new_tokens=900))
    server.slow_down(0.02, endless=True)
    if path == "/generate":
        body: dict[str, Any] = {"prompt": "go", "max_new_tokens": 900, "temperature": 9}
    else:
        messages = [{"role": "user", "content": "go"}]
        body = {"model": "tiny", "messages": messages, "temperature": 9, "stream": path == "stream"}
    text = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(head("/v1/chat/completions" if path == "stream" else path, len(text)) + text)
    while server.service.engine.load.running == 0:
        time.sleep(0.01)
    connection.close()
    assert server.settled(3)
    assert works(server)


def test_metrics_count_requests_and_tokens(start: Start) -> None:
    server = start()
    with server.http() as client:
        client.post("/generate", json={"prompt": "hello", "max_new_tokens": 3})
        client.post("/generate", json={"prompt": ""})
        for number in range(20):
            client.get(f"/made/up/{number}")
        text = client.get("/metrics").text
    assert 'trajgym_requests_total{path="/generate",status="200"} 1.0' in text
    assert 'trajgym_requests_total{path="/generate",status="400"} 1.0' in text
    assert 'trajgym_requests_total{path="other",status="404"} 20.0' in text
    assert "trajgym_sequences_total 1.0" in text
    assert "trajgym_slots 8.0" in text
    assert "made" not in text
