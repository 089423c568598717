"""The quality report: what is an error, what is a warning, and which rows it names."""

from __future__ import annotations

from typing import Any

import pytest

from trajgym.errors import DataError, TemplateError
from trajgym.trainers.data_quality import check_quality, format_of
from trajgym.trainers.data_sources import Loaded
from trajgym.types import Message

LONG = "A farmer takes 48 eggs to the market on Monday and sells them in boxes of 6 to his oldest customers."


def raw(*pairs: tuple[Any, Any]) -> Loaded:
    return Loaded("mine", [{"question": question, "answer": answer} for question, answer in pairs])


def kinds(data: Loaded, **options: Any) -> list[tuple[str, tuple[int, ...], bool]]:
    return [(f.kind, f.rows, f.error) for f in check_quality(data, **options).findings]


def test_good_rows_have_no_findings() -> None:
    found = check_quality(raw(("a?", "<<1+1=2>>2\n#### 2"), ("b?", "3")))
    assert (found.name, found.format, found.rows, found.steps, found.findings) == ("mine", "raw", 2, {0: 1, 1: 1}, ())
    assert found.fingerprint.startswith("sha256:")
    found.require()


def test_each_error_names_its_rows() -> None:
    data = raw(("a?", "1"), ("", "2"), ("b?", None), ("c?", "many"), ("a?", "1"), ("a?", "2"), ("d?", 4))
    assert kinds(data) == [
        ("empty", (1,), True),
        ("missing_column", (2,), True),
        ("not_text", (6,), True),
        ("unreadable_truth", (3,), True),
        ("contradiction", (5,), True),
        ("duplicate", (4,), True),
    ]
    found = check_quality(data)
    assert found.fingerprint == ""
    with pytest.raises(DataError, match=r"mine: row 2 has nothing in 'question'\. \(5 more kinds of errors"):
        found.require()


def test_blanks_do_not_make_another_question_but_signs_do() -> None:
    assert kinds(raw(("48 +  24?", "72"), ("48 + 24?", "72"))) == [("duplicate", (1,), True)]
    assert kinds(raw(("48 + 24?", "72"), ("48 - 24?", "24"))) == []


def test_near_duplicates_are_warnings() -> None:
    data = raw((LONG, "8"), (LONG.replace("Monday", "Sunday"), "8"))
    assert kinds(data, near=0.6) == [("near_duplicate", (1,), False)]
    assert kinds(data, near=None) == []
    check_quality(data, near=0.6).require()


def test_leaks_between_splits() -> None:
    test = Loaded("the test", [{"question": LONG, "answer": "8"}])
    data = raw(("a?", "1"), (LONG, "8"), (LONG.replace("Monday", "Sunday"), "8"))
    assert kinds(data, splits=[test], near=0.6) == [
        ("leak", (1,), True),
        ("near_leak", (2,), False),
        ("near_duplicate", (2,), False),
    ]
    finding = check_quality(data, splits=[test]).errors[0]
    assert finding.what == "row 2 has a question of the test (the first: the test, row 1)."


def test_prompts_are_compared_without_what_all_of_them_begin_with() -> None:
    system = "<|im_start|>system\n" + "You can use tools while you work on the task. " * 20 + "\n"
    rows = [{"prompt": f"{system}{q}", "completion": "1"} for q in ("How old is Ann?", "Who sells 3 pens?")]
    data = Loaded("mine", rows)
    assert format_of(rows) == "sft"
    assert kinds(data) == []
    assert kinds(Loaded("mine", [*rows, rows[0]])) == [("duplicate", (2,), True)]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"question": "q", "answer": "a"}, "raw"),
        ({"prompt": "p", "completion": "c", "text": "pc"}, "sft"),
        ({"prompt": "p", "ground_truth": "1", "question": "q", "full_answer": "a"}, "rl"),
        ({"messages": []}, "messages"),
        ({"x": 1}, "raw"),
    ],
)
def test_formats_are_told_by_their_columns(row: dict[str, Any], expected: str) -> None:
    assert format_of([row]) == expected


