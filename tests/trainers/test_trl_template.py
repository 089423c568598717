"""What TRL reads back of calls that a template was made to write."""

from __future__ import annotations

from typing import Any

import pytest

from trajgym.errors import TemplateError
from trajgym.policies import tiny_path
from trajgym.protocols import get_protocol
from trajgym.types import ToolCall

pytest.importorskip("trl")

from transformers import AutoTokenizer
from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response, supports_tool_calling

from trajgym.trainers.trl_template import ready_tokenizer

CALLS = [ToolCall("calculator", {"expression": "48+24"}), ToolCall("pick", {"row": 3, "words": ["ä", '"']})]


@pytest.fixture
def tiny() -> Any:
    return AutoTokenizer.from_pretrained(tiny_path())


def dialogue(content: str) -> list[dict[str, Any]]:
    asked = [{"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}} for c in CALLS]
    return [
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": content, "tool_calls": asked},
        {"role": "tool", "name": "calculator", "content": "72"},
    ]


def test_plain_chatml_learns_to_write_and_read_calls(tiny: Any) -> None:
    assert not supports_tool_calling(tiny)
    ready = ready_tokenizer(tiny)
    assert supports_tool_calling(ready)
    assert is_chat_template_prefix_preserving(ready)
    text = ready.apply_chat_template(dialogue("Let me see."), tokenize=False, add_generation_prompt=True)
    turn = "Let me see.\n" + "\n".join(map(get_protocol("hermes").render, CALLS))
    assert f"<|im_start|>assistant\n{turn}<|im_end|>\n<|im_start|>tool\n72<|im_end|>\n<|im_start|>assistant\n" in text
    parsed = parse_response(ready, ready(turn + "<|im_end|>")["input_ids"], prefix=ready(text)["input_ids"])
    assert parsed["content"].strip() == "Let me see."
    assert [c["function"] for c in parsed["tool_calls"]] == [
        {"name": c.name, "arguments": dict(c.arguments)} for c in CALLS
    ]


def test_without_calls_nothing_changes(tiny: Any) -> None:
    ready = ready_tokenizer(tiny)
    messages = [{"role": r, "content": r[::-1]} for r in ("system", "user", "assistant", "tool", "assistant")]
    for generation in (False, True):
        args: dict[str, Any] = {"add_generation_prompt": generation}
        assert ready.apply_chat_template(messages, **args) == tiny.apply_chat_template(messages, **args)
    assert tiny.chat_template == AutoTokenizer.from_pretrained(tiny_path()).chat_template
    assert ready_tokenizer(ready) is ready


@pytest.mark.parametrize("text", ['<tool_call>{"name": ', '<tool_call>{"arguments": {}}</tool_call>', "#### 72"])
def test_what_is_no_call_is_text(text: str, tiny: Any) -> None:
    ready = ready_tokenizer(tiny)
    parsed = parse_response(ready, ready(text + "<|im_end|>")["input_ids"], prefix=[])
    assert "tool_calls" not in parsed
    assert parsed["content"] == text


def test_templates_that_trl_knows(tiny: Any) -> None:
    from trl.chat_template_utils import qwen3_chat_template

    tiny.chat_template = qwen3_chat_template
    ready = ready_tokenizer(tiny)
    assert ready.chat_template == qwen3_chat_template
    assert ready.response_template is not None


def test_a_hermes_template_that_trl_does_not_know(tiny: Any) -> None:
    tiny.chat_template = ready_tokenizer(tiny).chat_template + "{# ours #}"
    ready = ready_tokenizer(tiny)
    assert ready.chat_template == tiny.chat_template
    assert ready.response_template["start_anchor"] == "<|im_start|>assistant\n"


def test_other_forms_are_refused(tiny: Any) -> None:
    tiny.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}Action: {{ c.function.name }}\n"
        "Action Input: {{ c.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    with pytest.raises(TemplateError, match="'react'"):
        ready_tokenizer(tiny)


def test_templates_that_drop_the_tools_answers(tiny: Any) -> None:
    tiny.chat_template = tiny.chat_template.replace(
        "message['content']", "message['content'] if message.role != 'tool' else ''"
    )
    with pytest.raises(TemplateError, match="tool messages"):
        ready_tokenizer(tiny)
