"""From an engine's thread to a client: answers to one prompt, whole or piece by piece."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from trajgym.errors import TrajgymError
from trajgym.serving.engine import Finished, Order, Ticket
from trajgym.serving.sampler import Sampling, Token
from trajgym.serving.service import Service
from trajgym.serving.text import TextStream

__all__ = ["Answer", "Generation", "Piece"]


@dataclass(frozen=True)
class Piece:
    """What is new of one answer.

    Args:
        index: Which answer.
        text: New text, maybe none.
        tokens: New tokens.
        finish: ``"stop"`` or ``"length"`` in the last piece.
    """

    index: int
    text: str
    tokens: tuple[Token, ...] = ()
    finish: str | None = None


@dataclass
class Answer:
    """An answer as far as it has come."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    finish: str | None = None


class Generation:
    """Several answers to one prompt, under way.

    Args:
        service: Who answers.
        ids: Prompt token ids.
        max_new_tokens: Most new tokens of each answer.
        hows: How each answer is drawn.
        stops: Strings before which an answer ends.

    Attributes:
        answers: What was written so far.
        reused: Prompt tokens that were in the cache already.

    Raises:
        Busy: When there is no room for them.
    """

    def __init__(
        self,
        service: Service,
        ids: Sequence[int],
        *,
        max_new_tokens: int,
        hows: Sequence[Sampling],
        stops: Sequence[str] = (),
    ) -> None:
        self.answers = [Answer() for _ in hows]
        self.reused = 0
        self._service = service
        self._streams = [TextStream(service.renderer.decode, stops) for _ in hows]
        loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[tuple[int, Token | Finished | TrajgymError]] = asyncio.Queue()
        hows = [dataclasses.replace(how, watched=how.watched or bool(stops) or bool(how.alternatives)) for how in hows]
        self._watched = [how.watched for how in hows]

        def deliver(index: int, what: Token | Finished | TrajgymError) -> None:
            loop.call_soon_threadsafe(self._news.put_nowait, (index, what))

        self._tickets: list[Ticket] = service.engine.submit(
            [Order(tuple(ids), max_new_tokens, how) for how in hows],
            [lambda what, index=index: deliver(index, what) for index in range(len(hows))],  # type: ignore[misc]
        )

    def cancel(self) -> None:
        """Give up what is not written yet."""
        self._service.engine.cancel(self._tickets)

    async def finished(self) -> list[Answer]:
        """Wait for the ends of all answers.

        Raises:
            EngineFault: When the model failed.
        """
        async for _ in self.pieces():
            pass
        return self.answers

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield what is new, of whichever answer, until all are finished.

        Raises:
            EngineFault: When the model failed.
        """
        left = len(self.answers)
        while left:
            index, what = await self._news.get()
            answer = self.answers[index]
            if answer.finish is not None:
                continue  # it had ended by a stop string, and the engine wrote on for a moment
            if isinstance(what, TrajgymError):
                raise what
            piece = self._token(index, what) if isinstance(what, Token) else self._end(index, what)
            answer.text += piece.text
            answer.tokens += piece.tokens
            answer.finish = piece.finish
            left -= piece.finish is not None
            yield piece

    def _token(self, index: int, token: Token) -> Piece:
        stream = self._streams[index]
        text = "" if token.id in self._service.renderer.stop_ids else stream.feed(token.id)
        if stream.stopped:
            self._service.engine.cancel([self._tickets[index]])
        return Piece(index, text, (token,), "stop" if stream.stopped else None)

    def _end(self, index: int, end: Finished) -> Piece:
        self.reused = max(self.reused, end.reused)
        if self._watched[index]:
            return Piece(index, self._streams[index].end(), (), end.finish)
        tokens = tuple(Token(0, i, p) for i, p in zip(end.ids, end.logprobs, strict=True))
        return Piece(index, self._service.renderer.decode(end.ids), tokens, end.finish)
