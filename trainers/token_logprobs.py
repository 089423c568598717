"""Log-probabilities of the sampled tokens, and of no others.

Hidden states are gathered where a sampled token is predicted; the head over the vocabulary is applied to those alone,
a chunk at a time. What the backward pass needs of the logits is kept while it is little, and computed again where it is
not: a tensor of all tokens by all words never exists.
"""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trajgym.errors import TrainingError
from trajgym.trainers.batch import MicroBatch
from trajgym.trainers.tree_attention import rows_at, run_tree

__all__ = ["CHUNK_BYTES", "KEPT_BYTES", "chosen_logprobs", "plain_head", "policy_states", "token_logprobs"]

CHUNK_BYTES = 1 << 26
"""Logits that are computed at once, at least one token's."""

KEPT_BYTES = 1 << 28
"""Logits of a micro-batch that are kept for the backward pass; where there would be more, all are computed again."""


def token_logprobs(
    model: Any, batch: MicroBatch, temperature: float, with_entropy: bool = True
) -> tuple[Tensor, Tensor]:
    """Return log π and the entropy (nats) at each policy token under the sampling temperature.

    Padding stands on the right, where causal attention keeps every real token from seeing it; hence no mask.

    Args:
        model: The policy, with adapters or without.
        batch: Some rows, as a tree where the model can.
        temperature: What logits are divided by.
        with_entropy: Whether the entropy is wanted; where not, it is 0.

    Returns:
        ``(logp, entropy)``. Shapes: (N,) each; the entropy carries no gradient.

    Raises:
        TrainingError: When the model gives something that is not a number.
    """
    chosen = batch.ids[:, 1:][batch.policy]
    head = plain_head(model)
    if head is None:
        logp, entropy = _of_logits(_own_logits(model, batch), chosen, temperature)
    else:
        states = policy_states(_base(model).get_decoder(), batch)
        states = states.to(head.weight.dtype)
        logp, entropy, _ = chosen_logprobs(states, head, chosen.to(states.device), temperature, with_entropy)
    if not torch.isfinite(logp).all():
        raise TrainingError(
            "The model gives log-probabilities that are not finite. Its weights are damaged, or the learning rate is "
            "too high; go back to the last checkpoint and lower learning_rate."
        )
    return logp, entropy


def policy_states(decoder: Any, batch: MicroBatch) -> Tensor:
    """Return the last hidden state in front of each policy token. Shape: (N, hidden)."""
    if batch.tree is None:
        states: Tensor = decoder(input_ids=batch.ids, use_cache=False).last_hidden_state
        return states[:, :-1][batch.policy]
    return rows_at(run_tree(decoder, batch.tree).last_hidden_state[0], batch.tree.where)


_HEADS: weakref.WeakKeyDictionary[Any, tuple[Any, bool]] = weakref.WeakKeyDictionary()


def plain_head(model: Any) -> nn.Linear | None:
    """Return the head where logits are ``head(last hidden state)`` and nothing else, or ``None``.

    Some models bound their logits, scale them, or scale what goes into the head. They are found by trying: the head's
    output is replaced by numbers that are known, and these must come out as the logits. Weights that are divided among
    ranks have no head to be called by itself, and hooks on the model or its head would not be set off.
    """
    base = _base(model)
    find = getattr(base, "get_output_embeddings", None)
    head = find() if find is not None else None
    decoder = base.get_decoder() if hasattr(base, "get_decoder") else base
    if type(head) is not nn.Linear or decoder is base or _divided(model):
        return None
    if any(module._forward_hooks or module._forward_pre_hooks for module in (model, base, head)):
        return None
    known, plain = _HEADS.get(base, (None, False))
    if known is not head:
        plain = _is_plain(base, head)
        _HEADS[base] = (head, plain)
    return head if plain else None


