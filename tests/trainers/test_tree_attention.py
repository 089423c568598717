"""Which models run on trees, and which are found out."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from trajgym.trainers import tree_attention
from trajgym.trainers.batch import make_batch
from trajgym.trainers.models import load_model, token_logprobs
from trajgym.trainers.tree_attention import why_not_shared
from trajgym.types import Action, Observation, Step, Task, TokenStream, Trajectory

VOCAB = 40
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
FALCON = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}


def build(kind: str, options: dict[str, Any]) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**options)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def gradient(model: Any, share: bool) -> Tensor:
    rng = random.Random(0)
    prompt = [rng.randrange(3, VOCAB) for _ in range(9)]
    played = []
    for _ in range(4):
        ids = (*prompt, *(rng.randrange(3, VOCAB) for _ in range(rng.randrange(2, 12))))
        marks = (-1,) * 9 + (0,) * (len(ids) - 9)
        row = TokenStream(ids, tuple(int(t >= 0) for t in marks), marks, (0.0,) * len(ids))
        played.append(Trajectory(Task("t", "", ""), (), (Step(Action(""), Observation()),), (row,)))
    credit = [[1.0], [-0.5], [0.3], [2.0]]
    (micro,) = make_batch(played, credit, normalizer=1.0, pad_id=0, max_tokens=10**6, share=share).micro
    model.zero_grad()
    (token_logprobs(model, micro, 1.0)[0] * micro.advantages).sum().backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Llama", SIZES),
        ("Qwen2", SIZES),
        ("Qwen3", SIZES | {"head_dim": 8}),
        ("Qwen3Moe", SIZES | {"head_dim": 8, "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}),
        ("Mistral", SIZES | {"sliding_window": 32}),  # wider than any row
        ("Gemma3Text", SIZES | {"head_dim": 8, "sliding_window": 32}),
        ("Phi3", SIZES),
        ("Cohere", SIZES),
        ("GPTNeoX", {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}),
        ("GPT2", GPT2 | ENDS),  # learned positions
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_that_is_let_through_has_the_gradient_of_separate_rows(kind: str, options: dict[str, Any]) -> None:
    model = build(kind, options)
    assert why_not_shared(model, 24) == ""
    rows, tree = gradient(model, False), gradient(model, True)
    differ = float((tree - rows).norm() / rows.norm())
    assert differ < 1e-5


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("Mistral", SIZES | {"sliding_window": 8}, "sliding_window of 8 tokens is shorter than a row may be"),
        ("Falcon", FALCON | {"alibi": True}, "a pass over a tree"),
        ("Falcon", FALCON | {"alibi": False}, "a pass over a tree gives other numbers than separate rows"),
        ("Lfm2", SIZES | {"layer_types": ["conv", "full_attention"]}, r"some layers are no attention \(conv\)"),
        ("Llama4Text", SIZES | {"attn_temperature_tuning": True}, "counts positions by itself"),
    ],
)
def test_a_model_that_cannot_is_found_out(kind: str, options: dict[str, Any], reason: str) -> None:
    import re

    assert re.search(reason, why_not_shared(build(kind, options), 24))


def test_another_attention_is_not_ours_to_replace() -> None:
    import transformers

    config = transformers.LlamaConfig(**SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    assert why_not_shared(model, 24) == "the model's attention is 'eager', not 'sdpa'"


def test_layers_that_mix_neighbours_are_found_without_a_name() -> None:
    model = build("Llama", SIZES)
    model.model.layers[0].mixer = torch.nn.Conv1d(4, 4, 3)
    assert why_not_shared(model, 24) == "some layers mix neighbouring tokens"


def test_a_wrong_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model that loses the positions, or the tree, would do."""
    model, _ = load_model("tiny")
    assert why_not_shared(model, 24) == ""
    real = tree_attention.run_tree

    def without_positions(model: Any, tree: Any, **more: Any) -> Any:
        from dataclasses import replace

        return real(model, replace(tree, positions=torch.arange(tree.ids.numel())[None]), **more)

    monkeypatch.setattr(tree_attention, "run_tree", without_positions)
    assert "gives other numbers" in why_not_shared(model, 24)

    def without_tree(model: Any, tree: Any, **more: Any) -> Any:
        return model(input_ids=tree.ids, position_ids=tree.positions, use_cache=False, **more)

    monkeypatch.setattr(tree_attention, "run_tree", without_tree)
    assert "gives other numbers" in why_not_shared(model, 24)


def test_damaged_weights_are_not_taken_for_a_model_that_can() -> None:
    model = build("Llama", SIZES)
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    assert why_not_shared(model, 24) == "the numbers are not finite"


def test_a_layer_with_a_narrow_window_refuses_a_long_row() -> None:
    """Also where the model was let through for shorter ones."""
    model = build("Mistral", SIZES | {"sliding_window": 16})
    assert why_not_shared(model, 16) == ""
    with pytest.raises(Exception, match="a layer sees 16 tokens, and a row has"):
        gradient(model, True)


def test_ordinary_passes_are_what_they_were() -> None:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model, _ = load_model("tiny")
    ids = torch.arange(20, 52).view(2, 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", sdpa_attention_forward)
        before = model(input_ids=ids).logits
    why_not_shared(model, 24)
    assert torch.equal(model(input_ids=ids).logits, before)
