from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from trajgym.policies.decode import Decoder, find_decoder
from trajgym.policies.hf import HFSampler
from trajgym.policies.kv import Pass, RowCache

VOCABULARY = 53
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}


def llama(**changes: Any) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes})).eval()


def qwen3(**changes: Any) -> Any:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**{**SIZES, "head_dim": 16, **changes})).eval()


MODELS: dict[str, Callable[[], Any]] = {
    "llama": llama,
    "llama, every head its own keys": lambda: llama(num_key_value_heads=4),
    "llama, one head of keys": lambda: llama(num_key_value_heads=1),
    "llama, biases and stretched positions": lambda: llama(
        attention_bias=True,
        mlp_bias=True,
        rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    ),
    "llama, untied in float64": lambda: llama(tie_word_embeddings=False).double(),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)).eval(),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval(),
    "qwen3": qwen3,
}


def filled(model: Any, lengths: list[int]) -> RowCache:
    """Return a cache with so many random tokens in each row."""
    cache = RowCache(len(lengths), 100)
    longest = max(lengths)
    positions = torch.arange(longest).expand(len(lengths), longest)
    valid = positions < torch.tensor(lengths)[:, None]
    plan = Pass(torch.arange(len(lengths)), positions, valid, 0)
    cache.begin(plan, longest)
    tokens = torch.randint(VOCABULARY, (len(lengths), longest), generator=torch.Generator().manual_seed(4))
    model(input_ids=tokens, attention_mask=plan.visible(), position_ids=positions, use_cache=True, cache=cache)
    return cache


@pytest.mark.parametrize("name", MODELS)
def test_the_logits_are_those_of_the_models_own_forward(name: str) -> None:
    model = MODELS[name]()
    lengths = [9, 2, 17]
    tokens = torch.tensor([[5], [7], [11]])
    positions = torch.tensor(lengths)[:, None]
    plan = Pass(None, positions, torch.ones_like(positions, dtype=torch.bool), max(lengths) + 1)
    with torch.inference_mode():
        theirs, ours = filled(model, lengths), filled(model, lengths)
        theirs.begin(plan, plan.width)
        mask = plan.visible()
        expected = model(
            input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=True, cache=theirs
        ).logits[:, -1]
        ours.begin(plan, plan.width)
        decoder = find_decoder(model)
        assert decoder is not None
        found = decoder(tokens, plan, ours)
        assert expected.std() > 0.1
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        for layer in range(len(model.model.layers)):  # and so is what the next token will see
            for a, b in zip(ours._buffers[layer], theirs._buffers[layer], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_several_tokens_of_different_rows_are_read_in_one_pass(name: str) -> None:
    model = MODELS[name]()
    rows, lengths = torch.tensor([2, 0]), torch.tensor([17, 9])  # of a cache with three
    tokens = torch.tensor([[0, 5, 7], [11, 13, 17]])  # the first row has two, padded on the left
    positions = torch.tensor([[0, 17, 18], [9, 10, 11]])
    plan = Pass(rows, positions, torch.tensor([[False, True, True], [True, True, True]]), int(lengths.max()) + 2)
    decoder = find_decoder(model)
    assert decoder is not None
    with torch.inference_mode():
        theirs, ours = filled(model, [9, 2, 17]), filled(model, [9, 2, 17])
        theirs.begin(plan, plan.width)
        expected = model(
            input_ids=tokens, attention_mask=plan.visible(), position_ids=positions, use_cache=True, cache=theirs
        ).logits[:, -1]
        ours.begin(plan, plan.width)
        torch.testing.assert_close(decoder(tokens, plan, ours), expected, rtol=1e-5, atol=1e-5)
        for layer in range(len(model.model.layers)):
            for a, b in zip(ours._buffers[layer], theirs._buffers[layer], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_lower_precision_rounds_as_the_model_does() -> None:
    model = llama().to(torch.bfloat16)
    lengths = [6, 3]
    positions = torch.tensor(lengths)[:, None]
    plan = Pass(None, positions, torch.ones_like(positions, dtype=torch.bool), 7)
    tokens = torch.tensor([[5], [7]])
    decoder = find_decoder(model)
    assert decoder is not None
    with torch.inference_mode():
        cache, other = filled(model, lengths), filled(model, lengths)
        cache.begin(plan, 7)
        other.begin(plan, 7)
        expected = model(
            input_ids=tokens, attention_mask=plan.visible(), position_ids=positions, use_cache=True, cache=other
        ).logits[:, -1]
        found = decoder(tokens, plan, cache)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks for the old name
def test_adapters_take_part() -> None:
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"]))
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    wrapped.eval()
    positions = torch.tensor([[4]])
    plan = Pass(None, positions, torch.ones_like(positions, dtype=torch.bool), 5)
    decoder = find_decoder(wrapped)
    assert decoder is not None
    with torch.inference_mode():
        cache = filled(wrapped, [4])
        cache.begin(plan, 5)
        adapted = decoder(torch.tensor([[3]]), plan, cache)
        cache.begin(plan, 5)
        expected = wrapped(
            input_ids=torch.tensor([[3]]),
            attention_mask=plan.visible(),
            position_ids=positions,
            use_cache=True,
            cache=cache,
        ).logits[:, -1]
        with wrapped.disable_adapter():
            cache.begin(plan, 5)
            plain = decoder(torch.tensor([[3]]), plan, cache)
    torch.testing.assert_close(adapted, expected, rtol=1e-5, atol=1e-5)
    assert (adapted - plain).abs().max() > 0.01


class Odd(LlamaForCausalLM):  # type: ignore[misc]
    """Somebody's own class, which may do anything."""


def test_other_models_are_left_to_their_own_forward() -> None:
    assert isinstance(find_decoder(llama()), Decoder)
    assert find_decoder(Odd(LlamaConfig(**SIZES))) is None
    sliding = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}
    assert find_decoder(qwen3(**sliding)) is None
    hooked = llama()
    handle = hooked.model.layers[1].register_forward_pre_hook(lambda module, args: None)
    assert find_decoder(hooked) is None
    handle.remove()
    assert find_decoder(hooked) is not None


def test_an_engine_looks_again_when_it_is_reset() -> None:
    model = llama()
    engine = HFSampler(model, slots=1, max_length=50, stop_ids=())
    calls: list[None] = []
    engine.generate(engine.open([1, 2], seed=0), max_new_tokens=4)
    handle = model.model.layers[0].register_forward_pre_hook(lambda module, args: calls.append(None))
    engine.reset()
    engine.generate(engine.open([1, 2], seed=0), max_new_tokens=4)
    while not engine.step():
        pass
    assert len(calls) == 4
    handle.remove()
