"""A vLLM server as a token engine: tokens go in and come out over HTTP, and its weights follow training.

Written for the endpoints of ``vllm serve`` 0.32; vLLM itself need not be installed on this side.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trajgym.errors import ConfigError
from trajgym.policies.base import SampledTurn
from trajgym.policies.turns import Order, TurnSampler
from trajgym.policies.vllm import check_temperature
from trajgym.policies.vllm_client import Client, Refused, ServerError
from trajgym.policies.vllm_options import ServerOptions
from trajgym.policies.vllm_weights import adapters, check_agreement, checkpoint_weights

__all__ = ["VLLMServerSampler"]

_LOOK_UP = 0.05  # seconds for which one step waits for replies
_OUTAGES = 3  # requests in a row without a reply after which it is no use to go on
_NO_NUMBER = -9999.0  # what the server writes for a log-probability that JSON cannot hold
_SAMPLE = 'Tokens: <tool_call>{"x": 1.5}</tool_call> naïve\n\t 東京 48 + 24 = 72'  # told apart by most tokenizers
_ADVICE = "Does the server serve the model that the trainer has read, from the same checkpoint?"


class VLLMServerSampler(TurnSampler):
    """Samples with a vLLM server.

    A request that stays without a reply loses its one turn; several in a row raise. The distribution is whole, whatever
    sampling options the server takes from the model by itself.

    Args:
        options: Address, names, folder and patience.
        slots: How many streams may be open, and requests under way, at once.
        max_length: Most tokens of a stream.
        stop_ids: Tokens that end a turn.
        vocabulary: Number of the model's token ids.
        temperature: Divides the logits; 0 takes the most probable token and reports its log-probability at 1.
        encode: Writes a text as tokens without special ones, to be compared with the server's tokenizer.

    Attributes:
        gap: Distance of the server from the trainer after the last update of weights, in nats per token.

    Raises:
        ConfigError: When an argument is out of range, or the server has another model or tokenizer.
        ServerError: When it cannot be reached.
    """

    def __init__(
        self,
        options: ServerOptions,
        *,
        slots: int,
        max_length: int,
        stop_ids: Iterable[int],
        vocabulary: int,
        temperature: float = 1.0,
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        check_temperature(temperature)
        super().__init__(
            slots=slots, max_length=max_length, stop_ids=stop_ids, temperature=temperature, vocabulary=vocabulary
        )
        self.gap = math.nan
        self._folder = options.folder
        self._client = Client(
            options.url,
            key=os.environ.get("VLLM_API_KEY", ""),  # as the server itself; an option would end up in run folders
            timeout=options.timeout,
            attempts=options.attempts,
            backoff=options.backoff,
        )
        self._base = self._model = self._named(options.model)
        self._run, self._version = uuid.uuid4().hex[:8], 0  # of weights; names that no other run has used
        self._place: Path | None = None  # where they are
        self._tickets: dict[int, int] = {}  # of streams
        self._lost = 0  # requests in a row without a reply
        if encode is not None:
            self._compare(encode)

    def step(self) -> list[SampledTurn]:
        """Return the turns that have come, after waiting a little for the first one.

        Raises:
            ConfigError: When the server refuses a request for good.
            ServerError: When it has been out of order for several requests in a row.
        """
        if not self._tickets:
            return []
        streams = {ticket: stream for stream, ticket in self._tickets.items()}
        turns = []
        for answer in self._client.answers(_LOOK_UP):
            stream = streams[answer.ticket]
            del self._tickets[stream]
            if answer.error is None:
                self._lost = 0
                turns.append(self._written(stream, *answer.value))
                continue
            if not isinstance(answer.error, ServerError):
                raise answer.error
            self._lost += 1
            if self._lost >= _OUTAGES:
                raise answer.error
            turns.append(self._lose(stream, answer.error))
        return turns

    def update_weights(self, model: Any) -> None:
        """Sample with these weights from now on.

        Adapters are written to the folder and loaded as an adapter of a new name; other weights are written there as a
        checkpoint, which the server reads over its own.

        Args:
            model: Of the architecture that the server has.

        Raises:
            ConfigError: When there is no folder, the server does not take weights while it runs, or its
                log-probabilities are not the model's then.
            EpisodeError: When a stream is open.
            ServerError: When it does not answer.
        """
        self._between_rollouts()
        if self._folder is None:
            raise ConfigError(
                "sampler_options needs folder, a path that the trainer and the vLLM server both see, since the weights "
                "go to the server through it. Without it the server would sample with the weights that it began with."
            )
        self._version += 1
        name = f"trajgym-{self._run}-{self._version}"
        place = self._folder.expanduser().resolve() / name
        place.mkdir(parents=True)
        try:
            if adapters(model):
                self._load_adapter(model, name, place)
            else:
                self._load_weights(model, place)
            self.gap = check_agreement(
                self, model, temperature=self._limits.temperature, vocabulary=self._limits.vocabulary, advice=_ADVICE
            )
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
        self._place = place  # the server may read an adapter again

    def _load_adapter(self, model: Any, name: str, place: Path) -> None:
        model.save_pretrained(place, save_embedding_layers=False)
        try:
            self._client.call("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(place)})
        except Refused as error:
            raise ConfigError(
                f"{error} For adapters that follow training, start the server with --enable-lora, a --max-lora-rank of "
                "at least lora_rank, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment."
            ) from error
        before, self._model = self._model, name
        if before != self._base:
            with contextlib.suppress(Refused, ServerError):  # it may have started anew; the next run does not need it
                self._client.call("/v1/unload_lora_adapter", {"lora_name": before})

    def _load_weights(self, model: Any, place: Path) -> None:
        from safetensors.torch import save_file

        weights = {key: value.to("cpu", copy=True).contiguous() for key, value in checkpoint_weights(model)}
        save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
        try:
            self._client.call("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(place)}})
            self._client.call("/reset_prefix_cache", {})
        except Refused as error:
            raise ConfigError(
                f"{error} For weights that follow training, start the server with VLLM_SERVER_DEV_MODE=1 in its "
                "environment, reachable by nobody else; or train adapters (use_lora: true), which need no such mode."
            ) from error

    def _ask(self, order: Order) -> None:
        body = {
            "model": self._model,
            "prompt": list(order.ids),
            "max_tokens": order.max_new_tokens,
            "temperature": self._limits.temperature,
            "seed": order.seed,
            "stop_token_ids": sorted(self._stop_ids),
            "ignore_eos": True,  # what ends a turn stands above
            "logprobs": 0,  # of the sampled token alone
            "return_token_ids": True,
            "skip_special_tokens": False,
            # The server would take these from the model's generation_config.json.
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "cache_salt": f"{self._run}-{self._version}",  # what was cached under other weights is not found
        }
        self._tickets[order.stream] = self._client.ask("/v1/completions", body, partial(_read, order))

    def _drop(self, streams: Sequence[int]) -> None:
        for stream in streams:
            ticket = self._tickets.pop(stream, None)
            if ticket is not None:  # otherwise its answer was what the rollout ended with
                self._client.give_up(ticket)

    def _named(self, name: str | None) -> str:
        """Return what the server calls the model, after a look at what it has."""
        try:
            listed = {entry["id"]: entry for entry in self._client.call("/v1/models")["data"]}
        except ServerError as error:
            raise ServerError(f"{error} Is a vLLM server running there? See sampler_options url.") from error
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{self._client.url} lists no models, so it is no vLLM server.") from error
        bases = [known for known, entry in listed.items() if entry.get("parent") is None]
        if name is None and len(bases) != 1:
            raise ConfigError(f"{self._client.url} serves {', '.join(bases)}: choose one, sampler_options model.")
        chosen = bases[0] if name is None else name
        if chosen not in listed:
            raise ConfigError(f"{self._client.url} does not serve {chosen!r}. It serves: {', '.join(listed)}.")
        longest = listed[chosen].get("max_model_len")
        if isinstance(longest, int) and longest < self.max_length:
            raise ConfigError(
                f"{self._client.url} takes at most {longest} tokens, but an episode may have {self.max_length}. Start "
                "it with a larger --max-model-len, or lower max_episode_tokens."
            )
        return chosen

    def _compare(self, encode: Callable[[str], Sequence[int]]) -> None:
        body = {"model": self._base, "prompt": _SAMPLE, "add_special_tokens": False}
        try:
            theirs = self._client.call("/tokenize", body)["tokens"]
        except Refused as error:
            if error.status == 404:
                return  # it was started without its tokenizer; other weights would still be noticed
            raise
        ours = list(encode(_SAMPLE))
        if theirs != ours:
            first = next(k for k in range(len(ours) + 1) if theirs[k : k + 1] != ours[k : k + 1])
            raise ConfigError(
                f"{self._client.url} has another tokenizer than the trainer: from token {first} on it writes "
                f"{theirs[first : first + 3]} where the trainer's writes {ours[first : first + 3]}. Serve the model "
                "that is trained."
            )


def _read(order: Order, reply: Any) -> tuple[list[int], list[float], int | None]:
    """Take tokens, log-probabilities and the number of cached tokens out of a reply.

    Raises:
        ValueError: When it is none to this order.
    """
    choice = reply["choices"][0]
    ids, numbers = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    if choice.get("finish_reason") not in ("stop", "length") or len(ids) != len(numbers) or not ids:
        raise ValueError(f"no whole turn: {len(ids)} tokens, finish_reason {choice.get('finish_reason')!r}")
    given = choice.get("prompt_token_ids")
    if given is not None and given != list(order.ids):
        raise ValueError(f"the server has read {len(given)} tokens of the {len(order.ids)} that it was given")
    logprobs = [math.nan if number is None or number <= _NO_NUMBER else float(number) for number in numbers]
    details = (reply.get("usage") or {}).get("prompt_tokens_details") or {}
    return ids, logprobs, details.get("cached_tokens")
