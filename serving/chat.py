"""``/v1/chat/completions``: OpenAI's interface over a model with its own template and its own way to write calls."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trajgym.errors import TrajgymError
from trajgym.serving.dialogue import RemoteTool, call_prefix, dialogue_of, tools_of, written_calls
from trajgym.serving.generation import Answer, Generation
from trajgym.serving.refusals import Refusal, refusal_of
from trajgym.serving.sampler import Sampling, Token
from trajgym.serving.schemas import ChatRequest
from trajgym.serving.service import Service
from trajgym.serving.streaming import Visible, call_marker

__all__ = ["Chat"]


@dataclass(frozen=True)
class _Turn:
    """An assistant turn as the client sees it."""

    content: str | None
    calls: list[dict[str, Any]]
    finish: str


class Chat:
    """One request, under way from the moment it is made.

    Args:
        service: Who answers.
        request: What is asked.

    Raises:
        Refusal: When the request is beyond a limit, or for another model.
        Busy: When there is no room for it.
        ConfigError, TemplateError: When the dialogue cannot be written in the model's form.
    """

    def __init__(self, service: Service, request: ChatRequest) -> None:
        if request.model != service.name:
            raise Refusal(
                404,
                f"There is no model {request.model!r} here; this server has {service.name!r}.",
                "model_not_found",
                param="model",
            )
        count = request.n or 1
        if count > service.limits.max_choices:
            raise Refusal(400, f"n is {count}; at most {service.limits.max_choices}.", "invalid_value", param="n")
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self._service, self._request = service, request
        self._created = int(time.time())
        self._tools: Mapping[str, RemoteTool] = tools_of(request)
        self._prefix = self._required()
        dialogue = dialogue_of(request.messages, self._tools, service.protocol, service.instructions)
        ids = service.prompt(dialogue, behind=self._prefix)
        param = "max_tokens" if request.max_tokens else "max_completion_tokens"
        budget = service.budget(request.budget, len(ids), param=param, default=service.limits.max_new_tokens)
        self._prompt_tokens = len(ids)
        self._generation = Generation(
            service,
            ids,
            max_new_tokens=budget,
            hows=[
                Sampling(
                    temperature=1.0 if request.temperature is None else request.temperature,
                    top_p=1.0 if request.top_p is None else request.top_p,
                    seed=seed,
                    alternatives=request.top_logprobs or 0,
                    watched=bool(request.stream),
                )
                for seed in service.seeds(request.seed, count)
            ],
            stops=request.stops,
        )

    def cancel(self) -> None:
        """Give up what is not written yet."""
        self._generation.cancel()

    async def whole(self) -> dict[str, Any]:
        """Return the response when all answers are there."""
        async with self._service.deadline():
            answers = await self._generation.finished()
        choices = []
        for index, answer in enumerate(answers):
            turn = self._read(index, answer)
            message: dict[str, Any] = {"role": "assistant", "content": turn.content, "refusal": None}
            if turn.calls:
                message["tool_calls"] = turn.calls
            choice = {"index": index, "message": message, "finish_reason": turn.finish}
            choices.append({**choice, "logprobs": self._logprobs(answer.tokens)})
        return {**self._head("chat.completion"), "choices": choices, "usage": self._usage()}

    async def events(self) -> AsyncIterator[str]:
        """Yield the response as server-sent events. A failure in the middle of it is an event, too."""
        visible = [Visible(self._markers()) if self._tools else None for _ in self._generation.answers]
        try:
            for index, shown in enumerate(visible):
                yield self._chunk(index, {"role": "assistant", "content": ""})
                if shown is not None:
                    shown.feed(self._prefix)
            async with self._service.deadline():
                pending: list[list[Token]] = [[] for _ in visible]
                async for piece in self._generation.pieces():
                    index, shown = piece.index, visible[piece.index]
                    pending[index] += piece.tokens
                    text = piece.text if shown is None else shown.feed(piece.text)
                    if text:
                        yield self._chunk(index, {"content": text}, tokens=pending[index])
                        pending[index] = []
                    if piece.finish is not None:
                        for event in self._ending(index, shown, pending[index]):
                            yield event
            options = self._request.stream_options
            if options is not None and options.include_usage:
                yield _event({**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage()})
            yield "data: [DONE]\n\n"
        except (TrajgymError, TimeoutError) as error:
            yield _event(refusal_of(error).body)
        finally:
            self.cancel()

    def _ending(self, index: int, shown: Visible | None, tokens: list[Token]) -> list[str]:
        turn = self._read(index, self._generation.answers[index])
        events = []
        rest = shown.rest(turn.content or "") if shown is not None else ""
        if rest:
            events.append(self._chunk(index, {"content": rest}, tokens=tokens))
            tokens = []
        for number, call in enumerate(turn.calls):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            opening = {**call, "index": number, "function": {"name": name, "arguments": ""}}
            events.append(self._chunk(index, {"tool_calls": [opening]}))
            filling = {"index": number, "function": {"arguments": arguments}}
            events.append(self._chunk(index, {"tool_calls": [filling]}))
        events.append(self._chunk(index, {}, finish=turn.finish, tokens=tokens))
        return events

    def _read(self, index: int, answer: Answer) -> _Turn:
        """Take the calls out of an answer. Where there are none, the content is what the model wrote, unchanged."""
        finish = answer.finish or "stop"
        text = self._prefix + answer.text
        if not self._tools:
            return _Turn(text, [], finish)
        parsed = self._service.protocol.parse(text, self._tools)
        calls = parsed.calls[:1] if self._request.parallel_tool_calls is False else parsed.calls
        if not calls:
            return _Turn(text.strip(), [], finish)
        written = written_calls(calls, f"call_{self.id[-12:]}_{index}_")
        return _Turn(parsed.text or None, written, "tool_calls" if finish == "stop" else finish)

    def _required(self) -> str:
        """Return how the turn has to begin, where the client insists on a call."""
        if not self._tools or self._request.tool_choice in (None, "auto"):
            return ""
        chosen = self._request.chosen_tool
        prefix = call_prefix(self._service.protocol, self._tools, chosen)
        # Up to a line's end the tokens are the model's own; within a line they might not be.
        return prefix if chosen else prefix.partition("\n")[0]

    def _markers(self) -> list[str]:
        return [call_marker(call_prefix(self._service.protocol, self._tools)), "<think>"]

    def _chunk(
        self, index: int, delta: dict[str, Any], *, finish: str | None = None, tokens: Sequence[Token] = ()
    ) -> str:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": self._logprobs(tokens)}
        return _event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._service.name}

    def _usage(self) -> dict[str, Any]:
        written = sum(len(answer.tokens) for answer in self._generation.answers)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self._prompt_tokens + written,
            "prompt_tokens_details": {"cached_tokens": self._generation.reused},
        }

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self._request.logprobs or not tokens:
            return None
        return {
            "content": [
                {
                    **self._written(token.id, token.logprob),
                    "top_logprobs": [self._written(i, logprob) for i, logprob in token.top],
                }
                for token in tokens
            ]
        }

    def _written(self, token: int, logprob: float) -> dict[str, Any]:
        # decode() leaves a stop token out at the end, and here it is all there is.
        text = self._service.renderer.decode([token])
        # JSON knows no infinity; OpenAI's interface writes this for a token that is next to impossible.
        return {"token": text, "bytes": list(text.encode()), "logprob": max(logprob, -9999.0)}


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
