"""The pass of a decoder over few new tokens per row, where it can be had for less than the model's own forward.

A step that samples one token in each of some streams, or reads what their environments answered, is made of very small
operations, and a general forward does more of them than it must: it carries masks of four dimensions through every
layer, rotates halves by cutting and joining, and repeats the keys of grouped heads before it compares them. Here the
model's own layers and weights are called, with only the work between them done anew, so adapters and quantised layers
act as they always do. Models that are built otherwise, or whose modules carry hooks that a call of a layer would set
off, are not taken: their own forward is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from trajgym.policies.kv import Pass, RowCache
from trajgym.policies.prefix import CommonPrefix

__all__ = ["Decoder", "find_decoder"]

# Architectures of transformers whose decoder is the one that Decoder spells out. The value says whether queries and
# keys are normalised per head.
_KNOWN = {
    "LlamaForCausalLM": False,
    "MistralForCausalLM": False,
    "Qwen2ForCausalLM": False,
    "Qwen3ForCausalLM": True,
}


def find_decoder(model: Any) -> Decoder | None:
    """Return a decoder for a model, or ``None`` where only the model's own forward will do.

    Args:
        model: A transformers causal language model, or a LoRA wrapper of peft around one.
    """
    plain = getattr(model, "get_base_model", lambda: model)()
    if type(plain).__name__ not in _KNOWN or not type(plain).__module__.startswith("transformers."):
        return None
    if "sliding_attention" in (getattr(plain.config, "layer_types", None) or ()):
        return None
    if any(m._forward_hooks or m._forward_pre_hooks or hasattr(m, "_hf_hook") for m in model.modules()):
        return None  # shards that are gathered, layers that are fetched from elsewhere
    return Decoder(plain, per_head_norm=_KNOWN[type(plain).__name__])


class Decoder:
    """Computes the logits after a few new tokens per row, reading and writing the rows' cache.

    Args:
        model: One of the architectures that :func:`find_decoder` knows.
        per_head_norm: Whether queries and keys are normalised per head.
    """

    def __init__(self, model: Any, *, per_head_norm: bool) -> None:
        self._model = model
        self._per_head_norm = per_head_norm
        config = model.config
        self._heads, self._shared = config.num_attention_heads, config.num_key_value_heads
        self._head_size = model.model.layers[0].self_attn.head_dim

    def __call__(self, tokens: Tensor, plan: Pass, cache: RowCache, common: CommonPrefix | None = None) -> Tensor:
        """Return the logits after the last of these tokens in each row.

        Args:
            tokens: The same number for each row, padded on the left.
            plan: Where they stand, as for the model's own forward.
            cache: After :meth:`RowCache.begin` with the same plan.
            common: What some of the rows begin with, to be read once; for single tokens.

        Shape: ``tokens`` is ``(batch, length)``, the result ``(batch, vocabulary)`` in the model's type.
        """
        decoder = self._model.model
        hidden = decoder.embed_tokens(tokens)
        cos, sin = decoder.rotary_emb(hidden, position_ids=plan.positions)
        half = sin.shape[-1] // 2
        # Rolled by half its length and with the sign of the first half turned, a vector is rotated by a quarter.
        sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
        mask = hidden.new_zeros(()).where(plan.visible(), -torch.inf)  # once, not in every layer
        # All queries that share a head of keys stand where a sequence's would, so that no key is repeated.
        mask = mask.repeat(1, 1, self._heads // self._shared, 1) if tokens.shape[1] > 1 else mask
        where = (cos.unsqueeze(2), sin.unsqueeze(2), mask)
        for index, layer in enumerate(decoder.layers):
            normal = _normalised(layer.input_layernorm, hidden)
            hidden = hidden + self._attend(layer.self_attn, normal, where, cache, common, index)
            hidden = hidden + layer.mlp(_normalised(layer.post_attention_layernorm, hidden))
        logits: Tensor = self._model.lm_head(_normalised(decoder.norm, hidden[:, -1]))
        return logits

    def _attend(
        self,
        attention: Any,
        hidden: Tensor,
        where: tuple[Tensor, Tensor, Tensor],
        cache: RowCache,
        common: CommonPrefix | None,
        index: int,
    ) -> Tensor:
        cos, sin, mask = where
        batch, length = hidden.shape[:2]
        queries = attention.q_proj(hidden).view(batch, length, self._heads, self._head_size)
        keys = attention.k_proj(hidden).view(batch, length, self._shared, self._head_size)
        values = attention.v_proj(hidden).view(batch, length, self._shared, self._head_size).transpose(1, 2)
        if self._per_head_norm:
            queries, keys = _normalised(attention.q_norm, queries), _normalised(attention.k_norm, keys)
        both = torch.cat((queries, keys), dim=2)
        both = torch.addcmul(both * cos, both.roll(both.shape[-1] // 2, -1), sin).transpose(1, 2)
        queries, keys = both[:, : self._heads], both[:, self._heads :]
        keys, values = cache.update(keys, values, index)
        queries = queries.reshape(batch, self._shared, -1, self._head_size)
        scale = attention.scaling
        if common is None:
            seen = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
        else:
            seen = common.attend(queries, keys, values, mask, scale=scale, cache=cache, layer=index)
        seen = seen.reshape(batch, self._heads, length, self._head_size).transpose(1, 2)
        mixed: Tensor = attention.o_proj(seen.reshape(batch, length, -1))
        return mixed


def _normalised(norm: Any, states: Tensor) -> Tensor:
    """Return what a root-mean-square layer makes of states, in one operation where that rounds as the layer does."""
    weight: Tensor = norm.weight
    if weight.dtype == states.dtype == torch.float32:
        return rms_norm(states, weight.shape, weight, norm.variance_epsilon)
    result: Tensor = norm(states)
    return result
