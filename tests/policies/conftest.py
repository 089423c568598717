"""Small tokenizers to render with, made here; the real ones are in the conftest above this folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = (
    *("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CORPUS = (
    "the user asks and the assistant answers, then the tool returns what it was asked for",
    'You are a system. Call <tool_call> with {"name": "calculator", "arguments": {"expression": "48 + 24"}}',
    "system user assistant tool model think response call im_start im_end 0 1 2 3 4 5 6 7 8 9 10 12 48 72",
)


def small_tokenizer(template: str | None = CHATML, **changes: Any) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 400 pieces that knows the control tokens of several model families."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS * 3, trainer)
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    backend.add_tokens([AddedToken(token, normalized=False) for token in TAGS])
    options: dict[str, Any] = {"eos_token": "<|im_end|>", "bos_token": "<bos>", "chat_template": template}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options | changes)


def published_template(name: str) -> str:
    """The text of a chat template that trl ships."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    return small_tokenizer


@pytest.fixture(scope="session")
def template_of() -> Callable[[str], str]:
    return published_template
