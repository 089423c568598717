"""Counting steps: what says something new counts, and nothing else does."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.rewards.steps import STEP_MODES, check_step_mode, count_steps


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("", 0),
        ("48 + 24 = 72", 0),
        ("Step 1: 48/2 = 24", 1),
        ("Step 1: 48/2 = 24\nStep 2: 48+24 = 72\n#### 72", 2),
        ("Step 1: 48/2 = 24 Step 2: 48+24 = 72", 2),
        ("**Step 1:** halve\n\n### Step 2 : add\n- step 3: check", 3),
        ("Step #1: halve. STEP 2： add.", 2),
        ("Step 1:\nhalve\nStep 2:\nadd", 2),
        # Numbers that do not follow, bare markers, repeated words.
        ("Step 2: halve\nStep 3: add", 0),
        ("Step 1: halve\nStep 1: add\nStep 3: check", 1),
        ("Step 1: Step 2: Step 3: Step 4:", 0),
        ("Step 1: ...\nStep 2: !!!\nStep 3:\n\n", 0),
        ("Step 1: halve\nStep 2: HALVE\nStep 3:  halve \n#### 72", 1),
        ("Step 1: halve\nStep 2: #### 72", 1),
        ("Step 1: halve\nStep 2:\nFinal Answer: 72", 1),
        ("Footstep 1: no\nstep one: no\nStep 1 no", 0),
        # What is not the reply.
        ("<think>Step 1: halve\nStep 2: add</think>72", 0),
        ('<tool_call>{"x": "Step 1: halve"}</tool_call>', 0),
        ("```python\n# Step 1: halve\n```", 0),
    ],
)
def test_markers(text: str, steps: int) -> None:
    assert count_steps(text) == steps


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("48/2 = 24\n48+24 = 72\n#### 72", 2),
        ("48/2 = 24\r\n\r\n48+24 = 72\r\nFinal Answer: 72", 2),
        ("\n\n\n\n#### 72", 0),
        ("a\na\nA\n  a\n#### 72", 1),
        ("---\n***\n#### 72", 0),
        ("so #### 72", 0),
    ],
)
def test_lines(text: str, steps: int) -> None:
    assert count_steps(text, "lines") == steps


def test_patterns() -> None:
    text = "48 / 2 = 24, 48 + 24 = 72, 48 + 24 = 72"
    for pattern in (r"\d+ [-+*/] \d+ = \d+", re.compile(r"\d+ [-+*/] \d+ = \d+")):
        assert count_steps(text, "regex", pattern) == 2
    assert count_steps(text, "regex", r"\s*") == 0


@given(st.text(), st.sampled_from(STEP_MODES))
def test_any_text_has_a_number_of_steps(text: str, mode: str) -> None:
    pattern = r"\w+" if mode == "regex" else None
    assert count_steps(text, mode, pattern) >= 0


@given(st.text(alphabet=" \n\t.#*", max_size=40), st.integers(0, 3))
def test_filling_adds_nothing(filling: str, at: int) -> None:
    parts = ["Step 1: halve", "Step 2: add", "#### 72"]
    assert count_steps("\n".join([*parts[:at], filling, *parts[at:]])) <= 2


def test_long_texts_do_not_take_long() -> None:
    assert count_steps("".join(f"Step {i}: {i} more\n" for i in range(1, 100_000))) > 1_000
    assert count_steps("Step 1: " * 100_000) == 0
    assert count_steps("step " * 100_000 + " " * 100_000) == 0


@pytest.mark.parametrize(
    ("mode", "pattern", "message"),
    [
        ("marker", None, "Did you mean 'markers'"),
        ("markers", r"\d", "needs a pattern"),
        ("regex", None, "needs a pattern"),
        ("regex", "(", "not a regular expression"),
        ("regex", 3, "not a regular expression"),
    ],
)
def test_wrong_modes(mode: str, pattern: Any, message: str) -> None:
    with pytest.raises((UnknownNameError, ConfigError), match=message):
        check_step_mode(mode, pattern)
