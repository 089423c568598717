"""vLLM in this process as a token engine: paged cache, shared prefixes, and weights of its own that follow training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from trajgym.errors import ConfigError, TrainingError
from trajgym.policies.base import SampledTurn
from trajgym.policies.turns import Order, TurnSampler
from trajgym.policies.vllm_engine import Engine, VLLMEngine
from trajgym.policies.vllm_options import VLLMOptions
from trajgym.policies.vllm_weights import check_agreement, checkpoint_weights

__all__ = ["LEAST_TEMPERATURE", "VLLMSampler", "check_temperature"]

LEAST_TEMPERATURE = 0.01
"""What vLLM takes in place of a lower one that is not 0."""

_ADVICE = "Does this vLLM know the model's architecture, and is its folder the one that the trainer has read?"


class VLLMSampler(TurnSampler):
    """Samples with vLLM's engine in this process.

    A stream's tokens depend on its own seed, prompt and observations; whatever runs beside it changes its logits by no
    more than floating-point noise, as does what of its prefix is found in the cache. Log-probabilities belong to the
    stated temperature. They are the engine's, not the trainer's: its kernels round differently, and it may hold weights
    in fewer bits; ``sampler_correction`` is for that.

    A turn computes the tokens that are new in its stream, and those of the last block that was not full: the blocks
    before are found by their hash, also those of another stream that begins with the same prompt.

    Args:
        source: Folder or hub id of the model; its weights are there until :meth:`update_weights`.
        slots: How many streams may be open at once.
        max_length: Most tokens of a stream.
        stop_ids: Tokens that end a turn.
        temperature: Divides the logits; 0 takes the most probable token and reports its log-probability at 1.
        dtype: The trainer's numbers, ``"float32"`` or ``"bfloat16"``.
        options: All others.
        make: Makes the engine in place of :class:`trajgym.policies.vllm_engine.VLLMEngine`, from the same arguments.

    Attributes:
        gap: Distance of the engine from the trainer after the last update of weights, in nats per token.

    Raises:
        ConfigError: When an argument is out of range, vLLM is missing or refuses the model.
    """

    def __init__(
        self,
        source: str,
        *,
        slots: int,
        max_length: int,
        stop_ids: Iterable[int],
        temperature: float = 1.0,
        dtype: str = "float32",
        options: VLLMOptions | None = None,
        make: Callable[..., Engine] | None = None,
    ) -> None:
        check_temperature(temperature)
        ends = tuple(stop_ids)
        self._engine = (make or VLLMEngine)(
            source,
            slots=slots,
            max_length=max_length,
            stop_ids=ends,
            temperature=temperature,
            arguments=(options or VLLMOptions.model_validate({})).arguments(dtype),
        )
        super().__init__(
            slots=slots,
            max_length=max_length,
            stop_ids=ends,
            temperature=temperature,
            vocabulary=self._engine.vocabulary,
        )
        self.gap = math.nan

    def step(self) -> list[SampledTurn]:
        """Sample one token in every stream that has a turn to write; return the turns that finished.

        Raises:
            TrainingError: When the engine's weights are not finite. Where its logits alone are not, the turn comes out
                with log-probabilities that are NaN.
        """
        if not self._writing:
            return []
        turns = []
        for written in self._engine.step():
            if not all(map(math.isfinite, written.logprobs)) and not self._engine.finite():
                raise TrainingError("The model's logits are not finite, since its weights are not: they have diverged.")
            turns.append(self._written(written.stream, written.ids, written.logprobs, written.cached))
        return turns

    def reset(self) -> None:
        """Drop all streams and what is kept of their prefixes; the memory for them stays the engine's."""
        super().reset()
        self._engine.forget()

    def update_weights(self, model: Any) -> None:
        """Sample with these weights from now on.

        Args:
            model: Of the architecture that the engine has; low-rank adapters are added to the weights on the way.

        Raises:
            ConfigError: When the adapters cannot be added, or the engine's log-probabilities are not the model's then.
            EpisodeError: When a stream is open.
        """
        self._between_rollouts()
        self._engine.load(checkpoint_weights(model))
        self.gap = check_agreement(
            self, model, temperature=self._limits.temperature, vocabulary=self._limits.vocabulary, advice=_ADVICE
        )
        self._engine.forget()  # every rollout begins with an empty cache

    def close_engine(self) -> None:
        """Free the engine's memory; the sampler cannot be used any more."""
        super().reset()
        self._engine.close()

    def _ask(self, order: Order) -> None:
        self._engine.add(order)

    def _drop(self, streams: Sequence[int]) -> None:
        self._engine.abort(streams)


def check_temperature(temperature: float) -> None:
    """Raise for a temperature at which vLLM would not sample.

    Raises:
        ConfigError: When vLLM would take another one.
    """
    if 0 < temperature < LEAST_TEMPERATURE:
        raise ConfigError(
            f"temperature must be 0 or at least {LEAST_TEMPERATURE} for vLLM, which would take that in place of "
            f"{temperature}."
        )
