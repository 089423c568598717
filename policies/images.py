"""Pictures in dialogues: what stands in a message as text is handed to a chat endpoint as a picture.

A picture is a Markdown image with a data address, ``![grid](data:image/png;base64,…)``. So dialogues stay plain text
that can be stored, compared and played again.

>>> with_images([{"role": "user", "content": "Look: ![dot](data:image/png;base64,iVBORw0K)"}])[0]["content"]
[{'type': 'text', 'text': 'Look:'}, {'type': 'image_url', 'image_url': {'url': 'data:image/png;base64,iVBORw0K'}}]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["with_images"]

_IMAGE = re.compile(r"!\[[^\]\n]*\]\((data:image/(?:png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+={0,2})\)")
_BELOW = "(picture below)"


def with_images(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages for a chat endpoint, with the pictures in them as parts of their own.

    Pictures of user messages become parts of their content. Endpoints take none in tool messages, so those of tool
    messages follow in a user message behind the last one of the turn. What an assistant writes stays text, and so does
    everything else.

    Args:
        messages: With ``role`` and ``content``; left as they are.
    """
    out: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message.get("content")
        if waiting and role != "tool":
            out.append({"role": "user", "content": waiting})
            waiting = []
        if role not in ("tool", "user") or not isinstance(content, str) or not _IMAGE.search(content):
            out.append(dict(message))
        elif role == "user":
            out.append({**message, "content": _parts(content)})
        else:
            waiting += [_image(address) for address in _IMAGE.findall(content)]
            out.append({**message, "content": _IMAGE.sub(_BELOW, content)})
    if waiting:
        out.append({"role": "user", "content": waiting})
    return out


def _parts(content: str) -> list[dict[str, Any]]:
    """Cut a text at its pictures; blank texts between them are left out."""
    parts = []
    for i, piece in enumerate(_IMAGE.split(content)):  # every second piece is a picture's address
        if i % 2:
            parts.append(_image(piece))
        elif piece.strip():
            parts.append({"type": "text", "text": piece.strip()})
    return parts


def _image(address: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address}}
