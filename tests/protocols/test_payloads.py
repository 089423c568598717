from __future__ import annotations

import pytest

from trajgym.protocols.payloads import close_fence, is_quoted, open_fence, read_payload, why_broken, without_fence


@pytest.mark.parametrize(
    ("text", "value", "rest", "open_fence"),
    [
        (' {"a": 1} so', {"a": 1}, " so", False),
        ('```json\n{"a": 1}\n```\nso', {"a": 1}, "\nso", False),
        ("````[1]```` so", [1], " so", False),
        ("```json\n[1]\n so", [1], "\n so", True),
    ],
)
def test_one_fence_is_dropped(text: str, value: object, rest: str, open_fence: bool) -> None:
    payload = read_payload(text, 0)
    assert (payload.json.value, text[payload.end :], payload.open_fence) == (value, rest, open_fence)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{} so", None),
        ("{}", None),
        ("{}}", "malformed_json"),
        ("{}\n, {}", "malformed_json"),
        ("```\n{} so", "malformed_json"),
        ("```\n{}\n", "truncated_call"),
    ],
)
def test_what_may_follow(text: str, kind: str | None) -> None:
    objection = read_payload(text, 0).objection(text)
    assert (objection.kind if objection else None) == kind


def test_fences() -> None:
    assert open_fence(" \n```json\n{", 0) == (10, "```")
    assert open_fence(" {", 0) == (1, "")
    assert close_fence("{} ", 2, "") == 2
    assert close_fence("{}\n```", 2, "```") == 6
    assert close_fence("{}\n``", 2, "```") is None


@pytest.mark.parametrize(
    ("text", "stop", "kind"),
    [('{"a": "b\n{}', 8, "truncated_call"), ('{"a": "b\n{}', 11, "malformed_json"), ("{a}", 3, "malformed_json")],
)
def test_cut_or_wrong(text: str, stop: int, kind: str) -> None:
    error = read_payload(text, 0).json.error
    assert error is not None
    assert why_broken(text, 0, stop, error).kind == kind


@pytest.mark.parametrize(
    ("text", "quoted"), [("'x'", True), ("“x”", True), ("`x`", True), ("'x", False), ("x'", False), ("\"x'", False)]
)
def test_quoted(text: str, quoted: bool) -> None:
    start = text.index("x")
    assert is_quoted(text, start, start + 1) == quoted


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("````\n```\n````", "```"),
        ("```\n```", ""),
        ("x = '```'", "x = '```'"),
        ("`x`", "`x`"),
        ("```x```", "```x```"),
        ("```\nx", "```\nx"),
    ],
)
def test_a_fence_around_the_whole(text: str, inside: str) -> None:
    assert without_fence(text) == inside
