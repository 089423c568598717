"""A frozen model in 8 or 4 bits, beneath adapters.

``8bit`` keeps int8 weights with one scale per row, and multiplies in int8 but for columns with outliers (LLM.int8,
arXiv 2208.07339). ``4bit`` keeps NormalFloat-4 in blocks of 64 with scales in 8 bits, and multiplies in the model's own
numbers (QLoRA, arXiv 2305.14314). Embeddings, norms and the head stay as they are. Both are done by bitsandbytes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from trajgym.errors import ConfigError

__all__ = ["QUANTIZATION_BITS", "loading_arguments", "quiet"]

QUANTIZATION_BITS = {"none": None, "8bit": 8, "4bit": 4}
"""Bits of a weight of the blocks' linear layers; ``None`` where they are those of the dtype."""


def loading_arguments(kind: str, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Return the further arguments of ``from_pretrained`` for a quantised model.

    Args:
        kind: One of :data:`QUANTIZATION_BITS`.
        dtype: In which its results are computed.
        device: Where its weights go; they are quantised there, and stay.

    Raises:
        ConfigError: For another kind, or where bitsandbytes is not installed.
    """
    if kind not in QUANTIZATION_BITS:
        raise ConfigError(f"quantization must be one of {', '.join(QUANTIZATION_BITS)}, got {kind!r}.")
    if kind == "none":
        return {}
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"quantization {kind} needs bitsandbytes, which is not installed: pip install 'bitsandbytes>=0.49'. "
            "Or leave quantization at none."
        )
    from transformers import BitsAndBytesConfig

    if kind == "8bit":
        how = BitsAndBytesConfig(load_in_8bit=True)
    else:
        how = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    return {"quantization_config": how, "device_map": {"": device}}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what bitsandbytes says of itself, on import and in every layer, out of the run's log."""
    # Its int8 layers say in each pass that they work in float16.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it asks torch.jit by a name that is about to go
        yield