def _is_plain(base: Any, head: nn.Linear) -> bool:
    ids = torch.zeros(1, 2, dtype=torch.long, device=head.weight.device)
    numbers = torch.linspace(-500.0, 500.0, 2 * head.out_features, device=head.weight.device).view(1, 2, -1)
    seen: list[Tensor] = []

    def replace(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.append(inputs[0])
        return numbers.to(output.dtype)

    hook = head.register_forward_hook(replace)
    try:
        with torch.no_grad():
            logits = base(input_ids=ids, use_cache=False).logits
            states = base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    finally:
        hook.remove()
    return len(seen) == 1 and torch.equal(seen[0], states) and torch.equal(logits, numbers.to(logits.dtype))


def _own_logits(model: Any, batch: MicroBatch) -> Tensor:
    """Return the logits of policy tokens by the model's own head. Shape: (N, V)."""
    narrow = "logits_to_keep" in inspect.signature(_base(model).forward).parameters
    if batch.tree is not None:
        where = batch.tree.where
        logits: Tensor = run_tree(model, batch.tree, **({"logits_to_keep": where} if narrow else {})).logits[0]
        return logits if narrow else logits[where]
    if not narrow:
        return model(input_ids=batch.ids, use_cache=False).logits[:, :-1][batch.policy]  # type: ignore[no-any-return]
    columns = batch.policy.any(0).nonzero()[:, 0]  # where at least one row has a policy token
    kept: Tensor = model(input_ids=batch.ids, use_cache=False, logits_to_keep=columns).logits
    return kept[batch.policy[:, columns]]


def _of_logits(logits: Tensor, chosen: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    distribution = torch.log_softmax(logits, dim=-1)
    logp = distribution.gather(-1, chosen[:, None])[:, 0]
    with torch.no_grad():
        entropy = -(distribution.exp() * distribution).sum(-1)
    return logp, entropy


def chosen_logprobs(
    states: Tensor, head: nn.Linear, chosen: Tensor, temperature: float = 1.0, with_entropy: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log π of chosen words, the entropy (nats), and whether each is the most probable word.

    Args:
        states: Last hidden states in front of the words, in the head's number format. Shape: (N, hidden).
        head: A plain head over the vocabulary.
        chosen: Ids of the words. Shape: (N,).
        temperature: What logits are divided by.
        with_entropy: Whether entropy and rank are wanted; where not, they are 0 and false.

    Returns:
        ``(logp, entropy, best)``. Shapes: (N,) each; the last two carry no gradient.
    """
    size = torch.promote_types(states.dtype, torch.float32).itemsize * head.out_features
    learns = torch.is_grad_enabled() and (states.requires_grad or head.weight.requires_grad)
    keep = learns and size * len(states) <= KEPT_BYTES
    rows = max(1, CHUNK_BYTES // size)
    logp, entropy, best = _ChosenLogprobs.apply(  # type: ignore[no-untyped-call]
        states, head.weight, head.bias, chosen, temperature, with_entropy, rows, keep
    )
    return logp, entropy, best


class _ChosenLogprobs(torch.autograd.Function):
    """``log softmax((W·s + b)/T)`` at the chosen words, chunk by chunk; ∂/∂logits is ``(1[y] − π)/T``."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        chosen: Tensor,
        temperature: float,
        with_entropy: bool,
        rows: int,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        logps, entropies, bests, kept = [], [], [], []
        for part, words in zip(torch.split(states, rows), torch.split(chosen, rows), strict=True):
            distribution = _log_softmax(part, weight, bias, temperature)
            logps.append(distribution.gather(-1, words[:, None])[:, 0])
            if with_entropy:
                entropies.append(-distribution.exp().mul_(distribution).sum(-1))
                bests.append(distribution.argmax(-1) == words)
            if keep:
                kept.append(distribution)
        logp = torch.cat(logps)
        entropy = torch.cat(entropies) if entropies else torch.zeros_like(logp)
        best = torch.cat(bests) if bests else torch.zeros_like(chosen, dtype=torch.bool)
        ctx.save_for_backward(states, weight, bias, chosen, *kept)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.mark_non_differentiable(entropy, best)
        return logp, entropy, best

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, chosen, *kept = ctx.saved_tensors
        wants_states, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad = grads[0] / ctx.temperature
        to_states = []
        # Chunks are added up in float32 at least: in fewer bits every sum would be rounded anew.
        exact = grad.dtype
        to_weight = torch.zeros_like(weight, dtype=exact) if wants_weight else None
        to_bias = torch.zeros_like(bias, dtype=exact) if wants_bias else None
        parts = zip(*(torch.split(x, ctx.rows) for x in (states, chosen, grad)), strict=True)
        for number, (part, words, g) in enumerate(parts):
            known = kept[number] if kept else _log_softmax(part, weight, bias, ctx.temperature)
            change = known.exp().mul_(-g[:, None])
            change.scatter_add_(-1, words[:, None], g[:, None])
            if to_bias is not None:
                to_bias += change.sum(0)
            change = change.to(weight.dtype)
            if wants_states:
                to_states.append(change @ weight)
            if to_weight is not None and weight.dtype == exact:
                to_weight.addmm_(change.T, part)
            elif to_weight is not None:
                to_weight += change.T @ part
        return (
            torch.cat(to_states) if wants_states else None,
            to_weight.to(weight.dtype) if to_weight is not None else None,
            to_bias.to(bias.dtype) if to_bias is not None else None,
            *(None,) * 5,
        )


def _log_softmax(states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = functional.linear(states, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(logits.div_(temperature), dim=-1)


def _base(model: Any) -> Any:
    """Return the model beneath adapters, which act in its layers all the same."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _divided(model: Any) -> bool:
    from torch.distributed.fsdp import FSDPModule

    return any(isinstance(module, FSDPModule) for module in model.modules())
