"""The next decision follows from what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from trajgym.trainers.pipeline_decision import analyse, decide, in_words


def pair(before: str, after: str, low: float, high: float, fixed: int = 9, broken: int = 4) -> dict[str, Any]:
    return {"before": before, "after": after, "tasks": 100, "difference": (low + high) / 2, "low": low, "high": high,
            "fixed": fixed, "broken": broken, "p_value": 0.04, "significant": low > 0 or high < 0}  # fmt: skip


@pytest.mark.parametrize(
    ("comparisons", "words"),
    [
        ([pair("sft", "grpo", 0.02, 0.2)], "GRPO lifts accuracy"),
        ([pair("sft", "grpo", -0.2, -0.02)], "GRPO made it worse"),
        ([pair("sft", "grpo", -0.05, 0.15)], "cannot be told from chance (±10 points)"),
        ([pair("sft", "grpo", 0.0, 0.0, 0, 0)], "has changed no answer"),
        ([pair("sft", "grpo", -0.1, 0.1), pair("before", "grpo", -0.3, -0.1)], "The base model was better"),
        ([pair("before", "grpo", 0.02, 0.2)], "GRPO lifts accuracy"),
        ([pair("before", "sft", 0.02, 0.2)], "all stages first"),
    ],
)
def test_decisions(comparisons: list[dict[str, Any]], words: str) -> None:
    decision = decide(comparisons, ["Arithmetic is the weakness."])
    assert words in decision["next"]
    assert decision["because"][0] == in_words(comparisons[0])


def test_an_interval_beside_zero_decides_nothing_where_chance_explains_it() -> None:
    few = pair("sft", "grpo", 0.02, 0.3) | {"p_value": 0.125, "significant": False}  # four fixed, none broken
    assert "cannot be told from chance" in decide([few], [])["next"]


def test_a_stop_comes_first() -> None:
    decision = decide([pair("before", "sft", 0.02, 0.2)], ["The form is the weakness."], stopped="Not met.")
    assert decision["next"] == "Improve SFT before any RL. The form is the weakness."
    assert decision["because"][0] == "Not met."


def test_a_comparison_in_words() -> None:
    assert in_words(pair("sft", "grpo", 0.02, 0.2)) == (
        "sft → grpo: +11.0 points (+2.0 … +20.0), 9 fixed and 4 broken of 100, p = 0.04: a clear difference."
    )
    assert "within chance" in in_words(pair("a", "b", -0.1, 0.1))


def test_analysis_is_of_the_last_model() -> None:
    shares = {"truncated": 0.2, "format": 0.7, "tool_errors": 0.1, "faults": 0.01}
    bad = {"conclusions": ["Long chains are a weakness."], "measures": {k: {"value": v} for k, v in shares.items()}}
    good = {"conclusions": [], "measures": {name: {"value": 0.0} for name in shares} | {"format": {"value": 1.0}}}
    assert analyse({}) == []
    assert analyse({"sft": bad, "grpo": good}) == []
    said = analyse({"sft": good, "grpo": bad})
    assert said[0] == "Long chains are a weakness."
    for words in ("20% of the episodes end", "30% of the answers", "10% of the tool calls", "1.0% of the episodes"):
        assert any(words in sentence for sentence in said)
