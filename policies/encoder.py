"""Text to token ids in which nothing that a tool or a user wrote can become a control token.

A control token is any added token of the tokenizer (``<|im_end|>``, ``<think>``, ``<tool_call>``, …). Before a
chat template runs, each control string in a content is *spelled*: its UTF-8 bytes become private-use characters, which
a template carries along but no tokenizer knows. Afterwards the control tokens that are left in the text are those
the template wrote itself; the text between them is spelled back and encoded by a copy of the tokenizer that has
no added tokens, so that the strings come out as ordinary characters.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer

from trajgym.errors import TemplateError

__all__ = ["SafeEncoder"]

_BYTES = 0xF0000  # U+F0000 + b spells the byte b; template.py uses U+F0100 and U+F0101 to mark its slots
_PRIVATE = re.compile("[\U000f0000-\U000f01ff]+")
_SPELLED = re.compile("[\U000f0000-\U000f00ff]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


def _spell(text: str) -> str:
    return "".join(chr(_BYTES + byte) for byte in text.encode())


def _unspell(text: str) -> str:
    def back(match: re.Match[str]) -> str:
        return bytes(ord(c) - _BYTES for c in match[0]).decode(errors="replace")

    return _SPELLED.sub(back, text)


class SafeEncoder:
    """Encodes rendered dialogues; built once per tokenizer.

    Args:
        tokenizer: A ``PreTrainedTokenizerFast``. It is copied: neither its truncation nor its padding settings matter.
        call: A call as the model writes it. Special tokens in it count as tags like ``<tool_call>``: those we trust
            may write them.

    Raises:
        TemplateError: When the tokenizer has no fast backend, or builds a special token from ordinary characters.
    """

    def __init__(self, tokenizer: Any, *, call: str = "") -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TemplateError(
                f"{type(tokenizer).__name__} has no backend of the tokenizers library. "
                "Load the tokenizer with AutoTokenizer.from_pretrained(..., use_fast=True)."
            )
        text = backend.to_str()
        spec = json.loads(text)
        # Runs of blanks are added tokens in some vocabularies: ordinary text, though, in any mouth.
        blanks = [token for token in spec["added_tokens"] if token["content"].isspace()]
        self._special = {t["id"]: bool(t["special"]) for t in spec["added_tokens"] if t not in blanks}
        contents = (token["content"] for token in spec["added_tokens"] if token not in blanks)
        self._content = re.compile("|".join(map(re.escape, contents)) or r"(?!)")
        changed = any(token["normalized"] for token in spec["added_tokens"])
        normalizer = (spec["normalizer"] or {}).get("type")
        # Which texts are read as they are written: all, those in ASCII, or none that we know of.
        self._read_as_written = "none" if changed else {None: "all", "NFC": "ascii"}.get(normalizer, "none")
        self._full = _tokenizer(text)
        self._plain = _tokenizer(json.dumps({**spec, "added_tokens": blanks}))
        for token in spec["added_tokens"]:
            if token["special"] and token["id"] in self._plain.encode(token["content"], add_special_tokens=False).ids:
                raise TemplateError(
                    f"The tokenizer builds its special token {token['content']!r} from ordinary characters, so a "
                    "tool could write it. Use a tokenizer whose vocabulary reaches it only as an added token."
                )
        self._special |= {i: False for i, _, _ in self._controls(call)}

    def is_control(self, token_id: int) -> bool:
        """Whether this id is an added token."""
        return token_id in self._special

    def protect(self, text: str, *, special_only: bool = False) -> str:
        """Spell the control tokens of a content, so that :meth:`encode` makes ordinary characters of them.

        Args:
            text: What somebody wrote. A lone surrogate, which no tokenizer can encode, becomes U+FFFD.
            special_only: Leave added tokens that are not special as they are: for text we trust that far.
        """
        text = _PRIVATE.sub(lambda match: _spell(match[0]), _SURROGATE.sub("\ufffd", text))
        while True:  # a spelled token may uncover another one around it
            spans = [(a, b) for i, a, b in self._controls(text) if a < b and (self._special[i] or not special_only)]
            if not spans:
                return text
            for a, b in reversed(spans):
                text = text[:a] + _spell(text[a:b]) + text[b:]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a rendered dialogue; without protected strings, the tokenizer's own."""
        encoding = self._full.encode(text, add_special_tokens=False)
        if not _SPELLED.search(text):
            return list(encoding.ids)
        ids: list[int] = []
        token = char = 0  # where the piece of ordinary text begins
        controls = [k for k, i in enumerate(encoding.ids) if i in self._special]
        for k in [*controls, len(encoding.ids)]:
            a, b = encoding.offsets[k] if k < len(encoding.ids) else (len(text), len(text))
            piece = _unspell(text[char:a])
            # Text without protected strings keeps its ids: exactly what the tokenizer makes of it in context.
            same = piece == text[char:a]
            ids += encoding.ids[token:k] if same else self._plain.encode(piece, add_special_tokens=False).ids
            ids += encoding.ids[k : k + 1]
            token, char = k + 1, b
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids, control tokens written out."""
        return str(self._full.decode(ids, skip_special_tokens=False))

    def _controls(self, text: str) -> list[tuple[int, int, int]]:
        as_written = self._read_as_written == "all" or (self._read_as_written == "ascii" and text.isascii())
        if as_written and not self._content.search(text):
            return []  # seen without encoding it, as for most texts
        encoding = self._full.encode(text, add_special_tokens=False)
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return [(i, a, b) for i, (a, b) in pairs if i in self._special]


def _tokenizer(spec: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(spec)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
