"""The embedded model: under a million parameters, made from nothing, small enough to ship and to train on a laptop.

Its tokenizer is byte-level, so it can carry any text; every digit is a token of its own, since a model this small
learns to copy numbers digit by digit, and the frame of a JSON call is one piece, since it learns nothing from that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["build_model", "build_tokenizer"]

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TAGS = ("<tool_call>", "</tool_call>")

# Pieces that no merge crosses: the frame of a call, single digits, words, punctuation, blanks.
_PIECES = (
    r'\n\{"name": "[a-z_]+", "arguments": \{"[a-z_]+": "|"\}\}\n'
    r"|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"
)

# ChatML, the simplest template that only ever appends.
_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with single-digit tokens and a ChatML template.

    Args:
        texts: What it shall be good at.
        vocab_size: Number of tokens, the 256 bytes included.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in _SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in _TAGS])
    pad, _, end = _SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        pad_token=pad,
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, *, width: int = 128, layers: int = 4, seed: int = 0) -> Any:
    """Return a small Llama with random weights drawn from ``seed``.

    Args:
        tokenizer: Gives the vocabulary.
        width: Hidden size; the heads are 32 wide.
        layers: Number of layers.
        seed: Seed of the weights.
    """
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
