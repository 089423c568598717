"""What a run will need in memory, reckoned from the model's sizes before anything of it is made.

Bytes, with s for the bytes of a number, P for the weights and P' for those that are trained:

    weights      P·s, the adapters in float32 where there are any; once more for a reference that is a copy
    quantised    n/2 + n/64 for a matrix of n weights in 4 bits, n + 4·rows in 8; the rest of the model as ever
    copies       4·P' of a model in bfloat16 whose own weights are trained: float32, for the optimiser to move
    AdamW        8·P' (two moments in float32), from the first step on
    gradients    4·P' (float32), while an update is computed
    cache        2·layers·kv_heads·head_size·s for each token of each slot, while episodes are played
    activations  what the backward pass needs, for each token of a micro-batch: see :func:`activation_bytes`
    logits       two float32 chunks of them, or one and all that are kept: see :func:`logit_bytes`

The largest sum of what is alive together is the estimate. The interpreter and its libraries, about half a GiB, come on
top.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from trajgym.errors import UnknownNameError
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.quantization import QUANTIZATION_BITS
from trajgym.trainers.shape import Linear, ModelShape, lora_parameters
from trajgym.trainers.token_logprobs import CHUNK_BYTES, KEPT_BYTES

__all__ = ["MemoryEstimate", "activation_bytes", "estimate", "logit_bytes", "models_held"]

_FLOAT = 4  # bytes of float32
_SHARED = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}  # which reads the same tensor
_PREFILL_TOKENS = 8192  # of one pass over prompts and observations

_MODELS = {
    "sft": ("policy",),
    "reward_model": ("reward",),
    "dpo": ("policy", "reference"),
    "grpo": ("policy", "reference"),
    "ppo": ("policy", "reference", "value", "reward"),
}


def models_held(algorithm: str) -> tuple[str, ...]:
    """Return which models an algorithm holds, as it was published.

    >>> models_held("grpo"), len(models_held("ppo"))
    (('policy', 'reference'), 4)

    Raises:
        UnknownNameError: For an algorithm that is not known.
    """
    if algorithm not in _MODELS:
        raise UnknownNameError("algorithm", algorithm, _MODELS)
    return _MODELS[algorithm]


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a run needs, by what they are for.

    Args:
        policy: The policy's weights, its adapters included.
        reference: A copy for the KL; with adapters the policy itself is the reference, and this is 0.
        value: PPO's value model.
        reward: A learned reward; 0 where rules pay.
        copies: Of the trained weights in float32, where the model's are in bfloat16.
        optimizer: Moments of AdamW.
        gradients: Of the larger one of what is trained.
        cache: Keys and values of all slots at full length.
        rollout: What a pass over prompts needs besides.
        activations: Of one micro-batch, kept from the forward to the backward pass.
        recomputed: Of one block of it, where activations are recomputed.
        logits: Of one micro-batch, their gradients, and that of the head.
        trained: Weights that are trained, as a number.
        sampler: The copy that plays ahead; with adapters a copy of these. 0 where the policy itself plays.
    """

    policy: int
    reference: int
    value: int
    reward: int
    copies: int
    optimizer: int
    gradients: int
    cache: int
    rollout: int
    activations: int
    recomputed: int
    logits: int
    trained: int
    sampler: int = 0

    @property
    def models(self) -> int:
        """Weights of all models."""
        return self.policy + self.reference + self.value + self.reward + self.sampler

    @property
    def held(self) -> int:
        """What is there all the time."""
        return self.models + self.copies + self.optimizer

    @property
    def peak(self) -> int:
        """The most that is there at once: in the rollout or in the update, or in both where they overlap."""
        update = self.gradients + self.activations + max(self.logits, self.recomputed)
        rollout = self.cache + self.rollout
        return self.held + (rollout + update if self.sampler else max(rollout, update))

    def parts(self) -> dict[str, int]:
        """Return the bytes by name, the largest first."""
        named = {
            "weights": self.models,
            "float32 copies": self.copies,
            "optimiser states": self.optimizer,
            "gradients": self.gradients,
            "key/value cache": self.cache,
            "rollout": self.rollout,
            "activations": self.activations + self.recomputed,
            "logits": self.logits,
        }
        return dict(sorted(named.items(), key=lambda item: -item[1]))


