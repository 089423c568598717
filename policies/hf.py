"""A token engine on any transformers decoder whose key/value cache lives as long as the episode.

Every token of a stream goes through the model once: the prompt and each observation in batches over streams,
sampled tokens one at a time for all generating streams together. A stream that waits for its environment keeps its
row and is not computed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trajgym.errors import ConfigError, TrainingError
from trajgym.policies.base import SampledTurn, Sampler
from trajgym.policies.decode import find_decoder
from trajgym.policies.draws import int64
from trajgym.policies.kv import Pass, RowCache
from trajgym.policies.limits import Counters, Limits, at_least_one, in_mid_turn, unknown_stream
from trajgym.policies.prefix import CommonPrefix, common_prefix
from trajgym.policies.rows import Rows, TurnStart
from trajgym.policies.streams import Chunk, Stream, batches, leading, most_alike

__all__ = ["HFSampler"]

_FEW = 64  # tokens per row up to which a pass is bound by its many small operations rather than by their size


class HFSampler(Sampler):
    """Samples from a transformers causal language model, batched over streams.

    A stream's tokens depend on its own seed, prompt and observations; whatever runs beside it changes its logits by
    no more than floating-point noise. Log-probabilities belong to the stated temperature.

    The model may be trained between rollouts: it is used in place, in evaluation mode and without gradients, and left
    in the mode it was in. Call :meth:`reset` after changing its weights, since cached keys belong to the old ones.

    Args:
        model: A decoder with full attention, ``"sdpa"`` or ``"eager"``; LoRA wrappers of peft are fine.
        slots: How many streams may be open at once.
        max_length: Most tokens of a stream.
        stop_ids: Tokens that end a turn.
        temperature: Divides the logits; 0 takes the most probable token and reports its log-probability at 1.
        pad_id: Any token id; the model's output for it is not used.
        prefill_tokens: Most tokens of one forward pass over prompts and observations, padding included. A single
            longer chunk still goes in one pass.

    Attributes:
        counters: What has been computed so far.

    Raises:
        ConfigError: When an argument is out of range or the model's attention cannot be cached this way.
    """

    def __init__(
        self,
        model: Any,
        *,
        slots: int,
        max_length: int,
        stop_ids: Iterable[int],
        temperature: float = 1.0,
        pad_id: int = 0,
        prefill_tokens: int = 8192,
    ) -> None:
        vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self._limits = Limits(slots, max_length, temperature, vocabulary)
        at_least_one(prefill_tokens=prefill_tokens)
        self._eager = _attention(model, max_length) == "eager"
        self._model = model
        self._stop_ids = frozenset(stop_ids)
        self._pad_id, self._prefill_tokens = pad_id, prefill_tokens
        parameters = inspect.signature(getattr(model, "get_base_model", lambda: model)().forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._keep_last = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        if not 0 <= pad_id < vocabulary:
            raise ConfigError(f"pad_id must lie in the model's vocabulary of {vocabulary}, got {pad_id}.")
        self.counters = Counters()
        self._opened = 0
        self.reset()

    @property
    def slots(self) -> int:
        """How many streams may be open at once."""
        return self._limits.slots

    @property
    def max_length(self) -> int:
        """Most tokens a stream can hold."""
        return self._limits.max_length

    @property
    def computed_tokens(self) -> int:
        """Tokens sent through the model so far, padding included."""
        return self.counters.computed_tokens

    def reset(self) -> None:
        """Drop all streams and free the cache."""
        device = next(self._model.parameters()).device
        self._device = device
        self._cache = RowCache(self.slots, self.max_length)
        self._decoder = None if self._eager else find_decoder(self._model)
        self._streams: dict[int, Stream] = {}
        self._at: list[Stream | None] = [None] * self.slots  # the stream in each row
        self._asked: list[Stream] = []  # their turn begins with the next step
        self._live = 0  # rows below this one are in the middle of a turn
        self._common: CommonPrefix | None = None  # what those begin with
        self._regrouped = True  # whether others are live than when that was looked for
        self._rows = Rows(
            self.slots,
            stop_ids=self._stop_ids,
            temperature=self._limits.temperature,
            max_length=self.max_length,
            device=device,
        )

    def open(self, ids: Sequence[int], *, seed: int) -> int:
        """Start a stream with these prompt tokens and return its handle.

        Raises:
            ConfigError: When the prompt is empty, too long or not in the vocabulary.
            EpisodeError: When all slots are taken.
        """
        self._limits.check_prompt(ids)
        row = next((row for row, stream in enumerate(self._at) if stream is None), None)
        if row is None:
            raise self._limits.all_taken()
        stream = Stream(self._opened, row, int64(seed), tuple(ids), list(ids))
        self._opened += 1
        self._streams[stream.id] = self._at[row] = stream
        self.counters.prompt_tokens += len(ids)
        return stream.id

    def extend(self, stream: int, ids: Sequence[int]) -> None:
        """Append observation tokens to a stream that is not generating.

        Raises:
            ConfigError: When they do not fit or are not in the vocabulary.
            EpisodeError: When the stream is generating or closed.
        """
        entry = self._idle(stream)
        self._limits.check_tokens(ids, entry.length)
        entry.pending.extend(ids)
        self.counters.prompt_tokens += len(ids)

    def generate(self, stream: int, *, max_new_tokens: int) -> None:
        """Ask for the next turn of a stream.

        Raises:
            ConfigError: When the budget is below 1 or does not fit.
            EpisodeError: When the stream is generating or closed.
        """
        entry = self._idle(stream)
        self._limits.check_turn(entry.length, max_new_tokens)
        entry.budget = max_new_tokens
        self._asked.append(entry)

    def step(self) -> list[SampledTurn]:
        """Sample one token in every stream that has a turn to write; return the turns that finished.

        Raises:
            TrainingError: When the model's weights are not finite. Where its logits alone are not, the turn comes out
                with log-probabilities that are NaN.
        """
        asked, self._asked = self._asked, []
        if not (self._live or asked):
            return []
        with torch.inference_mode(), _evaluating(self._model):
            if self._live:
                self._decode()
            if asked:
                self._rows.begin([TurnStart(s.row, s.length, s.budget, s.seed, s.drawn) for s in asked])
                first = leading(s.prompt for s in asked if not s.cached)
                for streams in ([s for s in asked if s.prompt in first], [s for s in asked if s.prompt not in first]):
                    self._take_over(streams)
                    for chunks in batches(streams, self._prefill_tokens):
                        self._prefill(chunks)
            return self._harvest(asked)

    def close(self, stream: int) -> None:
        """Free a stream; closing it in mid-turn drops the turn.

        Raises:
            EpisodeError: When it is closed already.
        """
        entry = self._find(stream)
        del self._streams[stream]
        self._at[entry.row] = None
        self._asked = [other for other in self._asked if other is not entry]
        if entry.row < self._live:
            with torch.inference_mode():
                self._arrange([row for row in range(self._live) if row != entry.row])

    def _decode(self) -> None:
        positions = self._rows.position[: self._live, None].clone()
        reach = int(positions.max()) + 1
        plan = Pass(None, positions, torch.ones_like(positions, dtype=torch.bool), reach)
        tokens = self._rows.latest[: self._live, None]
        if self._regrouped and self._decoder is not None:
            prompts = [stream.prompt for stream in self._at[: self._live] if stream is not None]
            self._common = common_prefix(prompts, reach, self._device, self._common)
            self._regrouped = False
        logits = self._forward(tokens, plan, reach, self._common)
        self._sample(self._index(range(self._live)), logits)

    def _take_over(self, asked: Sequence[Stream]) -> None:
        """Copy keys and values of what new prompts have in common with one that is known, such as a system message."""
        groups: dict[tuple[int, ...], list[Stream]] = {}
        for stream in asked:
            if not stream.cached:
                groups.setdefault((len(stream.prompt), *stream.pending), []).append(stream)
        if not groups:
            return
        holders = {s.prompt: s for s in self._streams.values() if s.cached >= len(s.prompt)}
        known = sorted(holders)
        copies: list[tuple[int, int, int]] = []
        for group in groups.values():
            which, length = most_alike(group[0].prompt, known)
            if length:  # the others of the group get the whole prompt, once it is computed
                copies.append((holders[known[which]].row, group[0].row, length))
                for stream in group:
                    stream.cached, stream.pending = length, stream.pending[length:]
        if copies:  # all at once; what is copied beyond a row's own part is written over before it is read
            source, target, lengths = zip(*copies, strict=True)
            self._cache.move(self._index(source), self._index(target), max(lengths))

    def _prefill(self, chunks: list[Chunk]) -> None:
        firsts = [chunk.streams[0] for chunk in chunks]
        longest = max(len(chunk.tokens) for chunk in chunks)
        # Padded on the left, so that every row's last token, whose logits are wanted, stands at the end.
        tokens = [[self._pad_id] * (longest - len(chunk.tokens)) + chunk.tokens for chunk in chunks]
        column = torch.arange(longest, device=self._device)
        valid = column >= longest - self._index(len(chunk.tokens) for chunk in chunks)[:, None]
        last = self._index(first.length for first in firsts)[:, None] - 1
        positions = torch.where(valid, last - longest + 1 + column, 0)
        reach = max(first.length for first in firsts)
        plan = Pass(self._index(s.row for s in firsts), positions, valid, reach if firsts[0].cached else 0)
        logits = self._forward(torch.tensor(tokens, device=self._device), plan, reach)
        members = [(k, stream) for k, chunk in enumerate(chunks) for stream in chunk.streams]
        if len(members) > len(chunks):
            copies = [(firsts[k].row, s.row) for k, s in members if s is not firsts[k]]
            source, target = torch.tensor(copies, device=self._device).unbind(1)
            self._cache.move(source, target, reach)
            logits = logits[[k for k, _ in members]]
        for _, stream in members:
            stream.cached, stream.pending = stream.length, []
        self._sample(self._index(s.row for _, s in members), logits)

    def _forward(self, tokens: Tensor, plan: Pass, reach: int, common: CommonPrefix | None = None) -> Tensor:
        self._cache.begin(plan, reach)
        self.counters.computed_tokens += tokens.numel()
        if self._decoder is not None and tokens.shape[1] <= _FEW:
            return self._decoder(tokens, plan, self._cache, common).float()
        mask = plan.visible()
        if self._eager:  # adds the mask to its scores, where the other kind takes it as a condition
            dtype = self._model.dtype
            mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)
        output = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=plan.positions,
            use_cache=True,
            **{self._cache_name: self._cache},
            **self._keep_last,
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _sample(self, rows: Tensor, logits: Tensor) -> None:
        self._rows.sample(rows, logits)
        self.counters.sampled_tokens += len(rows)

    def _harvest(self, asked: list[Stream]) -> list[SampledTurn]:
        finished = self._rows.finished()
        turns = [self._finish(*turn) for turn in finished]
        if finished or asked:
            gone = {row for row, _, _ in finished}
            rows = [*range(self._live), *(stream.row for stream in asked)]
            self._arrange([row for row in rows if row not in gone])
        return turns

    def _finish(self, row: int, ids: list[int], logprobs: list[float]) -> SampledTurn:
        stream = self._at[row]
        assert stream is not None
        finite = all(map(math.isfinite, logprobs))
        if not finite and not all(bool(torch.isfinite(p).all()) for p in self._model.parameters()):
            raise TrainingError("The model's logits are not finite, since its weights are not: they have diverged.")
        stream.cached += len(ids) - 1
        stream.pending = ids[-1:]
        stream.drawn += len(ids)
        stream.budget = 0
        finish = "stop" if ids[-1] in self._stop_ids else "length"
        return SampledTurn(stream.id, tuple(ids), tuple(logprobs), finish)

    def _arrange(self, live: list[int]) -> None:
        """Let these rows be the first ones, so that the cache is read without a copy; others trade places with them."""
        self._live, self._regrouped = len(live), True
        inside = set(live)
        holes = [row for row in range(len(live)) if row not in inside]
        movers = [row for row in live if row >= len(live)]
        if not holes:
            return
        for a, b in zip(holes, movers, strict=True):
            self._at[a], self._at[b] = self._at[b], self._at[a]
            for row in (a, b):
                stream = self._at[row]
                if stream is not None:
                    stream.row = row
        source, target = self._index([*holes, *movers]), self._index([*movers, *holes])
        self._cache.move(source, target, int(self._rows.position[source].max()))
        self._rows.move(source, target)

    def _index(self, rows: Iterable[int]) -> Tensor:
        return torch.tensor(list(rows), dtype=torch.int64, device=self._device)

    def _find(self, stream: int) -> Stream:
        if stream not in self._streams:
            raise unknown_stream(stream)
        return self._streams[stream]

    def _idle(self, stream: int) -> Stream:
        entry = self._find(stream)
        if entry.budget:
            raise in_mid_turn(stream)
        return entry


def _attention(model: Any, max_length: int) -> str:
    config = model.config.get_text_config()
    kind = str(getattr(config, "_attn_implementation", None))
    if kind not in ("sdpa", "eager"):
        raise ConfigError(f"The model's attention is {kind!r}. Load it with attn_implementation='sdpa' or 'eager'.")
    layers = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if layers:
        raise ConfigError(f"Layers of the kinds {sorted(layers)} cannot be cached here, only full attention.")
    for name in ("sliding_window", "max_position_embeddings"):
        limit = getattr(config, name, None)
        if limit is not None and max_length > limit:
            raise ConfigError(f"max_length={max_length} exceeds the model's {name}={limit}. Lower max_length.")
    return kind


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
