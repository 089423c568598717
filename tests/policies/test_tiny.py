"""The embedded model's tokenizer and architecture, built small from a handful of dialogues."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from trajgym.policies.render import Renderer
from trajgym.policies.tiny import build_model, build_tokenizer
from trajgym.types import Message

FRAME = '\n{"name": "calculator", "arguments": {"expression": "'
CALL = f'<tool_call>{FRAME}48+24"}}}}\n</tool_call>'
TEXTS = [
    "system\n", "user\n", "assistant\n", "tool\n", CALL, "#### 72", "Nora has 48 marbles and 24 more.",
    "Tools:\ncalculator(expression: string)\nEnd with #### and the number.",
] * 20  # fmt: skip

any_text = st.lists(
    st.text()
    | st.sampled_from(
        [CALL, "<tool_call", "</tool_call>", "<|im_end|>", "<|im_", "👩‍🚀", "日本", "\u0301e", " \t\n", "0123"]
    )
).map("".join)
contents = st.text(max_size=12) | any_text


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(TEXTS)


@pytest.fixture(scope="module")
def renderer(tokenizer: PreTrainedTokenizerFast) -> Renderer:
    return Renderer(tokenizer)


def pieces(tokenizer: Any, text: str) -> list[str]:
    return [tokenizer.decode([i]) for i in tokenizer.encode(text)]


@given(any_text)
def test_any_text_comes_back(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.integers(0, 10**12), st.sampled_from(["", " ", "$", "x", "-"]))
def test_every_digit_is_a_token_of_its_own(tokenizer: PreTrainedTokenizerFast, number: int, before: str) -> None:
    found = pieces(tokenizer, f"{before}{number}.5 and {number}")
    assert [p for p in found if any(c.isdigit() for c in p)] == list(f"{number}5{number}")


def test_the_frame_of_a_call_is_one_token_on_either_side(tokenizer: PreTrainedTokenizerFast) -> None:
    assert pieces(tokenizer, CALL) == ["<tool_call>", FRAME, "4", "8", "+", "2", "4", '"}}\n', "</tool_call>"]


def test_tags_are_text_and_control_tokens_are_not(tokenizer: PreTrainedTokenizerFast) -> None:
    for text, left in [("<tool_call>a</tool_call>",) * 2, ("<|im_start|>a<|im_end|><|endoftext|>", "a")]:
        ids = tokenizer.encode(text)
        assert len(ids) == text.count(">") + 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == left
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert tokenizer.eos_token_id != tokenizer.pad_token_id


def test_the_same_texts_give_the_same_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    def backend(t: Any) -> Any:
        return json.loads(t.backend_tokenizer.to_str())

    assert backend(build_tokenizer(TEXTS)) == backend(tokenizer)
    small = build_tokenizer(TEXTS, vocab_size=260)
    assert len(small) == 260 + 2  # the two tags come on top
    assert len(tokenizer) > len(small)


def test_a_saved_one_is_the_same(tokenizer: PreTrainedTokenizerFast, tmp_path: Any) -> None:
    tokenizer.save_pretrained(tmp_path)
    again = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = f"{CALL} 👩‍🚀 <|im_end|>"
    assert again.encode(text) == tokenizer.encode(text)
    assert again.chat_template == tokenizer.chat_template


def test_the_template_is_chatml(tokenizer: PreTrainedTokenizerFast) -> None:
    dialogue = [{"role": "user", "content": "48 + 24?"}, {"role": "assistant", "content": "#### 72"}]
    text = "<|im_start|>user\n48 + 24?<|im_end|>\n<|im_start|>assistant\n#### 72<|im_end|>\n"
    assert tokenizer.apply_chat_template(dialogue, tokenize=False) == text
    asked = tokenizer.apply_chat_template(dialogue[:1], tokenize=False, add_generation_prompt=True)
    assert asked == text.partition("#### 72")[0]


@settings(max_examples=50, deadline=None)
@given(contents, st.lists(st.tuples(contents, contents), max_size=3), contents)
def test_a_dialogue_only_ever_grows(renderer: Renderer, ask: str, turns: list[tuple[str, str]], answer: str) -> None:
    assert renderer.append_only
    messages = [Message("system", "Be brief."), Message("user", ask)]
    ids = renderer.prompt(messages)
    for said, heard in turns:
        ids += [*renderer.turn(said), renderer.end_id, *renderer.bridge([Message("tool", heard)], ended=True)]
        messages += [Message("assistant", said), Message("tool", heard)]
        assert ids == renderer.prompt(messages)
    ids += [*renderer.turn(answer), renderer.end_id]
    assert renderer.one_shot([*messages, Message("assistant", answer)])[: len(ids)] == ids
    assert renderer.decode(renderer.turn(answer)) == answer


def test_the_model_is_small_and_its_weights_come_from_the_seed(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    model, again, other = (build_model(tokenizer, width=32, layers=1, seed=s) for s in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    for a, b, c in zip(model.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.dim() < 2 or not torch.equal(a, c)  # the norms' scales all start at 1
    assert model(torch.tensor([tokenizer.encode(CALL)])).logits.shape[-1] == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id


def test_the_size_that_ships_has_under_a_million_weights(tokenizer: PreTrainedTokenizerFast) -> None:
    full = build_model(tokenizer).num_parameters() + (1026 - len(tokenizer)) * 128  # with the whole vocabulary
    assert 500_000 < full < 1_000_000
