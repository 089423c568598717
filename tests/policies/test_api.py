"""Endpoints as policies: our own server, and servers that misbehave in every way."""

from __future__ import annotations

import contextlib
import email.utils
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from trajgym.envs.make import make
from trajgym.errors import ConfigError
from trajgym.evaluation.evaluate import env_maker, evaluate
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.types import Message, StopReason, Task, Trajectory

pytest.importorskip("openai")
from trajgym.policies.api import APIPolicy, EndpointError

TASK = Task("t", "What is 1 + 2?", "3")
ASK = [Message("user", TASK.question)]
Answer = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


def completion(content: str | None, finish: str = "stop", **message: Any) -> bytes:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    head = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return json.dumps({**head, "choices": [choice], "usage": usage}).encode()


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


class Fake:
    """A server that answers each request with the next of some behaviours, the last one for ever."""

    def __init__(self) -> None:
        self.behaviours: list[Answer] = []
        self.asked: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.most_at_once = self._now = 0
        lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(fake.asked)
                    fake.asked.append(body)
                    fake.times.append(time.monotonic())
                    fake._now += 1
                    fake.most_at_once = max(fake.most_at_once, fake._now)
                try:
                    fake.behaviours[min(number, len(fake.behaviours) - 1)](self, body)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True
                finally:
                    with lock:
                        fake._now -= 1

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def fake() -> Iterator[Fake]:
    server = Fake()
    yield server
    server.close()


@pytest.fixture
def policy(fake: Fake) -> Iterator[Callable[..., APIPolicy]]:
    made = []

    def make_policy(**options: Any) -> APIPolicy:
        made.append(
            APIPolicy("m", **{"base_url": fake.url, "backoff": 0.01, "timeout": 30.0, "attempts": 3, **options})
        )
        return made[-1]

    yield make_policy
    before = threading.active_count()
    for each in made:
        each.close()
        each.close()
    assert threading.active_count() <= before


def reply(content: str | None, **options: Any) -> Answer:
    return lambda handler, _: send(handler, completion(content, **options))


def status(code: int, **headers: str) -> Answer:
    body = json.dumps({"error": {"message": "no", "code": "c"}}).encode()
    return lambda handler, _: send(handler, body, code, **headers)


def garbage(body: bytes, **headers: str) -> Answer:
    return lambda handler, _: send(handler, body, **headers)


def hangs(handler: BaseHTTPRequestHandler, _: Any) -> None:
    """Says nothing until the client has gone."""
    with contextlib.suppress(ConnectionError):
        handler.connection.recv(1)
    handler.close_connection = True


