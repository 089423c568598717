"""The names of differences between our grader and lm-evaluation-harness's, and whether they account for all of it."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
STRICT, FLEXIBLE = "strict-match", "flexible-extract"

# (completion, truth, filter, what the harness 0.4.13 takes out of it, whether it pays, the name of the difference)
ROWS = [
    ("#### 72", "72", STRICT, "72", True, ""),
    ("#### 70", "72", STRICT, "70", False, ""),
    ("It costs $1,080.", "1,080", FLEXIBLE, "$1,080.", True, ""),
    ("#### 1,080", "1080", STRICT, "1,080", True, ""),
    ("The answer is 72.", "72", STRICT, "[invalid]", False, "theirs: no marker but ####, ours: answer is"),
    ("A: 72", "72", STRICT, "[invalid]", False, "theirs: no marker but ####, ours: A:"),
    ("#### $72", "72", STRICT, "[invalid]", False, "theirs: $ between #### and the number"),
    ("#### x = 72", "72", STRICT, "[invalid]", False, "theirs: words between #### and the number"),
    ("#### **72**", "72", STRICT, "[invalid]", False, "theirs: no blank, or signs, between #### and the number"),
    ("####72", "72", STRICT, "[invalid]", False, "theirs: no blank, or signs, between #### and the number"),
    ("#### seventy-two", "72", FLEXIBLE, "[invalid]", False, "theirs: no number in words"),
    ("#### 70\nNo.\n#### 72", "72", STRICT, "70", False, "several ####"),
    ("#### 72\nNo.\n#### 70", "72", STRICT, "72", True, "several ####"),
    ("#### 72.00", "72", STRICT, "72.00", False, "theirs: one value in two spellings (18.00 for 18)"),
    ("#### 72...", "72", STRICT, "72...", False, "theirs: punctuation read as a number"),
    ("#### 72k", "72", STRICT, "72", True, "ours: unit after the number counts"),
    ("#### 7,2", "72", STRICT, "7,2", True, "ours: no answer, not written in a way that is read"),
    ("#### 70 or 72", "72", FLEXIBLE, "72", True, "ours: no answer, several values"),
    ("#### 72 clips in 2 months", "72", FLEXIBLE, "2", False, "theirs: the last number is not the answer"),
    ("#### 70 clips, not 72", "72", FLEXIBLE, "72", True, "theirs: the last number is not the answer"),
    ("She sold 72 clips...", "72", FLEXIBLE, "...", False, "theirs: punctuation read as a number"),
    ("#### 72\n\nQ: Tim has 5", "72", FLEXIBLE, "5", False, "theirs: an invented next turn read as the answer"),
    ("She has 72 <<70", "72", FLEXIBLE, "70", False, "theirs: a calculator's annotation read as the answer"),
    (
        "#### 72\n```python\nprint(5)\n```",
        "72",
        FLEXIBLE,
        "5",
        False,
        "theirs: reasoning, program text or tool traffic read as the answer",
    ),
]


@pytest.fixture
def agreement() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("lm_eval_agreement")
    for name in ("lm_eval_agreement", "lm_eval_classes", "interpreter_peers"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("completion", "answer", "name", "found", "paid", "expected"), ROWS)
def test_each_difference_has_its_name(
    agreement: ModuleType, completion: str, answer: str, name: str, found: str, paid: bool, expected: str
) -> None:
    assert agreement.explain(completion, f"So it is.\n#### {answer}", name, found, paid) == expected


@pytest.mark.parametrize(
    ("completion", "found", "paid"),
    [
        ("#### 72", "71", False),  # it would read 72
        ("#### 72", "[invalid]", False),
        ("#### 72", "72", False),  # it would pay
        ("#### 70", "70", True),  # it would not
    ],
)
def test_a_harness_that_reads_otherwise_is_not_explained_away(
    agreement: ModuleType, completion: str, found: str, paid: bool
) -> None:
    assert agreement.explain(completion, "#### 72", STRICT, found, paid) == agreement.UNEXPLAINED


def lines(sums: float) -> list[dict[str, Any]]:
    """What the driver says of a run of four problems."""
    rows = [
        ("#### 72", "72", True),
        ("#### $72", "[invalid]", False),
        ("#### 70", "70", False),
        ("#### 72k", "72", True),
    ]
    said = [
        {
            "run": "test",
            "problem": number,
            "completion": completion,
            "target": "#### 72",
            "found": {STRICT: found, FLEXIBLE: {"#### $72": "$72"}.get(completion, found)},
            "paid": {STRICT: paid, FLEXIBLE: paid or completion == "#### $72"},
        }
        for number, (completion, found, paid) in enumerate(rows)
    ]
    return [*said, {"run": "test", "sums": {STRICT: sums, FLEXIBLE: 0.75}}]


def test_the_figures_add_up(agreement: ModuleType) -> None:
    strict, flexible = agreement.graded(iter(lines(0.5)))
    assert (strict.rows, strict.theirs, strict.ours, strict.both) == (4, 2, 2, 1)
    assert strict.classes == {
        ("theirs: $ between #### and the number", False): 1,
        ("ours: unit after the number counts", True): 1,
    }
    assert strict.adds_up
    assert strict.explained
    assert (strict.alike, flexible.alike) == (2, 3)  # 72 and 70 alike; $72 by the one filter alone; 72k by none
    assert (flexible.theirs, flexible.ours, flexible.both, flexible.adds_up) == (3, 2, 2, True)
    assert not agreement.graded(iter(lines(0.75)))[0].adds_up  # the harness says that it paid three


def test_the_command_tells_what_has_no_name(
    agreement: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agreement, "_lines", lambda job, cache: iter(lines(0.5)))
    arguments = ["--model", "somebody/else", "--published", "0", "--data", str(tmp_path), "--cache", str(tmp_path)]
    assert agreement.main(arguments) == 0
    assert "theirs: $ between #### and the number" in capsys.readouterr().out
    strict, _ = json.loads((tmp_path / "lm_eval_agreement.json").read_text())
    assert [row["class"] for row in strict["differences"]] == [
        "theirs: $ between #### and the number",
        "ours: unit after the number counts",
    ]
    broken = lines(0.5)
    broken[1]["found"][STRICT] = "7"
    monkeypatch.setattr(agreement, "_lines", lambda job, cache: iter(broken))
    assert agreement.main(arguments) == 1


def test_published_completions_stand_at_their_problems(agreement: ModuleType, tmp_path: Path) -> None:
    questions = ["One?", "Two?"]
    solutions = [
        {"question": q, **{m: {"solution": f"{q} {m}\nA: 1"} for m in agreement.PUBLISHED}} for q in reversed(questions)
    ]
    (tmp_path / "example_model_solutions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in solutions))
    (tmp_path / "test.jsonl").write_text("".join(json.dumps({"question": q}) + "\n" for q in questions))
    runs = list(agreement._published(tmp_path, 2))
    assert len(runs) == 2 * len(agreement.PUBLISHED)
    assert runs[0]["completions"] == ["One? 6b_finetuning\nA: 1", "Two? 6b_finetuning\nA: 1"]
    assert runs[1]["completions"] == ["One? 6b_finetuning\n#### 1", "Two? 6b_finetuning\n#### 1"]
