"""The head in chunks, and models whose logits are more than their head's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trajgym.errors import TrainingError
from trajgym.trainers import token_logprobs as module
from trajgym.trainers.batch import MicroBatch, make_batch
from trajgym.trainers.models import add_lora
from trajgym.trainers.token_logprobs import plain_head, token_logprobs
from trajgym.types import Action, Observation, Step, Task, TokenStream, Trajectory

VOCAB = 40
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def build(kind: str, **more: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **more)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():  # logits far from 0, where bounds and scales show
        model.get_output_embeddings().weight.mul_(20.0)
    return model


def micro(*, share: bool, rows: int = 4) -> MicroBatch:
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(3, VOCAB, (6,), generator=generator).tolist()
    played = []
    for k in range(rows):
        ids = prompt + torch.randint(3, VOCAB, (5 + k,), generator=generator).tolist()
        mask = (0,) * 6 + (1, 1, 0) + (1,) * (len(ids) - 9)
        marks = tuple(0 if m else -1 for m in mask)
        row = TokenStream(tuple(ids), mask, marks, (0.0,) * len(ids))
        played.append(Trajectory(Task("t", "", ""), (), (Step(Action(""), Observation()),), (row,)))
    (one,) = make_batch(played, [[1.0]] * rows, normalizer=1.0, pad_id=0, max_tokens=10**6, share=share).micro
    return one


def written_out(model: Any, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """All logits of all positions, as the model gives them."""
    logits = model(input_ids=batch.ids, use_cache=False).logits[:, :-1][batch.policy].float() / temperature
    every = torch.log_softmax(logits, -1)
    return every.gather(-1, batch.ids[:, 1:][batch.policy][:, None])[:, 0], -(every.exp() * every).sum(-1)


def gradients(model: Any, logp: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    (logp * torch.linspace(-1.0, 2.0, len(logp))).sum().backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check(model: Any, batch: MicroBatch, most: float = 1e-4) -> None:
    wanted, spread = written_out(model, batch, 0.7)
    logp, entropy = token_logprobs(model, batch, 0.7)
    assert not entropy.requires_grad
    torch.testing.assert_close(logp, wanted, atol=most, rtol=most)
    torch.testing.assert_close(entropy, spread.detach(), atol=most, rtol=most)
    ours, theirs = gradients(model, logp), gradients(model, wanted)
    assert ours.keys() == theirs.keys()
    for name, grad in theirs.items():
        differ = float((ours[name] - grad).norm() / grad.norm().clamp(min=1e-12))
        assert differ < most, name


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kept", [0, 1 << 28])
@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_chunks_add_up(monkeypatch: pytest.MonkeyPatch, rows: int, kept: int, tied: bool, share: bool) -> None:
    """Whether the logits are kept or computed again, of one token at a time or of all."""
    monkeypatch.setattr(module, "CHUNK_BYTES", rows * VOCAB * 4)
    monkeypatch.setattr(module, "KEPT_BYTES", kept)
    model = build("Llama", tie_word_embeddings=tied)
    assert plain_head(model) is model.lm_head
    check(model, micro(share=share))


def test_no_tensor_is_as_wide_as_the_vocabulary_and_as_long_as_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither computed nor kept: watched at every operation of both passes."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Widest(TorchDispatchMode):  # type: ignore[no-untyped-call]
        found = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, (tuple, list)) else (out,):
                # As many rows as the states are wide: a view of the head's weights.
                if isinstance(x, Tensor) and x.shape[-1:] == (VOCAB,) and len(x) != SIZES["hidden_size"]:
                    Widest.found = max(Widest.found, len(x))
            return out

    monkeypatch.setattr(module, "CHUNK_BYTES", 3 * VOCAB * 4)
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    model, batch = build("Llama", tie_word_embeddings=False), micro(share=True)
    plain_head(model)
    with Widest():  # type: ignore[no-untyped-call]
        token_logprobs(model, batch, 1.0)[0].sum().backward()  # type: ignore[no-untyped-call]
    assert len(batch.places) > 20
    assert Widest.found == 3


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Cohere", {"logit_scale": 0.3}),
        ("Granite", {"logits_scaling": 3.0}),
        ("Granite", {"logits_scaling": 1.0, "embedding_multiplier": 4.0}),
        ("Gemma3Text", {"final_logit_softcapping": 3.0, "head_dim": 8, "sliding_window": 64}),
    ],
)
def test_a_model_that_changes_its_logits_makes_them_itself(kind: str, options: dict[str, Any], share: bool) -> None:
    model = build(kind, **options)
    plain = plain_head(model)
    assert (plain is None) == (options.get("logits_scaling") != 1.0)
    check(model, micro(share=share))


def test_a_head_that_adapters_changed_is_not_plain() -> None:
    model = build("Llama", tie_word_embeddings=False)
    assert plain_head(model) is not None
    adapted = add_lora(model, rank=2, alpha=4, targets=("q_proj", "lm_head"), seed=0)
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.1)
    assert plain_head(adapted) is None
    check(adapted, micro(share=True))


def test_adapters_elsewhere_leave_the_head_plain_and_without_a_gradient() -> None:
    adapted = add_lora(build("Llama"), rank=2, alpha=4, targets=("q_proj",), seed=0)
    assert plain_head(adapted) is not None
    check(adapted, micro(share=True))


def test_a_head_with_a_bias() -> None:
    model = build("Phi")
    assert model.lm_head.bias is not None
    nn.init.normal_(model.lm_head.bias)
    assert plain_head(model) is model.lm_head
    check(model, micro(share=False))
    check(model, micro(share=True))


def test_low_precision_adds_chunks_up_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    exact = build("Llama", tie_word_embeddings=False)
    small = copy.deepcopy(exact).bfloat16()
    batch = micro(share=True, rows=40)
    found = []
    for rows in (1, 10**6):
        monkeypatch.setattr(module, "CHUNK_BYTES", rows * VOCAB * 4)
        found.append(gradients(small, token_logprobs(small, batch, 1.0)[0])["lm_head.weight"].float())
    differ = float((found[0] - found[1]).norm() / found[1].norm())
    assert differ < 4e-3  # one rounding to bfloat16, and not one per token


def test_without_entropy_the_rest_is_the_same() -> None:
    model, batch = build("Llama"), micro(share=True)
    logp, entropy = token_logprobs(model, batch, 1.0)
    alone, nothing = token_logprobs(model, batch, 1.0, False)
    assert torch.equal(logp, alone)
    assert entropy.min() > 0
    assert not nothing.any()


def test_damaged_weights_are_named() -> None:
    model = build("Llama")
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(TrainingError, match="not finite"):
        token_logprobs(model, micro(share=True), 1.0)
