"""Tokens of an endpoint's replies, by episode."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("openai")

from trajgym.errors import ConfigError
from trajgym.policies.api import APIPolicy
from trajgym.policies.api_endpoint import Endpoint, Reply
from trajgym.types import Message, Task

TASK = Task("t", "1 + 1?", "2")


@pytest.fixture
def policy() -> Iterator[APIPolicy]:
    made = APIPolicy("m", base_url="http://127.0.0.1:9/v1")
    yield made
    made.close()


def answering(monkeypatch: pytest.MonkeyPatch, *tokens: tuple[int, int] | None) -> None:
    replies = iter(tokens)

    def ask(self: Endpoint, body: Any) -> Future[Reply]:
        future: Future[Reply] = Future()
        future.set_result(Reply("ok", tokens=next(replies)))
        return future

    monkeypatch.setattr(Endpoint, "ask", ask)


def test_turns_add_up_and_episodes_begin_at_nothing(policy: APIPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, (100, 10), (7, 1), (130, 20), (5, 5))
    policy.start(0, [Message("user", "?")], task=TASK, seed=0)
    policy.start(1, [Message("user", "?")], task=TASK, seed=0)
    assert policy.spent == {0: (0, 0), 1: (0, 0)}
    policy.poll()
    policy.observe(0, [Message("user", "Go on.")])
    policy.poll()
    policy.finish(0)
    assert policy.spent == {0: (230, 30), 1: (7, 1)}
    policy.start(0, [Message("user", "?")], task=TASK, seed=0)
    policy.poll()
    assert policy.spent[0] == (5, 5)


def test_one_reply_without_a_count_leaves_the_episode_without(
    policy: APIPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, (100, 10), None, (1, 1))
    policy.start(0, [Message("user", "?")], task=TASK, seed=0)
    for _ in range(2):
        policy.poll()
        policy.observe(0, [Message("user", "Go on.")])
    policy.poll()
    assert policy.spent == {0: None}


def test_a_reply_that_is_none_is_paid_all_the_same(policy: APIPolicy) -> None:
    usage = SimpleNamespace(prompt_tokens=100, completion_tokens=10)
    endpoint = policy._endpoint
    with pytest.raises(ValueError, match="no message"):
        endpoint._read(SimpleNamespace(choices=[], usage=usage))
    assert (policy.usage.prompt_tokens, policy.usage.completion_tokens) == (100, 10)


@pytest.mark.parametrize("usage", [None, SimpleNamespace(prompt_tokens=3), SimpleNamespace(prompt_tokens="3"),
                                   SimpleNamespace(prompt_tokens=-3, completion_tokens=1)])  # fmt: skip
def test_a_count_that_is_none_is_not_counted(policy: APIPolicy, usage: Any) -> None:
    choice = SimpleNamespace(message=SimpleNamespace(content="hi", tool_calls=None), finish_reason="stop")
    reply = policy._endpoint._read(SimpleNamespace(choices=[choice], usage=usage))
    assert (reply.text, reply.tokens, policy.usage.prompt_tokens) == ("hi", None, 0)


@pytest.mark.parametrize("prices", [(1.0,), (-1.0, 2.0), (float("nan"), 1.0), (1.0, float("inf"))])
def test_prices_that_are_none(prices: Any) -> None:
    with pytest.raises(ConfigError, match="prices must be two finite numbers"):
        APIPolicy("m", base_url="http://127.0.0.1:9/v1", prices=prices)