def dribbles(handler: BaseHTTPRequestHandler, _: Any) -> None:
    """Sends a byte now and then, so that no single read ever times out."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    with contextlib.suppress(ConnectionError):
        while True:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)
    handler.close_connection = True


def half(handler: BaseHTTPRequestHandler, _: Any) -> None:
    body = completion("#### 3")
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[: len(body) // 2])
    handler.close_connection = True


def drops(handler: BaseHTTPRequestHandler, _: Any) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


BROKEN = {
    "hangs": hangs,
    "dribbles": dribbles,
    "half": half,
    "drops": drops,
    "no json": garbage(b"<html>busy</html>"),
    "half json": garbage(completion("#### 3")[:-20]),
    "other json": garbage(b'{"choices": []}'),
    "a list": garbage(b"[1, 2]"),
    "null": garbage(b"null"),
    "no message": garbage(b'{"choices": [{"index": 0}]}'),
    "number": garbage(completion("x").replace(b'"x"', b"7")),
    "html": garbage(b"<html>busy</html>", Content_Type="text/html"),
    "nothing": garbage(b""),
    "408": status(408),
    "429": status(429),
    "500": status(500),
    "503": status(503, Retry_After="0"),
    "529": status(529),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_may_pass_is_tried_again(fake: Fake, policy: Callable[..., APIPolicy], kind: str) -> None:
    fake.behaviours = [BROKEN[kind], reply("#### 3")]
    own = policy(timeout=3.0) if kind in ("hangs", "dribbles") else policy()  # and a whole reply is in time
    assert own.act(ASK, TASK) == "#### 3"
    assert (own.usage.requests, own.usage.retries, own.usage.outages) == (1, 1, 0)


@pytest.mark.parametrize("kind", ["hangs", "half json", "429", "500", "drops"])
def test_what_does_not_pass_is_an_outage(fake: Fake, policy: Callable[..., APIPolicy], kind: str) -> None:
    fake.behaviours = [BROKEN[kind]]
    own = policy(timeout=1.0) if kind == "hangs" else policy()
    with pytest.raises(EndpointError, match="no reply in 3 attempts"):
        own.act(ASK, TASK)
    assert len(fake.asked) == 3
    assert (own.usage.requests, own.usage.outages) == (0, 1)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422])
def test_what_will_not_pass_is_the_callers_error(fake: Fake, policy: Callable[..., APIPolicy], code: int) -> None:
    fake.behaviours = [status(code)]
    with pytest.raises(ConfigError, match=rf"refuses the request \({code}\)"):
        policy().act(ASK, TASK)
    assert len(fake.asked) == 1


def test_an_unreachable_endpoint_is_an_outage() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
    own = APIPolicy("m", base_url=url, attempts=2, backoff=0.01)
    try:
        with pytest.raises(EndpointError, match="2 attempts"):
            own.act(ASK, TASK)
    finally:
        own.close()


def test_the_endpoint_says_how_long_to_wait(fake: Fake, policy: Callable[..., APIPolicy]) -> None:
    date = email.utils.formatdate(time.time() + 2, usegmt=True)
    fake.behaviours = [status(429, Retry_After="0.3"), status(503, Retry_After=date), reply("ok")]
    assert policy().act(ASK, TASK) == "ok"
    first, second, third = fake.times
    assert second - first >= 0.3
    assert 0.5 < third - second < 4


def test_pauses_grow_and_vary(fake: Fake, policy: Callable[..., APIPolicy]) -> None:
    fake.behaviours = [status(500)]
    own = policy(attempts=4, backoff=0.1)
    with pytest.raises(EndpointError):
        own.act(ASK, TASK)
    gaps = [b - a for a, b in zip(fake.times, fake.times[1:], strict=False)]
    for gap, base in zip(gaps, (0.1, 0.2, 0.4), strict=True):
        assert 0.5 * base <= gap < 1.5 * base + 0.3


def test_a_lost_request_loses_its_one_trajectory(fake: Fake, policy: Callable[..., APIPolicy]) -> None:
    """It is invalid, not a failure that anybody scores; the others are played."""

    def answer(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        bad = "17" in body["messages"][-1]["content"]
        status(500)(handler, body) if bad else reply("#### 3")(handler, body)

    fake.behaviours = [answer]
    own = policy(attempts=2)
    tasks = [Task(str(n), f"What is {n} + 0?", str(n)) for n in (3, 17, 3, 4)]
    played = play(own, tasks)
    assert [trajectory.valid for trajectory in played] == [True, False, True, True]
    assert [trajectory.total_reward > 0 for trajectory in played] == [True, False, True, False]
    assert own.usage.outages == 1
    assert (played[1].fault or "").startswith("EndpointError: ")
    assert "500" in (played[1].fault or "")


def test_an_endpoint_that_is_gone_ends_the_run(fake: Fake, policy: Callable[..., APIPolicy]) -> None:
    fake.behaviours = [status(500)]
    tasks = [Task(str(n), "?", "1") for n in range(12)]
    with pytest.raises(EndpointError):
        play(policy(attempts=1, concurrency=1), tasks)
    assert len(fake.asked) == 3


def test_cut_replies_are_cut_turns(fake: Fake, policy: Callable[..., APIPolicy]) -> None:
    fake.behaviours = [reply("#### 3", finish="length")]
    (played,) = play(policy(), [TASK])
    assert played.stop_reason is StopReason.TURN_TOKENS
    assert played.total_reward == 0


def test_a_dialogue_that_is_too_long_is_a_budget_not_an_error(fake: Fake, policy: Callable[..., APIPolicy]) -> None:
    error = {"message": "This model's maximum context length is 100 tokens.", "code": "context_length_exceeded"}
    fake.behaviours = [lambda handler, _: send(handler, json.dumps({"error": error}).encode(), 400)]
    (played,) = play(policy(), [TASK])
    assert played.stop_reason is StopReason.EPISODE_TOKENS


def test_an_empty_reply_is_a_turn(fake: Fake, policy: Callable[..., APIPolicy]) -> None:
    fake.behaviours = [reply(None)]
    (played,) = play(policy(), [TASK])
    assert played.valid
    assert played.total_reward == 0


def test_native_calls_run_the_environments_tools(fake: Fake, policy: Callable[..., APIPolicy]) -> None:
    call = {"id": "abc", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "1+2"}'}}
    broken = {"id": "x", "type": "function", "function": {"name": "calculator", "arguments": "{"}}
    fake.behaviours = [
        reply("Let me see.", tool_calls=[call], finish="tool_calls"),
        reply(None, tool_calls=[broken], finish="tool_calls"),
        reply("#### 3"),
    ]
    (played,) = play(policy(calls="native"), [TASK])
    assert played.steps[0].results[0].content == "3"
    assert played.steps[1].error is not None or played.steps[1].results[0].error
    assert played.total_reward > 0
    first, second, third = fake.asked
    assert first["tools"][0]["function"]["name"] == "calculator"
    assert "calculator" not in first["messages"][0]["content"]
    assert [message["role"] for message in second["messages"]][-2:] == ["assistant", "tool"]
    assert second["messages"][-1]["tool_call_id"] == second["messages"][-2]["tool_calls"][0]["id"]
    assert len(third["messages"]) == 6


def test_native_calls_need_the_tools(fake: Fake, policy: Callable[..., APIPolicy]) -> None:
    with pytest.raises(ConfigError, match="agree_on_protocol"):
        policy(calls="native").act(ASK, TASK)


def test_requests_carry_the_options(fake: Fake, policy: Callable[..., APIPolicy]) -> None:
    fake.behaviours = [reply("a")]
    own = policy(temperature=0.3, max_turn_tokens=77, extra={"top_p": 0.9})
    for seed in (1, 1, 2):
        own.act(ASK, TASK, seed)
    own.act([*ASK, Message("assistant", "a")], TASK, 1)
    assert {(b["temperature"], b["max_tokens"], b["top_p"], b["model"]) for b in fake.asked} == {(0.3, 77, 0.9, "m")}
    seeds = [body["seed"] for body in fake.asked]
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert "seed" not in _last(policy(seeded=False), fake)


def test_requests_go_out_together_but_not_too_many(fake: Fake, policy: Callable[..., APIPolicy]) -> None:
    def slow(handler: BaseHTTPRequestHandler, body: Any) -> None:
        time.sleep(0.05)
        reply("#### 3")(handler, body)

    fake.behaviours = [slow]
    play(policy(concurrency=5, timeout=10), [Task(str(n), "?", "3") for n in range(20)])
    assert 2 <= fake.most_at_once <= 5


def test_costs_are_counted(fake: Fake, policy: Callable[..., APIPolicy]) -> None:
    fake.behaviours = [reply("a")]
    own = policy(prices=(3.0, 15.0))
    for _ in range(4):
        own.act(ASK, TASK)
    assert (own.usage.prompt_tokens, own.usage.completion_tokens) == (400, 40)
    assert own.cost == pytest.approx(400 * 3e-6 + 40 * 15e-6)
    assert policy().cost is None


def test_an_abandoned_episode_closes_its_connection(fake: Fake, policy: Callable[..., APIPolicy]) -> None:
    fake.behaviours = [hangs]
    own = policy(timeout=30)
    own.start(0, ASK, task=TASK, seed=0)
    assert own.poll() == []
    began = time.monotonic()
    assert own.finish(0) == ()
    own.close()
    assert time.monotonic() - began < 25, "it did not wait for a reply"
    with pytest.raises(EndpointError, match="closed"):
        own.act(ASK, TASK)


@pytest.mark.parametrize(
    "options",
    [{"calls": "magic"}, {"tool_role": "x"}, {"base_url": "nowhere"}, {"base_url": ""}, {"temperature": -1},
     {"timeout": 0}, {"attempts": 0}, {"concurrency": True}, {"max_turn_tokens": 0}, {"backoff": float("nan")}],
)  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigError):
        APIPolicy("m", **{"base_url": "http://127.0.0.1:1/v1", **options})


def play(policy: APIPolicy, tasks: list[Task]) -> list[Trajectory]:
    make_env = env_maker(policy, "ArithmeticTool-v0")
    with EnvPool(make_env, threads=4) as pool:
        return collect(policy, pool, [Episode(0, n, task) for n, task in enumerate(tasks)])


def _last(policy: APIPolicy, fake: Fake) -> dict[str, Any]:
    policy.act(ASK, TASK)
    return fake.asked[-1]


@pytest.mark.parametrize("options", [{"tool_role": "tool"}, {"calls": "native"}])
def test_a_served_model_plays_as_it_does_at_home(options: dict[str, Any]) -> None:
    """Greedy, the embedded model says the very same behind an address as in this process."""
    pytest.importorskip("fastapi")
    from trajgym.serving.server import make_server
    from trajgym.serving.service import open_service
    from trajgym.trainers.config import GRPOConfig
    from trajgym.trainers.models import load_model, make_policy

    model, tokenizer = load_model("tiny")
    env: Any = make("ArithmeticTool-v0", split="test").unwrapped
    tasks = [env.reset(seed=n)[1]["task"] for n in range(8)]
    config = GRPOConfig(updates=1, model="tiny", env="ArithmeticTool-v0", max_turn_tokens=64, max_episode_tokens=1024)
    home = make_policy(model, tokenizer, config.model_copy(update={"temperature": 0.0}))
    expected = evaluate(home, env_maker(home, "ArithmeticTool-v0"), tasks)
    service = open_service(model, tokenizer, name="tiny", instructions="signature")
    server = make_server(service, host="127.0.0.1", port=0, quiet=True)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    policy = APIPolicy("tiny", base_url=url, max_turn_tokens=64, **options)
    try:
        found = evaluate(policy, env_maker(policy, "ArithmeticTool-v0"), tasks)
    finally:
        policy.close()
        server.should_exit = True
        thread.join(30)
    for here, there in zip(expected.trajectories, found.trajectories, strict=True):
        assert [step.action.text for step in there.steps] == [step.action.text for step in here.steps]
    assert found.success == expected.success
