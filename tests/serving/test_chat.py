"""``/v1/chat/completions`` through the official client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from trajgym.serving.limits import Limits

openai = pytest.importorskip("openai")
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Works out an expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
QUESTION = "Mia has 12 apples. She buys 5 more. How many apples does Mia have now?"
USER = [{"role": "user", "content": QUESTION}]


def ask(server: Any, **options: Any) -> Any:
    body: dict[str, Any] = {"model": "tiny", "messages": USER, "temperature": 0, "max_tokens": 60, **options}
    with server.client() as client:
        return client.chat.completions.create(**body)


def gathered(server: Any, **options: Any) -> dict[int, dict[str, Any]]:
    """What a client puts together from a stream, by choice."""
    out: dict[int, dict[str, Any]] = {}
    with server.client() as client:
        body: dict[str, Any] = {"model": "tiny", "messages": USER, "temperature": 0, "max_tokens": 60, **options}
        for chunk in client.chat.completions.create(stream=True, **body):
            for choice in chunk.choices:
                found = out.setdefault(choice.index, {"content": "", "calls": {}, "finish": None, "logprobs": []})
                found["content"] += choice.delta.content or ""
                found["finish"] = choice.finish_reason or found["finish"]
                found["logprobs"] += choice.logprobs.content if choice.logprobs else []
                for call in choice.delta.tool_calls or ():
                    kept = found["calls"].setdefault(call.index, {"id": call.id, "name": "", "arguments": ""})
                    kept["name"] += call.function.name or ""
                    kept["arguments"] += call.function.arguments or ""
    return out


def test_an_answer_excludes_the_prompt_and_is_counted(server: Any) -> None:
    reply = ask(server, temperature=1.0, seed=5)
    (choice,) = reply.choices
    assert QUESTION not in choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.model == "tiny"
    assert reply.usage.prompt_tokens == len(server.service.renderer.prompt(_dialogue()))


def test_calls_come_in_the_clients_form(server: Any) -> None:
    reply = ask(server, tools=[CALCULATOR])
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "calculator"
    assert json.loads(call.function.arguments) == {"expression": "12+5"}
    assert choice.message.content is None


def test_a_dialogue_with_tools_goes_on_to_the_answer(server: Any) -> None:
    """The client runs the tool, as any agent framework does."""
    messages: list[Any] = [{"role": "system", "content": "End with #### and the number."}, *USER]
    first = ask(server, messages=messages, tools=[CALCULATOR])
    call = first.choices[0].message.tool_calls[0]
    messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "17"}]
    second = ask(server, messages=messages, tools=[CALCULATOR])
    assert second.choices[0].message.content == "#### 17"
    assert second.choices[0].message.tool_calls is None
    # The rendered dialogue begins with the very tokens of the turn before, so they are in the cache.
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens


@pytest.mark.parametrize(
    "options", [{}, {"tools": [CALCULATOR]}, {"temperature": 1.0, "seed": 3, "n": 3, "max_tokens": 25}]
)
def test_a_stream_holds_what_the_whole_response_holds(server: Any, options: dict[str, Any]) -> None:
    whole = ask(server, logprobs=True, **options)
    parts = gathered(server, logprobs=True, **options)
    assert len(parts) == len(whole.choices)
    for choice in whole.choices:
        part = parts[choice.index]
        assert part["content"] == (choice.message.content or "")
        assert part["finish"] == choice.finish_reason
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
        assert [(call["name"], call["arguments"]) for call in part["calls"].values()] == calls
        if not calls:
            assert [t.token for t in part["logprobs"]] == [t.token for t in choice.logprobs.content]


def test_a_stream_tells_usage_when_asked(server: Any) -> None:
    with server.client() as client:
        chunks = list(
            client.chat.completions.create(
                model="tiny", messages=USER, max_tokens=5, stream=True, stream_options={"include_usage": True}
            )
        )
    assert chunks[-1].choices == []
    assert 1 <= chunks[-1].usage.completion_tokens <= 5
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "calculator"}}])
def test_a_call_can_be_insisted_on(server: Any, choice: Any) -> None:
    """Even where the model would rather talk: its turn begins with a call."""
    messages = [{"role": "system", "content": "End with #### and the number."}, *USER,
                {"role": "assistant", "content": "12+5 is 17."}, {"role": "user", "content": "And 12+6?"}]  # fmt: skip
    for seed in range(3):
        reply = ask(server, messages=messages, tools=[CALCULATOR], tool_choice=choice, temperature=0.5, seed=seed)
        message = reply.choices[0].message
        assert message.tool_calls or message.content.startswith("<tool_call>")


def test_no_call_where_none_is_wanted(server: Any) -> None:
    reply = ask(server, tools=[CALCULATOR], tool_choice="none")
    assert reply.choices[0].message.tool_calls is None
    assert reply.usage.prompt_tokens == ask(server).usage.prompt_tokens


def test_a_seed_repeats_an_answer_and_choices_differ(server: Any) -> None:
    answers = [[c.message.content for c in ask(server, temperature=1.5, seed=11, n=4).choices] for _ in range(2)]
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 1
    assert len({ask(server, temperature=1.5).choices[0].message.content for _ in range(4)}) > 1


def test_an_answer_ends_before_a_stop_string(server: Any) -> None:
    full = ask(server).choices[0].message.content
    stop = full[4:7]
    for found in (ask(server, stop=stop).choices[0], ask(server, stop=["@@@", stop]).choices[0]):
        assert found.message.content == full.split(stop)[0]
        assert found.finish_reason == "stop"
    assert gathered(server, stop=stop)[0]["content"] == full.split(stop)[0]
    assert server.settled()


def test_a_budget_cuts(server: Any) -> None:
    found = ask(server, max_tokens=2).choices[0]
    assert found.finish_reason == "length"
    assert ask(server, max_tokens=2).usage.completion_tokens == 2


def test_probabilities_are_told(server: Any) -> None:
    content = ask(server, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob, abs=1e-4)  # greedy
        assert token.logprob <= 0


def test_models_are_listed(server: Any) -> None:
    with server.client() as client:
        assert [model.id for model in client.models.list().data] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**9}, "at most"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "at most 8"),
        ({"top_logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 99}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "q"}]}, "role"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\.0\.content: Input should be a valid string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            r"messages\.0\.content\.0\.type: Input should be 'text'",
        ),
        ({"stop": ["x"] * 17}, "stop: List should have at most 16 items"),
        ({"stop": ""}, "stop: String should have at least 1 character"),
        ({"extra_body": {"tool_choice": "sometimes"}}, "tool_choice: Input should be 'none', 'auto' or 'required'"),
        ({"extra_body": {"str": 1}}, "str: Extra inputs are not permitted"),
        ({"messages": [{"role": "user", "content": "x " * 4000}]}, "tokens"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "name"),
        ({"tools": [CALCULATOR, CALCULATOR]}, "different names"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}, "object"),
        ({"tool_choice": "required"}, "needs tools"),
        ({"tools": [CALCULATOR], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "none of tools"),
        ({"frequency_penalty": 0.5}, "frequency_penalty is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
        ({"extra_body": {"best_of": 3}}, "best_of"),
        ({"seed": 2**70}, "seed"),
    ],
)
def test_bad_requests_are_told_what_is_wrong(server: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        ask(server, **options)
    assert caught.value.type == "invalid_request_error"
    assert server.settled()


def test_an_unknown_model_is_not_found(server: Any) -> None:
    with pytest.raises(openai.NotFoundError, match=r"no model 'gpt-9' here; this server has 'tiny'") as caught:
        ask(server, model="gpt-9")
    assert caught.value.code == "model_not_found"


def test_keys_that_ask_for_nothing_are_accepted(server: Any) -> None:
    reply = ask(server, presence_penalty=0, response_format={"type": "text"}, user="u", max_tokens=1, store=False)
    assert reply.choices


def test_what_takes_too_long_is_ended(start: Callable[..., Any]) -> None:
    slow = start(Limits(slots=1, max_new_tokens=900, request_seconds=0.3))
    slow.slow_down(0.02, endless=True)
    with pytest.raises(openai.InternalServerError, match="longer than this server allows") as caught:
        ask(slow, max_tokens=900, temperature=5, messages=[{"role": "user", "content": "go"}])
    assert caught.value.status_code == 504
    with pytest.raises(openai.APIError, match="longer than this server allows"):
        gathered(slow, max_tokens=900, temperature=5, messages=[{"role": "user", "content": "go"}])
    assert slow.settled()


def _dialogue() -> Any:
    from trajgym.types import Message

    return [Message("user", QUESTION)]
