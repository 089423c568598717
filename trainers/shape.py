"""The sizes of a decoder, from which its memory and its arithmetic follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from trajgym.errors import ConfigError

__all__ = ["Linear", "ModelShape", "lora_parameters", "shape_of", "shape_of_config"]


@dataclass(frozen=True)
class Linear:
    """Layers of one name and size: ``y = Wx`` with W of ``outputs × inputs``, ``count`` times in the model."""

    name: str
    outputs: int
    inputs: int
    count: int


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder.

    Args:
        parameters: All weights; shared ones once, adapters not at all.
        embedding: Weights of the table that token ids are looked up in.
        tied: Whether the head is that table.
        vocabulary: Rows of the table.
        hidden: Width of the residual stream.
        layers: Number of blocks.
        heads: Query heads of a block.
        kv_heads: Key and value heads of a block.
        head_size: Width of a head.
        intermediate: Width inside the feed-forward part.
        head_norms: Whether queries and keys are normalised, head by head.
        linears: The linear layers of the blocks.
    """

    parameters: int
    embedding: int
    tied: bool
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    head_norms: bool
    linears: tuple[Linear, ...]

    @property
    def head(self) -> int:
        """Weights that turn a hidden state into logits."""
        return self.hidden * self.vocabulary

    @property
    def body(self) -> int:
        """N: weights of the blocks, without embedding and head."""
        return self.parameters - self.embedding - (0 if self.tied else self.head)

    @property
    def kv_numbers(self) -> int:
        """Numbers that the key/value cache keeps of one token."""
        return 2 * self.layers * self.kv_heads * self.head_size


def shape_of(model: Any) -> ModelShape:
    """Return the sizes of a model: a loaded one, one on the meta device, or one with adapters, which do not count.

    Weights that are stored in fewer bits count in full.

    Raises:
        ConfigError: When the model's configuration lacks one of the sizes.
    """
    base = getattr(model, "get_base_model", lambda: model)()
    table, head = base.get_input_embeddings(), base.get_output_embeddings()
    seen: set[int] = set()
    kinds: Counter[tuple[str, int, int]] = Counter()
    parameters = 0
    for path, module in base.named_modules():
        if "lora_" in path:
            continue
        linear = isinstance(module, nn.Linear)
        if linear and module is not head:
            name = path.removesuffix(".base_layer").rsplit(".", 1)[-1]
            kinds[name, module.out_features, module.in_features] += 1
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                packed = linear and name == "weight"
                parameters += module.in_features * module.out_features if packed else parameter.numel()
    config = base.config.get_text_config()
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    return ModelShape(
        parameters=parameters,
        embedding=table.weight.numel(),
        tied=head is not None and head.weight is table.weight,
        vocabulary=table.weight.shape[0],
        hidden=hidden,
        layers=_size(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or hidden // heads,
        intermediate=getattr(config, "intermediate_size", None) or 4 * hidden,
        head_norms=any(path.endswith((".q_norm", ".q_layernorm")) for path, _ in base.named_modules()),
        linears=tuple(Linear(*kind, count) for kind, count in kinds.items()),
    )


def shape_of_config(config: Any) -> ModelShape:
    """Return the sizes of a model that is described by a transformers configuration; no weight is made or read."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return shape_of(AutoModelForCausalLM.from_config(config))


def lora_parameters(shape: ModelShape, *, rank: int, targets: Sequence[str]) -> int:
    """Return how many weights adapters of this rank have: ``r(d + k)`` for every layer of ``d × k``.

    Source: LoRA, arXiv 2106.09685.

    Args:
        shape: The model.
        rank: r.
        targets: Names of the adapted layers, such as ``"q_proj"``.
    """
    return sum(rank * (x.outputs + x.inputs) * x.count for x in shape.linears if x.name in targets)


def _size(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    if not isinstance(value, int):
        raise ConfigError(f"The model's configuration has no {name}; its memory and arithmetic cannot be reckoned.")
    return value
