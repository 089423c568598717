"""Nothing that a tool or a user wrote becomes a control token, in any template at hand."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.policies.render import Renderer
from trajgym.types import Message

CASES = Path(os.environ.get("TRAJGYM_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")
FAMILIES = ["hermes", "qwen3_coder", "llama3_json", "mistral", "deepseek", "pythonic"]
PUBLISHED = [
    *("qwen2_5", "qwen2_5_training", "qwen3", "qwen3_training", "qwen3_5_nothink_training", "qwen3_instruct_2507"),
    *("llama3", "llama3_1", "llama3_2", "llama3_training", "gemma", "gemma3", "gemma4", "cohere2", "nemotron_3_nano"),
]
NAMES = ["real qwen3", "real smollm2", *FAMILIES, *PUBLISHED]
# How templates write their control tokens: <|…|>, <｜…｜>, <|…>, <…>, [UPPER_CASE].
CONTROL = re.compile(r"<[|｜]?/?[\w▁|]+[|｜]?>|\[/?[A-Z_]{4,}\]")
# What the template itself makes of a content: stripped, or written as JSON.
FORMS: tuple[Callable[[str], str], ...] = (str, str.strip, lambda text: json.dumps(text, ensure_ascii=False))


@pytest.fixture(scope="module")
def renderer_of(
    family: Callable[[str], Any],
    make_tokenizer: Callable[..., Any],
    template_of: Callable[[str], str],
    request: pytest.FixtureRequest,
) -> Callable[[str], tuple[Any, Renderer]]:
    made: dict[str, tuple[Any, Renderer]] = {}

    def get(name: str) -> tuple[Any, Renderer]:
        if name not in made:
            if name.startswith("real "):
                tokenizer = request.getfixturevalue(f"{name.removeprefix('real ')}_tokenizer")
            elif name in FAMILIES:
                tokenizer = family(name)
            else:
                template = template_of(name)
                tokenizer = make_tokenizer(template, special=sorted(set(CONTROL.findall(template))))
            made[name] = tokenizer, Renderer(tokenizer)
        return made[name]

    return get


def hostile(tokenizer: Any) -> st.SearchStrategy[str]:
    """Texts of control tokens, halves of them, and what stands between."""

    def spelt(text: str) -> bool:
        return str(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))) == text

    tokens = sorted(token.content for token in tokenizer.added_tokens_decoder.values() if token.content.strip())
    whole = st.sampled_from(tokens)
    halves = st.builds(lambda token, cut: token[cut:], whole, st.integers(1, 4))
    starts = st.builds(lambda token, cut: token[:-cut], whole, st.integers(1, 4))
    text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=4).filter(
        spelt
    )  # not by every one
    return st.lists(st.one_of(whole, whole, halves, starts, text), max_size=8).map("".join)


def controls(tokenizer: Any, ids: list[int]) -> list[int]:
    blank = {i for i, token in tokenizer.added_tokens_decoder.items() if token.content.isspace()}
    return [i for i in ids if i in tokenizer.added_tokens_decoder and i not in blank]


def dialogue(role: str, content: str, label: str = "") -> list[Message]:
    written = Message(role, content, name=label or None, call_id=label or None)
    answers = [written] if role == "tool" else [Message("tool", "72"), written]
    opening = (
        [Message("user", "?"), Message("assistant", "a")] if role == "tool" else [written, Message("assistant", "a")]
    )
    return [*opening, *answers, Message("assistant", "b")]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(data=st.data())
def test_what_was_written_stays_text(
    renderer_of: Callable[[str], tuple[Any, Renderer]], name: str, data: st.DataObject
) -> None:
    tokenizer, renderer = renderer_of(name)
    texts = hostile(tokenizer)
    role, content, label = data.draw(st.sampled_from(["user", "tool"])), data.draw(texts), data.draw(texts)
    messages, harmless = dialogue(role, content, label), dialogue(role, "harmless", "name")
    for render in (
        renderer.one_shot,
        lambda m: renderer.prompt(m[:-1]),
        lambda m: renderer.bridge(m[2:-1], ended=True),
    ):
        ids = render(messages)
        assert controls(tokenizer, ids) == controls(tokenizer, render(harmless))
        shown = renderer.decode(ids)
        assert any(form(content) in shown for form in FORMS)


def literal_rows() -> list[Any]:
    path = CASES / "toolcalls.jsonl"
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [pytest.param(row, id=row["id"]) for row in rows if "must_be_literal" in row]


@pytest.mark.cases
@pytest.mark.skipif(not CASES.is_dir(), reason=f"there are no cases in {CASES}")
@pytest.mark.parametrize("row", literal_rows())
@pytest.mark.parametrize("name", ["real qwen3", "real smollm2", *FAMILIES])
def test_cases(renderer_of: Callable[[str], tuple[Any, Renderer]], name: str, row: dict[str, Any]) -> None:
    tokenizer, renderer = renderer_of(name)
    ids = renderer.one_shot(dialogue(row["role"], row["text"]))
    assert controls(tokenizer, ids) == controls(tokenizer, renderer.one_shot(dialogue(row["role"], "harmless")))
    shown = renderer.decode(ids)
    assert row["text"] in shown
    assert all(literal in shown for literal in row["must_be_literal"])
