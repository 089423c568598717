"""Others' figures are quoted where they belong, and only as theirs."""

from __future__ import annotations

import pytest

from trajgym.evaluation.reference import BANDS, quoted


def test_the_founding_documents_figures() -> None:
    assert [(b.model, b.benchmark, b.low, b.high) for b in BANDS] == [
        ("Qwen3-0.6B", "GSM8K", 0.4, 0.5),
        ("Qwen3-0.6B", "GSM8K", 0.6, 0.7),
    ]
    lines = quoted("GSM8K-v0", ["tiny", "Qwen/Qwen3-0.6B"])
    assert len(lines) == 2
    assert all("as the founding document says; not measured here" in line for line in lines)
    assert "40 to 50 %" in lines[0]
    assert "60 to 70 %" in lines[1]


@pytest.mark.parametrize(
    ("env", "model", "count"),
    [
        ("trajgym:GSM8KTool-v0", "models/qwen3-0.6b/", 2),
        ("GSM8K-v0", "Qwen/Qwen3-0.6B-Base", 0),
        ("GSM8K-v0", "tiny", 0),
        ("CodeTool-v0", "Qwen/Qwen3-0.6B", 0),
        ("", "Qwen/Qwen3-0.6B", 0),
    ],
)
def test_where_they_are_quoted(env: str, model: str, count: int) -> None:
    assert len(quoted(env, [model])) == count
