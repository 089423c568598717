"""What a trainer gives to an engine that keeps weights of its own, and whether the engine then samples with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trajgym.errors import ConfigError, EnvironmentFault
from trajgym.policies.turns import TurnSampler

__all__ = ["adapters", "check_agreement", "checkpoint_weights", "gap"]

LARGEST_GAP = 0.5
"""Mean |log π of the trainer − log π of the engine| in nats per token from which on they are two models. Rounding to
bfloat16 makes some hundredths."""

_PROBE, _TURN = 12, 8  # tokens of the probe's prompt, and of its turn


def adapters(model: Any) -> bool:
    """Return whether what is trained of a model are peft's adapters."""
    return hasattr(model, "get_base_model")


@torch.no_grad()
def checkpoint_weights(model: Any) -> list[tuple[str, Tensor]]:
    """Return a model's weights under the names that its checkpoint files have, a tied one under each of its names.

    A checkpoint would hold a tied one once, but an engine may keep a copy of its own for each use, packed for a kernel:
    vLLM does on a CPU, and packs anew what it is given by name.

    Of a model with low-rank adapters, ``W + (α/r)·BA`` stands in W's place; the model itself stays as it is. Other
    weights are not copied.

    Raises:
        ConfigError: For adapters that are more than that, and for frozen weights that are no numbers of their own.
    """
    base = model.get_base_model() if adapters(model) else model
    adapted = any(".lora_" in name for name, _ in base.named_parameters())
    low_rank = dict(_low_rank(base)) if adapted else {}
    weights: dict[str, Tensor] = {}
    for name, parameter in base.named_parameters(remove_duplicate=False):
        module, _, kind = name.rpartition(".")
        owner = module.removesuffix(".base_layer")
        if any(part in name for part in (".lora_", ".modules_to_save.", ".original_module.")):
            continue
        if not parameter.is_floating_point():
            raise ConfigError(
                f"The weights of {name} have few bits ({parameter.dtype}), and an adapter cannot be added to them. "
                "Load the model without quantization, or sample with hf."
            )
        value = parameter.detach()
        if owner in low_rank and kind == "weight":
            value = (value.float() + low_rank[owner].float()).to(value.dtype)
        weights[f"{owner}.{kind}" if owner else kind] = value
    return list(_as_saved(base, weights).items())


def gap(model: Any, prompt: Sequence[int], ids: Sequence[int], logprobs: Sequence[float], temperature: float) -> float:
    """Return the mean distance of a turn's log-probabilities from the model's own, in nats per token.

    Args:
        model: On whichever device it is.
        prompt: The tokens before the turn.
        ids: The turn.
        logprobs: What the engine says of each of its tokens.
        temperature: Divides the logits; 0 counts as 1.

    Returns:
        Not a number where the model's own log-probabilities are none.
    """
    device = next(model.parameters()).device
    tokens = torch.tensor([[*prompt, *ids]], device=device)
    with torch.no_grad(), _evaluating(model):
        logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    own = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    chosen = own.gather(1, tokens[0, len(prompt) :, None])[:, 0].cpu()
    return float((chosen - torch.tensor(logprobs)).abs().mean())


def check_agreement(sampler: TurnSampler, model: Any, *, temperature: float, vocabulary: int, advice: str) -> float:
    """Let the engine write a few tokens, and compare what it says of them with the model; return the distance in nats.

    Args:
        sampler: Without open streams.
        model: What the engine should sample with.
        temperature: The sampler's.
        vocabulary: Number of token ids.
        advice: What to look at where they are two models.

    Raises:
        ConfigError: When they are two models, or the engine's log-probabilities are not those of the temperature.
        EnvironmentFault: When there is no turn to compare.
    """
    prompt = [(7919 * (k + 1)) % vocabulary for k in range(min(_PROBE, max(1, sampler.max_length // 2)))]
    budget = min(_TURN, sampler.max_length - len(prompt))
    stream = sampler.open(prompt, seed=0)
    try:
        sampler.generate(stream, max_new_tokens=budget)
        turns = sampler.step()
        while not turns:
            turns = sampler.step()
    finally:
        sampler.close(stream)
    turn = turns[0]
    if turn.error is not None:
        if isinstance(turn.error, EnvironmentFault):
            raise turn.error
        raise EnvironmentFault(
            f"The engine did not answer after an update of its weights: {turn.error}"
        ) from turn.error
    found = gap(model, prompt, turn.ids, turn.logprobs, temperature)
    if math.isnan(found) or found <= LARGEST_GAP:
        return found  # where numbers are none, the turns of the rollout will say so
    if temperature not in (0.0, 1.0) and gap(model, prompt, turn.ids, turn.logprobs, 1.0) < found / 4:
        raise ConfigError(
            f"The engine's log-probabilities are those of temperature 1, and not of the sampling temperature "
            f"{temperature:g}. Start it with --logprobs-mode processed_logprobs, or sample at temperature 1."
        )
    raise ConfigError(
        f"The engine's log-probabilities are {found:.2f} nats per token away from the trainer's (at most "
        f"{LARGEST_GAP} may come from rounding), so it samples from another model. {advice}"
    )


def _low_rank(base: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield what adapters add to the weight of each layer."""
    from peft.tuners.lora import Linear
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    for name, module in base.named_modules():
        if isinstance(module, AuxiliaryTrainingWrapper) or (
            isinstance(module, BaseTunerLayer) and (not isinstance(module, Linear) or any(module.use_dora.values()))
        ):
            raise ConfigError(
                f"The adapter of {name} ({type(module).__name__}) cannot be added to a weight for the engine, only "
                "plain LoRA on linear layers. Sample with hf."
            )
        if isinstance(module, Linear) and not module.merged and not module.disable_adapters:
            deltas: Iterable[Tensor] = [module.get_delta_weight(active) for active in module.active_adapters]
            yield name, torch.stack([delta.float() for delta in deltas]).sum(0)


def _as_saved(model: Any, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Undo what transformers renamed and fused when it read the checkpoint, where it did."""
    from transformers.core_model_loading import revert_weight_conversion

    saved: dict[str, Tensor] = revert_weight_conversion(model, weights)
    return saved


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
