"""From a run's options to the engine that samples for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from trajgym.errors import ConfigError
from trajgym.policies.base import Sampler
from trajgym.policies.hf import HFSampler
from trajgym.policies.vllm_options import ServerOptions, VLLMOptions, read_sampler_options
from trajgym.trainers.config import GRPOConfig

__all__ = ["make_sampler"]


def make_sampler(model: Any, tokenizer: Any, config: GRPOConfig, *, stop_ids: Iterable[int]) -> Sampler:
    """Return the engine that ``config.sampler`` names.

    One with weights of its own has those that the model was loaded with; training changes them by
    :meth:`trajgym.policies.base.Sampler.update_weights`.

    Args:
        model: The policy, with or without adapters.
        tokenizer: Belongs to it.
        config: All options.
        stop_ids: Tokens that end a turn.

    Raises:
        ConfigError: When the engine cannot be had, or cannot take this model.
    """
    options = read_sampler_options(config.sampler, config.sampler_options)
    common: dict[str, Any] = {
        "slots": config.slots,
        "max_length": config.max_episode_tokens,
        "stop_ids": stop_ids,
        "temperature": config.temperature,
    }
    if options is None:
        return HFSampler(model, **common)
    _require_one_process(config.sampler)
    _require_room(model, config.max_episode_tokens)
    if isinstance(options, VLLMOptions):
        from trajgym.policies.vllm import VLLMSampler

        return VLLMSampler(str(_base(model).name_or_path), dtype=config.dtype, options=options, **common)
    assert isinstance(options, ServerOptions)
    from trajgym.policies.vllm_server import VLLMServerSampler

    return VLLMServerSampler(
        options,
        vocabulary=int(model.get_input_embeddings().weight.shape[0]),
        encode=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
        **common,
    )


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _require_one_process(sampler: str) -> None:
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count > 1:
        why = (
            "each of them would start an engine of its own, which takes over the process group that the trainer uses"
            if sampler == "vllm"
            else "one of them alone could send the server its weights"
        )
        raise ConfigError(f"sampler {sampler} needs one process, and this launch has {count}: {why}. Use sampler: hf.")


def _require_room(model: Any, length: int) -> None:
    limit = getattr(_base(model).config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and length > limit:
        raise ConfigError(f"max_episode_tokens={length} exceeds the model's max_position_embeddings={limit}. Lower it.")
