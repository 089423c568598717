"""Pictures reach endpoints as pictures, and only those of the environment."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from trajgym.envs.grid import GridEnv
from trajgym.policies.api import APIPolicy
from trajgym.policies.api_messages import text_messages
from trajgym.policies.images import with_images
from trajgym.types import Message

ADDRESS = "data:image/png;base64,iVBORw0KGgo="
PICTURE = f"![grid]({ADDRESS})"
PART = {"type": "image_url", "image_url": {"url": ADDRESS}}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def test_users_pictures_are_parts_in_their_order() -> None:
    content = f"First {PICTURE} then\n{PICTURE}{PICTURE}\nlast"
    (message,) = with_images([{"role": "user", "content": content}])
    assert message == {"role": "user", "content": [text("First"), PART, text("then"), PART, PART, text("last")]}


def test_tools_pictures_follow_behind_the_last_tool_message_of_the_turn() -> None:
    tools = [{"role": "tool", "tool_call_id": f"c{i}", "content": f"{i} {PICTURE}"} for i in range(2)]
    after = {"role": "assistant", "content": "ok"}
    found = with_images([*tools, after, tools[0]])
    assert [m["role"] for m in found] == ["tool", "tool", "user", "assistant", "tool", "user"]
    assert found[0] == {"role": "tool", "tool_call_id": "c0", "content": "0 (picture below)"}
    assert found[2]["content"] == [PART, PART]
    assert found[-1]["content"] == [PART]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": PICTURE},  # its own words
        {"role": "system", "content": PICTURE},
        {"role": "user", "content": "![grid](https://example.org/a.png)"},  # nothing is fetched for anybody
        {"role": "user", "content": "![grid](data:image/svg+xml;base64,AAAA)"},
        {"role": "user", "content": "![grid](data:image/png;base64,<script>)"},
        {"role": "user", "content": ADDRESS},
        {"role": "assistant", "content": None, "tool_calls": []},
    ],
)
def test_everything_else_stays_as_it_is(message: dict[str, Any]) -> None:
    assert with_images([message]) == [message]


@pytest.mark.parametrize("calls", ["text", "native"])
def test_an_endpoint_is_sent_what_the_environment_shows(calls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = GridEnv(difficulty=1)
    _, info = env.reset(seed=0)
    policy = APIPolicy("m", base_url="http://127.0.0.1:9/v1", calls=calls)
    sent: list[Any] = []

    def ask(body: dict[str, Any]) -> Future[Any]:
        sent.append(body["messages"])
        return Future()

    monkeypatch.setattr(policy._endpoint, "ask", ask)
    policy.agree_on_protocol(env.protocol, env.tools)
    policy._ask(info["messages"], 0)
    *_, info = env.step(env.expert(info["task"])[0])
    policy._ask(info["messages"], 0)
    policy.close()
    first, second = ([part for m in messages if isinstance(m["content"], list) for part in m["content"]]
                     for messages in sent)  # fmt: skip
    assert [part["type"] for part in first] == ["text", "image_url"]
    assert sum(part["type"] == "image_url" for part in second) == 2
    assert not any("base64" in m["content"] for messages in sent for m in messages if isinstance(m["content"], str))


def test_a_dialogue_without_pictures_is_the_same_as_before() -> None:
    dialogue = text_messages([Message("system", "a"), Message("user", "b"), Message("tool", "c")], "user")
    assert with_images(dialogue) == dialogue
