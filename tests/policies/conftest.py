"""Small tokenizers to render with, made here; the real ones are in the conftest above this folder."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable, Sequence
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
# How the larger families of models frame a dialogue and write calls, in templates of our own.
_CALL = "{% set f = m.tool_calls[0].function %}"
_PROMPT = "{% if add_generation_prompt %}"
_TOOLS = "{% if tools %}Tools: {{ tools | tojson }}\n{% endif %}"
FAMILIES = {
    "hermes": (
        _TOOLS + "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}" + _CALL +
        "<tool_call>\n{{ {'name': f.name, 'arguments': f.arguments} | tojson }}\n</tool_call>{% endif %}<|im_end|>\n"
        "{% endfor %}" + _PROMPT + "<|im_start|>assistant\n{% endif %}"
    ),
    "qwen3_coder": (
        _TOOLS + "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}" + _CALL +
        "<tool_call>\n<function={{ f.name }}>\n{% for key, value in f.arguments.items() %}<parameter={{ key }}>\n"
        "{{ value }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endif %}<|im_end|>\n{% endfor %}"
        + _PROMPT + "<|im_start|>assistant\n{% endif %}"
    ),
    "llama3_json": (
        "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}"
        "<|end_header_id|>\n\n{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}"
        "{% endif %}" + _CALL + "{{ {'name': f.name, 'parameters': f.arguments} | tojson }}"
        "{% else %}{{ m.content | trim }}{% endif %}<|eot_id|>{% endfor %}"
        + _PROMPT + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    # Knows a tool's answer only behind a call of its own writing, and by an id of nine characters.
    "mistral": (
        "<s>{% set ns = namespace(user=true) %}{% for m in messages if m.role != 'system' %}"
        "{% if m.role == 'tool' %}"
        "{% if (m.tool_call_id or '') | length != 9 %}{{ raise_exception('bad id') }}{% endif %}"
        "[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% else %}{% if not m.tool_calls %}"
        "{% if (m.role == 'user') != ns.user %}{{ raise_exception('must alternate') }}{% endif %}"
        "{% set ns.user = not ns.user %}{% endif %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
        "{% elif m.tool_calls %}" + _CALL +
        "[TOOL_CALLS] [{{ {'name': f.name, 'arguments': f.arguments, 'id': m.tool_calls[0].id} | tojson }}]</s>"
        "{% else %}{{ m.content }}</s>{% endif %}{% endif %}{% endfor %}"
        + _PROMPT + "{% if ns.user %}{{ raise_exception('nobody asked') }}{% endif %}{% endif %}"
    ),
    # Wants arguments as JSON, and writes no header behind a tool's answer.
    "deepseek": (
        "<｜begin▁of▁sentence｜>{% set ns = namespace(tool=false) %}{% for m in messages %}"
        "{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}<｜User｜>{{ m.content }}"
        "{% elif m.role == 'tool' %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>"
        "{% elif m.tool_calls %}" + _CALL +
        "{{ '<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>' + f.name + '\n```json\n'"
        " + f.arguments + '\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}"
        "{% else %}{{ '' if ns.tool else '<｜Assistant｜>' }}{{ m.content }}<｜end▁of▁sentence｜>{% endif %}"
        "{% set ns.tool = m.role == 'tool' %}{% endfor %}"
        + _PROMPT + "{{ '' if ns.tool else '<｜Assistant｜>' }}{% endif %}"
    ),
    "pythonic": (
        _TOOLS + "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{% if m.tool_calls %}"
        + _CALL + "[{{ f.name }}({% for key, value in f.arguments.items() %}{{ key }}={{ value | tojson }}"
        "{{ '' if loop.last else ', ' }}{% endfor %})]{% else %}{{ m.content }}{% endif %}<|eot_id|>{% endfor %}"
        + _PROMPT + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "nobody reads it": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}" + _CALL +
        "please run {{ f.name }} with {{ f.arguments.values() | join(' and ') }}{% endif %}<|im_end|>\n{% endfor %}"
        + _PROMPT + "<|im_start|>assistant\n{% endif %}"
    ),
}  # fmt: skip
_CONTROL = re.compile(r"<[|｜][^\s<>'\"{}]+[|｜]>|\[/?[A-Z_]{4,}\]|</?s>")


def family_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A tokenizer of one of the families: every control string of its template is a special token."""
    template = FAMILIES[name]
    return small_tokenizer(template, special=tuple(dict.fromkeys(_CONTROL.findall(template))))


def small_tokenizer(
    template: str | None = CHATML, *, special: Sequence[str] = (), **changes: Any
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 400 pieces that knows the control tokens of several model families."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS * 3, trainer)
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in (*SPECIAL, *special)])
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
def family() -> Callable[[str], PreTrainedTokenizerFast]:
    return functools.cache(family_tokenizer)


@pytest.fixture(scope="session")
def template_of() -> Callable[[str], str]:
    return published_template
