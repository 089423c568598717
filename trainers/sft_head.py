"""The head over the vocabulary in supervised training, applied to the tokens that are trained and to no others.

Where there is no Triton, TRL applies the head to every position, prompts and padding too, and throws most of it away:
more than half of a step's time with dialogues on a CPU.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from trl.trainer.utils import FusedCausalLMOutput

from trajgym.trainers.token_logprobs import chosen_logprobs, plain_head

__all__ = ["add_chosen_head"]

_IGNORED = -100  # the label of a token that is not trained, as transformers has it


def add_chosen_head(model: Any) -> None:
    """Let a model answer TRL's calls for log-probabilities with those of the trained tokens; 0 stands elsewhere.

    Models whose logits are more than ``head(last hidden state)`` are left as they are.

    Args:
        model: With adapters or without, after TRL has given it its own head.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if plain_head(base) is None:
        return
    inner = base.forward.__func__  # unbound, so that a copy of the model computes with its own weights

    @functools.wraps(inner)
    def forward(self: Any, *args: Any, fused_lm_head: bool = False, labels: Any = None, **kwargs: Any) -> Any:
        if not fused_lm_head or labels is None or kwargs.get("output_router_logits"):
            # TRL's own wrapper tells an absent argument from one that is None no better.
            return inner(self, *args, fused_lm_head=fused_lm_head, labels=labels, **kwargs)
        kwargs["use_cache"] = False
        head = self.get_output_embeddings()
        states = self.get_decoder()(*args, **kwargs).last_hidden_state[:, :-1]
        mask = labels[:, 1:] != _IGNORED
        found = chosen_logprobs(states[mask].to(head.weight.dtype), head, labels[:, 1:][mask])
        # Scattered into zeros, a batch without trained tokens still has a gradient, which is zero.
        logp, entropy, best = (part.new_zeros(mask.shape).masked_scatter(mask, part) for part in found)
        return FusedCausalLMOutput(log_probs=logp, entropy=entropy, is_top1=best, label_mask=mask)

    base.forward = types.MethodType(forward, base)