def estimate(
    shape: ModelShape,
    config: GRPOConfig,
    *,
    algorithm: str | None = None,
    learned_reward: bool = False,
    own_head: bool = False,
) -> MemoryEstimate:
    """Return what a run needs on its device.

    Args:
        shape: The policy's sizes.
        config: The run's options.
        algorithm: In the place of the one in the options.
        learned_reward: Whether a model as large as the policy pays, and not rules.
        own_head: Whether the model must make logits by itself, all at once: where
            :func:`trajgym.trainers.token_logprobs.plain_head` finds none.
    """
    size = 2 if config.dtype == "bfloat16" else _FLOAT
    adapters = lora_parameters(shape, rank=config.lora_rank, targets=config.lora_targets) if config.use_lora else 0
    adapted = config.lora_targets if config.use_lora else None
    weights = shape.parameters * size
    if (bits := QUANTIZATION_BITS[config.quantization]) is not None:
        weights += sum((_packed_bytes(x, bits) - x.outputs * x.inputs * size) * x.count for x in shape.linears)
    ppo = (algorithm or config.algorithm) == "ppo"
    bare = 0 if shape.tied else shape.head  # a value model has no head over the vocabulary
    value_head = shape.hidden + 1
    value = weights - bare * size + adapters * _FLOAT + value_head * _FLOAT if ppo else 0
    trained = adapters or shape.parameters
    value_trained = (adapters or shape.parameters - bare) + value_head if ppo else 0
    copied = 0 if adapters or size == _FLOAT else trained + value_trained - (value_head if ppo else 0)

    most = config.groups_per_update * config.num_generations * config.max_episode_tokens
    tokens = max(config.max_episode_tokens, min(config.microbatch_tokens, most))  # a row cannot be divided
    return MemoryEstimate(
        policy=weights + adapters * _FLOAT,
        reference=0 if config.use_lora or config.kl_coef == 0 else weights,
        value=value,
        reward=weights if learned_reward else 0,
        copies=copied * _FLOAT,
        optimizer=2 * (trained + value_trained) * _FLOAT,
        gradients=max(trained, value_trained) * _FLOAT,
        cache=config.slots * config.max_episode_tokens * shape.kv_numbers * size,
        rollout=_prefill_bytes(shape, config, size),
        activations=activation_bytes(
            shape,
            tokens,
            size=size,
            checkpointing=config.gradient_checkpointing,
            adapted=adapted,
            rank=config.lora_rank,
        ),
        recomputed=tokens * _block_bytes(shape, size, adapted, config.lora_rank)
        if config.gradient_checkpointing
        else 0,
        logits=logit_bytes(shape, tokens, head_learns=not adapters, own_head=own_head),
        trained=trained,
        sampler=(adapters * _FLOAT or weights) if config.rollout_ahead else 0,
    )


def activation_bytes(
    shape: ModelShape,
    tokens: int,
    *,
    size: int = _FLOAT,
    checkpointing: bool = False,
    adapted: Collection[str] | None = None,
    rank: int = 0,
) -> int:
    """Return what a forward pass keeps for the backward pass.

    In each block, for each token, with width d, feed-forward width f, heads of width h, and s bytes a number::

        2 norms       d·(4 + 2s) each: the input in float32, the normalised input, the result
        attention     (heads + kv_heads)·h·2s: queries and result, keys and values;
                      (heads + kv_heads)·h·(4 + s) more where queries and keys are normalised
        feed-forward  4·f·s: gate, its activation, up, their product

    A layer keeps its input for the gradient of its own weights, and a norm what it multiplies. Frozen ones, beneath
    adapters of rank r, do without::

        2 norms       d·4 each
        attention     as above, 4 in the place of 4 + s
        feed-forward  3·f·s
        adapters      4·r each, and their inputs in float32: one copy each; in a model in float32 its own tensors, of
                      which q, k and v share one, gate and up another, and o has what attention keeps anyway

    Attention scores are not kept: they are computed again, tile by tile (FlashAttention, arXiv 2205.14135). With
    checkpointing each block keeps its input alone, and computes the rest again when its turn comes.

    Args:
        shape: The model.
        tokens: Of a micro-batch, padding included.
        size: Bytes of a number.
        checkpointing: Whether activations are recomputed.
        adapted: Names of the layers with adapters, everything else frozen; ``None`` where all weights are trained.
        rank: Of the adapters.
    """
    block = shape.hidden * size if checkpointing else _block_bytes(shape, size, adapted, rank)
    return tokens * (shape.layers * block + _norm_bytes(shape, size, adapted))


