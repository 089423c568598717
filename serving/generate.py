"""``/generate``: one prompt, one answer, and how sure the model was of it."""

from __future__ import annotations

import math
from typing import Any

from trajgym.serving.generation import Generation
from trajgym.serving.sampler import Sampling
from trajgym.serving.schemas import GenerateRequest
from trajgym.serving.service import Service
from trajgym.types import Message

__all__ = ["Generate"]

DEFAULT_NEW_TOKENS = 512


class Generate:
    """One request, under way from the moment it is made. The prompt is a user's message in the chat template.

    Args:
        service: Who answers.
        request: What is asked.

    Raises:
        Refusal: When the request is beyond a limit.
        Busy: When there is no room for it.
        TemplateError: When the chat template refuses the prompt.
    """

    def __init__(self, service: Service, request: GenerateRequest) -> None:
        self._service = service
        system = [Message("system", request.system)] if request.system else []
        ids = service.prompt([*system, Message("user", request.prompt)])
        self._prompt_tokens = len(ids)
        self._generation = Generation(
            service,
            ids,
            max_new_tokens=service.budget(
                request.max_new_tokens, len(ids), param="max_new_tokens", default=DEFAULT_NEW_TOKENS
            ),
            hows=[
                Sampling(
                    temperature=request.temperature if request.do_sample else 0.0,
                    top_p=request.top_p,
                    seed=service.seeds(request.seed, 1)[0],
                )
            ],
            stops=request.stops,
        )

    def cancel(self) -> None:
        """Give up what is not written yet."""
        self._generation.cancel()

    async def whole(self) -> dict[str, Any]:
        """Return the response when the answer is there.

        ``confidence`` is the mean probability of the answer's tokens under the model at temperature 1, whatever the
        sampling temperature was: 1 where it saw no alternative anywhere.
        """
        async with self._service.deadline():
            (answer,) = await self._generation.finished()
        chances = [math.exp(token.logprob) for token in answer.tokens]
        return {
            "text": answer.text,
            "confidence": sum(chances) / len(chances) if chances else None,
            "finish": answer.finish,
            "prompt_tokens": self._prompt_tokens,
            "new_tokens": len(answer.tokens),
            "model": self._service.name,
        }