def dialogue(*texts: str, system: str = "", **last: Any) -> dict[str, Any]:
    """A system message, then user and assistant in turn; ``last`` is added to the last message."""
    roles = ["system", *("user", "assistant") * len(texts)]
    messages: list[dict[str, Any]] = [
        {"role": role, "content": text} for role, text in zip(roles, (system, *texts), strict=False)
    ]
    messages[-1] |= last
    return {"messages": messages}


def test_dialogues_are_the_same_when_question_and_answer_are() -> None:
    data = Loaded("mine", [dialogue("a?", "1", system="one"), dialogue("a?", "1", system="two")])
    assert kinds(data) == [("duplicate", (1,), True)]
    several = Loaded("mine", [dialogue("a?", "1"), dialogue("a?", "2"), dialogue("a?", "1", "b?", "2")])
    assert kinds(several) == [("same_question", (1, 2), False)]
    finding = check_quality(Loaded("mine", [*several.rows, dialogue("a?", "2")])).errors[0]
    assert (finding.kind, finding.rows) == ("duplicate", (3,))
    assert finding.what == "row 4 has the same question and answer as another row (the first: row 1)."
    assert kinds(Loaded("mine", [{"messages": []}])) == [("empty", (0,), True)]


def test_completions_are_the_same_when_prompts_are_too() -> None:
    def row(prompt: str, completion: str) -> dict[str, Any]:
        return {"prompt": dialogue(prompt)["messages"], "completion": dialogue("", completion)["messages"][2:]}

    assert kinds(Loaded("mine", [row("a?", "1"), row("b?", "1"), row("a?", "1")])) == [("duplicate", (2,), True)]
    assert kinds(Loaded("mine", [row("a?", "1"), row("a?", "2")])) == [("same_question", (1,), False)]
    assert kinds(Loaded("mine", [row("a?", "1"), row("b?", " ")])) == [("empty", (1,), True)]


def test_messages_that_say_nothing() -> None:
    call = [{"function": {"name": "calculator", "arguments": {"expression": "1+1"}}}]
    good = [dialogue("a?", "1"), dialogue("b?", "", tool_calls=call), dialogue("c?", "1", system="x")]
    told = {"messages": [*good[1]["messages"], {"role": "tool", "content": ""}, {"role": "assistant", "content": "2"}]}
    assert kinds(Loaded("mine", [*good[::2], told])) == []
    bad = [dialogue("d?", ""), dialogue("e?", " \n"), dialogue("f?", "1", "g?", ""), dialogue("", "1")]
    bad.append({"messages": [{"role": "user", "content": "h?"}, {"role": "assistant", "content": None}]})
    found = check_quality(Loaded("mine", [*good, *bad]))
    assert [(f.kind, f.rows, f.error) for f in found.findings] == [("empty", (3, 4, 5, 6, 7), True)]
    with pytest.raises(DataError, match=r"5 rows \(4, 5, 6, 7, 8\) have an empty message"):
        found.require()


def test_messages_as_objects() -> None:
    rows = [{"messages": [Message("user", q), Message("assistant", a)]} for q, a in (("a?", "1"), ("b?", "1"))]
    assert kinds(Loaded("mine", rows)) == []
    assert check_quality(Loaded("mine", rows)).fingerprint == ""
    assert kinds(Loaded("mine", [*rows, rows[0]])) == [("duplicate", (2,), True)]


def test_tokens_are_counted() -> None:
    data = raw(("a?", "1"), ("a b c?", "2"), ("bad", "3"))

    def count(row: Any) -> int:
        if row["question"] == "bad":
            raise TemplateError("Row 0: no.")
        return len(row["question"].split())

    found = check_quality(data, max_tokens=2, count_tokens=count)
    assert [(f.kind, f.rows, f.error) for f in found.findings] == [
        ("not_in_template", (2,), True),
        ("too_long", (1,), False),
    ]
    assert found.longest == 3
    assert found.errors[0].what == "row 3 has text that the model's template cannot carry: no."


def test_truths_need_not_be_numbers() -> None:
    assert kinds(raw(("Red or blue?", "blue")), numeric=False) == []