def logit_bytes(shape: ModelShape, tokens: int, *, head_learns: bool = True, own_head: bool = False) -> int:
    """Return what logits take at most.

    They are made a chunk at a time, two float32 tensors of the vocabulary's width each: log-probabilities, and what
    they are made of or their gradient. Those of few tokens are all kept. The gradient of a head that learns is added up
    over chunks, in float32, beside the one of micro-batches before. A model that must make all logits at once has four
    tensors of all tokens.

    Args:
        shape: The model.
        tokens: Of a micro-batch; as if the policy had sampled all of them.
        head_learns: Whether the head over the vocabulary is trained.
        own_head: As for :func:`estimate`.
    """
    everything = _FLOAT * shape.vocabulary * tokens
    if own_head:
        return 4 * everything
    chunk = min(everything, max(CHUNK_BYTES, _FLOAT * shape.vocabulary))
    kept = everything if everything <= KEPT_BYTES else chunk
    return kept + chunk + (_FLOAT * shape.head if head_learns else 0)


def _packed_bytes(layer: Linear, bits: int) -> int:
    """Return what one matrix takes in 8 or 4 bits, its scales and, of 4 bits, its two tables included."""
    count = layer.outputs * layer.inputs
    if bits == 8:
        return count + _FLOAT * layer.outputs
    blocks = math.ceil(count / 64)
    return math.ceil(count / 2) + blocks + _FLOAT * math.ceil(blocks / 256) + _FLOAT * (256 + 16 + 1)


def _block_bytes(shape: ModelShape, size: int, adapted: Collection[str] | None, rank: int) -> int:
    """Return what one block keeps of one token."""
    heads = (shape.heads + shape.kv_heads) * shape.head_size
    scaled = size if adapted is None else 0
    attention = heads * (2 * size + (_FLOAT + scaled if shape.head_norms else 0))
    wide = shape.intermediate * size * (4 if adapted is None else 3)
    return 2 * _norm_bytes(shape, size, adapted) + attention + wide + _adapter_bytes(shape, size, adapted or (), rank)


def _adapter_bytes(shape: ModelShape, size: int, adapted: Collection[str], rank: int) -> int:
    """Return what the adapters of one block keep of one token: what they read, and what is between their matrices."""
    layers = {x.name: x for x in shape.linears if x.name in adapted}
    kept = sum(_FLOAT * rank * x.count for x in layers.values())
    if size == _FLOAT:
        read = {_SHARED.get(name, name): x.inputs * x.count for name, x in layers.items() if name != "o_proj"}
    else:
        read = {name: x.inputs * x.count for name, x in layers.items()}
    return (kept + _FLOAT * sum(read.values())) // max(1, shape.layers)


def _norm_bytes(shape: ModelShape, size: int, adapted: Collection[str] | None) -> int:
    return shape.hidden * (_FLOAT + (2 * size if adapted is None else 0))


def _prefill_bytes(shape: ModelShape, config: GRPOConfig, size: int) -> int:
    """Return what a full pass over prompts needs: one block's widest tensors, the mask, and logits to draw from."""
    live = min(config.slots, config.groups_per_update * config.num_generations)
    tokens = max(config.max_episode_tokens, min(_PREFILL_TOKENS, live * config.max_episode_tokens))
    widest = size * (3 * shape.intermediate + 4 * shape.hidden)
    return tokens * (widest + (1 + size) * config.max_episode_tokens) + 16 * shape.vocabulary * live
