"""Questions of the evaluation are found in rows of every form, and not where only a part of one stands."""

from __future__ import annotations

from typing import Any

import pytest

from trajgym.errors import DataError
from trajgym.trainers.data_sources import Loaded
from trajgym.trainers.pipeline_leaks import holding, require_apart
from trajgym.types import Message

LONG = "Ann buys 9 crates of 40 pens and gives away 70. How many pens are left?"
SHORT = "48 + 24?"


def rendered(question: str) -> str:
    return f"<|im_start|>system\nCalculate.<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("question", [LONG, SHORT])
@pytest.mark.parametrize(
    "form",
    [
        lambda q: {"question": q.replace(" ", "  "), "answer": "#### 2"},
        lambda q: {"prompt": rendered(q), "completion": "#### 2"},
        lambda q: {"prompt": [{"role": "user", "content": q}], "completion": [{"role": "assistant", "content": "2"}]},
        lambda q: {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{q}\nThink."}]
        },
        lambda q: {"messages": [{"role": "user", "content": [{"type": "text", "text": q}]}]},
        lambda q: {"messages": [Message("user", q), Message("assistant", "2")]},
        lambda q: {"prompt": f"[INST] {q} [/INST]", "completion": "2"},
    ],
)
def test_in_every_form(question: str, form: Any) -> None:
    assert holding([{"question": "Another one?"}, form(question)], ["Which?", question]) == {1: 1}


def test_a_long_one_also_in_the_middle_of_a_line() -> None:
    row = {"prompt": f"Q: {LONG} A:", "completion": "290"}
    assert holding([row], [LONG]) == {0: 0}
    assert holding([{"prompt": f"Q: 1{SHORT} A:"}], [SHORT]) == {}


def test_what_only_looks_like_it() -> None:
    others: list[dict[str, Any]] = [
        {"question": "148 + 24?"},
        {"question": LONG.replace("70", "71")},
        {"messages": [{"role": "user", "content": "Ask me."}, {"role": "assistant", "content": SHORT}]},
        {"question": "What?", "answer": SHORT},
        {"question": ""},
    ]
    assert holding(others, [LONG, SHORT]) == {}


def test_the_error_names_the_rows() -> None:
    rows = Loaded("mine.jsonl", [{"prompt": rendered(LONG), "completion": "2"}] * 7)
    test = Loaded("the test problems", [{"question": SHORT}, {"question": LONG}])
    with pytest.raises(DataError) as error:
        require_apart(rows, test)
    for words in ("mine.jsonl: ", "7 rows (1, 2, 3, 4, 5, …)", "the test problems, row 2", "eval.split"):
        assert words in str(error.value)
    require_apart(rows, Loaded("the test problems", [{"question": SHORT}]))
