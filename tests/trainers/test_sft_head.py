"""The head on trained tokens alone: TRL's loss, gradient, entropy and accuracy, for less."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from trajgym.trainers.models import add_lora, load_model
from trajgym.trainers.sft_head import add_chosen_head

OUTPUTS = ("log_probs", "entropy", "is_top1")
IDS = torch.tensor([[1, 3, 2, 1, 5, 6, 2, 1, 4, 2], [1, 6, 4, 2, 1, 6, 2, 0, 0, 0]])
LABELS = torch.tensor([[-100, -100, -100, -100, 5, 6, 2, -100, -100, 2], [-100] * 5 + [6, 2, -100, -100, -100]])
INPUTS = {"input_ids": IDS, "attention_mask": (IDS != 0).long(), "labels": LABELS, "use_cache": False}


def models(folder: Path, lora: bool) -> list[Any]:
    """The same model twice: with TRL's head, and with ours upon it."""
    found = []
    for ours in (False, True):
        model, _ = load_model(str(folder))
        add_fused_lm_head(model, outputs=OUTPUTS)
        if lora:
            model = add_lora(model, rank=2, alpha=4, targets=("q_proj", "v_proj"), seed=0)
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(len(name)))
        if ours:
            add_chosen_head(model)
        found.append(model)
    return found


@pytest.mark.parametrize("lora", [False, True])
def test_it_gives_what_trl_gives(digit_model: Path, lora: bool) -> None:
    outputs, gradients = [], []
    for model in models(digit_model, lora):
        output = model(**INPUTS, fused_lm_head=True)
        (-output.log_probs.sum()).backward()
        outputs.append(output)
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    theirs, ours = outputs
    assert torch.equal(ours.label_mask, theirs.label_mask)
    assert int(ours.label_mask.sum()) == 6
    assert ours.is_top1.dtype == theirs.is_top1.dtype == torch.bool
    assert torch.equal(ours.is_top1, theirs.is_top1)
    for name in ("log_probs", "entropy"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), atol=1e-6, rtol=1e-5)
    assert gradients[0].keys() == gradients[1].keys() != set()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-4)


def test_it_is_applied_to_trained_tokens_alone(digit_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    linear = torch.nn.functional.linear
    _, model = models(digit_model, lora=False)
    head = model.get_output_embeddings().weight

    def counted(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if weight is head:
            rows.append(states.shape[:-1].numel())
        return linear(states, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", counted)
    model(**INPUTS, fused_lm_head=True)
    assert rows == [int((LABELS != -100).sum())] == [6]


def test_a_batch_without_trained_tokens_has_a_gradient_of_zero(digit_model: Path) -> None:
    _, model = models(digit_model, lora=False)
    output = model(**(INPUTS | {"labels": torch.full_like(IDS, -100)}), fused_lm_head=True)
    output.log_probs.sum().backward()
    assert all(float(p.grad.abs().max()) == 0.0 for p in model.parameters() if p.grad is not None)


def test_other_calls_are_the_models_own(digit_model: Path) -> None:
    model, _ = load_model(str(digit_model))
    wanted = model(input_ids=IDS, labels=LABELS)
    _, ours = models(digit_model, lora=False)
    got = ours(input_ids=IDS, labels=LABELS)
    torch.testing.assert_close(got.logits, wanted.logits)
    torch.testing.assert_close(got.loss, wanted.loss)
    assert torch.equal(ours(input_ids=IDS).logits, got.logits)


def test_a_copy_computes_with_its_own_weights(digit_model: Path) -> None:
    _, model = models(digit_model, lora=False)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.zero_()
    flat = twin(**INPUTS, fused_lm_head=True)
    vocabulary = model.get_output_embeddings().out_features
    torch.testing.assert_close(flat.log_probs[flat.label_mask], torch.full((6,), -math.log(vocabulary)))
    assert not torch.allclose(flat.log_probs, model(**INPUTS, fused_lm_head=True).log_probs)


def test_in_bfloat16_it_stays_as_near_to_float32_as_trl_does(digit_model: Path) -> None:
    exact = models(digit_model, lora=False)[0](**INPUTS, fused_lm_head=True).log_probs
    distances = []
    for model in models(digit_model, lora=False):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(**INPUTS, fused_lm_head=True)
            loss = -output.log_probs.sum()
        loss.backward()
        assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
        distances.append(float((output.log_probs - exact).detach().abs().max()))
    assert distances[1] <= max(2 * distances[0], 1e-3)


def test_a_model_that_bounds_its_logits_keeps_trls_head() -> None:
    config = Gemma2Config(
        vocab_size=16, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=4, final_logit_softcapping=2.0, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(config).eval()
    add_fused_lm_head(model, outputs=OUTPUTS)
    wanted = model(**INPUTS, fused_lm_head=True).log_probs
    forward = model.forward
    add_chosen_head(model)
    assert model.forward == forward
    torch.testing.assert_close(model(**INPUTS, fused_lm_head=True).log_probs, wanted)
