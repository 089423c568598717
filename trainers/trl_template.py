"""Tokenizers whose chat template TRL does not know, made ready for its tool loop.

TRL needs two things of a tokenizer: a chat template that writes calls, and a response template that reads them. It has
both for the templates that it knows by heart; for the others it gives up.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from trajgym.errors import TemplateError
from trajgym.policies.template_protocol import template_protocol

__all__ = ["ready_tokenizer"]

# Put in front of a template that writes contents alone: calls become part of the content, in the hermes form.
_WRITE_CALLS = """\
{%- set turns = namespace(all=[]) -%}
{%- for message in messages -%}
{%- set turn = namespace(text=message.content or '') -%}
{%- for call in message.tool_calls or [] -%}
{%- set asked = call.function or call -%}
{%- set turn.text = turn.text + ('\\n' if turn.text else '') + '<tool_call>\\n'
    + ({'name': asked.name, 'arguments': asked.arguments} | tojson) + '\\n</tool_call>' -%}
{%- endfor -%}
{%- set turns.all = turns.all + [dict(message, content=turn.text, tool_calls=[])] -%}
{%- endfor -%}
{%- set messages = turns.all -%}
"""


def ready_tokenizer(tokenizer: Any) -> Any:
    """Return a tokenizer that TRL's tool loop can work with: itself, or a copy with what was missing.

    A template that writes no calls (such as plain ChatML, the embedded model's) is made to write them as JSON between
    ``<tool_call>`` tags.

    Args:
        tokenizer: A transformers tokenizer with a chat template.

    Raises:
        TemplateError: When the template writes calls in a form that only a response template of its own could read.
    """
    from trl.chat_template_utils import add_response_schema, supports_tool_calling

    if getattr(tokenizer, "response_template", None) is not None and supports_tool_calling(tokenizer):
        return tokenizer
    ready = copy.deepcopy(tokenizer)
    try:
        return add_response_schema(ready)
    except ValueError:  # not one of those that TRL knows
        pass
    form = template_protocol(ready)
    if form is None:
        ready.chat_template = _WRITE_CALLS + ready.chat_template
    elif form != "hermes":
        raise TemplateError(
            f"The chat template writes calls in the form {form!r}, for which TRL needs a response template. Set "
            "tokenizer.response_template (see transformers' documentation on response parsing)."
        )
    if not supports_tool_calling(ready):
        raise TemplateError("The chat template drops tool messages, so TRL's tool loop cannot use it.")
    ready.response_template = _hermes_response(ready)
    return ready


def _hermes_response(tokenizer: Any) -> dict[str, Any]:
    """Say where in a turn of this tokenizer's stand reasoning, calls and text."""
    dialogue = [{"role": "user", "content": "?"}]
    without, with_header = (
        tokenizer.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=generation)
        for generation in (False, True)
    )
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": with_header[len(without) :],
        "fields": {
            "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"},
            "tool_calls": {
                "open": "<tool_call>",
                "close_pattern": r"</tool_call>\s*",
                "content": "json",
                "repeats": True,
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": re.escape(tokenizer.eos_token) + r"\s*", "content": "text"},
        },
    }
