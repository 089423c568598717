"""``trajgym grade``: what it reads, what it prints, and that no row stops it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from trajgym import cli
from trajgym.rewards import accuracy
from trajgym.rewards.answer_kinds import grade
from trajgym.scripts.grade_file import BadRow
from trajgym.scripts.grade_rows import ANSWER_COLUMNS, TEXT_COLUMNS, Completion, read_rows
from trajgym.scripts.grade_tables import Graded, show

DATA = Path(os.environ.get("TRAJGYM_DATA", Path(__file__).parents[3] / "shared" / "data")) / "gsm8k"

ROWS: list[Any] = [
    {"completion": "She sold 72.\n#### 72", "answer": "72"},
    {"completion": "#### 73", "answer": "#### 72"},
    {"completion": "Final answer: 70 or 72", "answer": 72},
    {"completion": "<answer></answer>", "answer": "A: 72"},
]


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(*rows: Any, raw: Sequence[bytes] = ()) -> str:
        path = tmp_path / "rows.jsonl"
        path.write_bytes(b"\n".join([*(json.dumps(row).encode() for row in rows), *raw]) + b"\n")
        return str(path)

    return write


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["grade", *arguments])
    return (status, *capsys.readouterr())


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status, out, err = run(capsys, *arguments, "--json")
    assert err == ""
    return status, json.loads(out)


def test_every_row_says_what_was_read_and_by_which_rule(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, write(*ROWS))
    lines = [line for line in out.splitlines() if line.startswith("│")]
    assert status == 0
    assert [line.split("│")[1].strip() for line in lines[:4]] == ["1", "2", "3", "4"]
    assert [line.split("│")[2].strip() for line in lines[:4]] == ["right", "wrong", "unread", "unread"]
    assert "####" in lines[0]
    assert "‹72›" in lines[0]
    assert "She sold 72.⏎" in lines[0]
    assert "Final answer: (several values)" in lines[2]
    assert "‹70 or 72›" in lines[2]
    assert "<answer> (a marker without a value)" in lines[3]
    assert "1 (25.0%) │ 1 (25.0%) │ 2 (50.0%) │   4" in out
    assert "could not be used" not in out
    assert "own verdict" not in out


def test_only_what_went_wrong(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, write(*ROWS), "--wrong")
    assert "She sold" not in out
    assert "‹73›" in out
    _, out, _ = run(capsys, write(*ROWS), "--rows", "1")
    assert "‹73›" not in out
    assert "… and 3 more; --rows 0 lists them all." in out
    assert "4 │" in out  # the sums are those of all
    _, out, _ = run(capsys, write(*ROWS * 40), "--rows", "0")
    assert "160 │" in out
    assert "more; --rows" not in out


def test_json(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = report(capsys, write(*ROWS))
    assert status == 0
    counts = {key: found[key] for key in ("completions", "right", "wrong", "unread")}
    assert counts == {"completions": 4, "right": 1, "wrong": 1, "unread": 2}
    assert found["by_rule"] == {"hash": 2, "final_answer": 1, "answer_tag": 1}
    assert found["by_reason"] == {"hedged": 1, "no_number": 1}
    assert found["rows"][0] == {
        "line": 1, "name": "", "verdict": "right", "answer": "72", "source": "72", "span": [18, 20], "rule": "hash",
        "tier": 1, "reason": "", "flag": None,
    }  # fmt: skip
    _, found = report(capsys, write(*ROWS), "--wrong")
    assert [row["line"] for row in found["rows"]] == [2, 3, 4]


def test_bad_rows_are_named_by_their_line_and_the_others_graded(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bad = [
        {"answer": "72"},
        {"completion": 5, "answer": "72"},
        {"completion": "x"},
        {"completion": "x", "answer": "four"},
        {"completion": "x", "answer": True},
        {"completion": [], "answer": "72"},
        {"completion": [{"role": "user", "content": "?"}], "answer": "72"},
        {"completion": "x", "answer": "72", "answer_kind": "shape"},
        [1],
        None,
    ]
    raw = [b"", b"not json", b'{"a": \xff}', b"[" * 100_000, b'{"completion": "#### 72", "answer": 72}']
    status, found = report(capsys, write(ROWS[0], *bad, raw=raw))
    assert status == 1
    assert found["right"] == found["completions"] == 2
    assert [row["line"] for row in found["bad_rows"]] == [*range(2, 12), 13, 14, 15]
    reasons = [row["reason"] for row in found["bad_rows"]]
    for reason, words in zip(
        reasons,
        ["no column 'completion', only 'answer'", "a number instead of text", "no column 'answer'", "'four'",
         "true or false", "a list", "no text of an assistant", "'shape'; allowed are number and expression",
         "not a JSON object but a list", "null", "not JSON", "not UTF-8", "not JSON"],
        strict=True,
    ):  # fmt: skip
        assert words in reason
    _, out, _ = run(capsys, write(ROWS[0], *bad * 3))
    assert "30 rows could not be used:\n  line 2: no column 'completion'" in out
    assert "… and 10 more" in out


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        ({"response": "a", "answer": "1"}, [("", "a")]),
        ({"text": "a", "gold": 1}, [("", "a")]),
        ({"completion": "a", "text": "b", "ground_truth": "1", "answer": "x"}, [("", "a")]),
        ({"completions": ["a", "b"], "target": "1"}, [("[0]", "a"), ("[1]", "b")]),
        ({"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "a"}], "answer": "1"},
         [("", "a")]),
        ({"small": {"solution": "a"}, "large": {"solution": "b"}, "answer": "1"}, [("small", "a"), ("large", "b")]),
    ],
)  # fmt: skip
def test_columns_are_found(row: dict[str, Any], texts: list[tuple[str, str]]) -> None:
    found = list(read_rows(io.BytesIO(json.dumps(row).encode())))
    assert [(one.name, one.text) for one in found if isinstance(one, Completion)] == texts
    assert all(isinstance(one, Completion) and one.answer == "1" for one in found)


def call_of_a_tool() -> dict[str, Any]:
    return {"function": {"name": "calculator", "arguments": {"expression": "48+24"}}}


USER, SAID = {"role": "user", "content": "48 + 24?"}, {"role": "assistant", "content": "#### 72"}
DIALOGUES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "an answer": ([USER, SAID], "right"),
    "an answer in parts": (
        [USER, {"role": "assistant", "content": [{"type": "text", "text": "####"}, {"type": "text", "text": " 72"}]}],
        "right",
    ),
    "a later answer": ([USER, {**SAID, "content": "#### 71"}, USER, SAID], "right"),
    "the user has the last word": ([USER, SAID, USER], "unread"),
    "a call": ([USER, {**SAID, "tool_calls": [call_of_a_tool()]}], "unread"),
    "a result": ([USER, {**SAID, "tool_calls": [call_of_a_tool()]}, {"role": "tool", "content": "72"}], "unread"),
    "no words": ([USER, {"role": "assistant", "content": None}], "unread"),
    "a wrong one": ([USER, {**SAID, "content": "#### 73"}], "wrong"),
}


@pytest.mark.parametrize("name", DIALOGUES)
def test_dialogues_are_graded_as_the_reward_term_pays_them(
    name: str, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    messages, verdict = DIALOGUES[name]
    _, found = report(capsys, write({"messages": messages, "answer": "72"}))
    assert [row["verdict"] for row in found["rows"]] == [verdict]
    assert accuracy([messages[1:]], answer=["72"]) == [float(verdict == "right")]


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ([{"type": "text", "text": "#### "}, {"type": "image"}, {"type": "text", "text": "72"}], ["#### 72"]),
        ([{"text": "#### 72"}], ["#### 72"]),
        (SAID, ["#### 72"]),
        ([[USER, SAID], [SAID]], ["#### 72", "#### 72"]),
        (["#### 72", [{"type": "text", "text": "#### 73"}]], ["#### 72", "#### 73"]),
        ([{"type": "image"}], [""]),
    ],
)
def test_texts_in_parts_and_lists_of_dialogues(value: Any, texts: list[str]) -> None:
    rows = list(read_rows(io.BytesIO(json.dumps({"completion": value, "answer": 72}).encode())))
    assert [row.text for row in rows if isinstance(row, Completion)] == texts


@pytest.mark.parametrize("value", [[["x", 3]], [{"a": 1}], {"a": 1}, [SAID, "x", None], [[]]])
def test_what_holds_no_text_is_named(value: Any) -> None:
    [row] = read_rows(io.BytesIO(json.dumps({"completion": value, "answer": 72}).encode()))
    assert isinstance(row, BadRow)
    assert "instead of text" in row.reason


@pytest.mark.parametrize(
    ("written", "answer"),
    [("1e22", "1" + "0" * 22), ("1E+3", "1000"), ("2.50", "2.50"), ("-1.5e-3", "-0.0015"), ("72", "72"),
     ("0.1000000000000000000001", "0.1000000000000000000001")],
)  # fmt: skip
def test_numbers_are_taken_as_they_stand(written: str, answer: str) -> None:
    [row] = read_rows(io.BytesIO(f'{{"completion": "#### {answer}", "answer": {written}}}'.encode()))
    assert isinstance(row, Completion)
    assert row.answer == answer
    assert grade(row.text, row.answer).correct


@pytest.mark.parametrize("written", ["NaN", "Infinity", "-Infinity", "1e999999999", "1e400", "9" * 5_000])
def test_numbers_that_are_none_are_bad_rows(written: str) -> None:
    [row] = read_rows(io.BytesIO(f'{{"completion": "#### 1", "answer": {written}}}'.encode()))
    assert isinstance(row, BadRow)


def test_a_key_that_occurs_twice(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    raw = [b'{"completion": "#### 72", "answer": "72", "answer": "73"}', b'{"completion": {"text": 1, "text": 2}}']
    status, found = report(capsys, write(ROWS[0], raw=raw))
    assert (status, found["right"]) == (1, 1)
    assert [(row["line"], row["reason"].split(",")[0]) for row in found["bad_rows"]] == [
        (2, "the key 'answer' occurs twice"), (3, "the key 'text' occurs twice"),
    ]  # fmt: skip


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
def test_one_array_is_as_good_as_lines(
    indent: int | None, start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(start + json.dumps([ROWS[0], 5, ROWS[1]], indent=indent), encoding="utf-8")
    status, found = report(capsys, str(path))
    assert (status, found["right"], found["wrong"]) == (1, 1, 1)
    assert [row["line"] for row in found["rows"]] == [1, 3]
    assert found["bad_rows"] == [{"line": 2, "reason": "not a JSON object but a number"}]


def test_one_object_over_several_lines_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "row.json"
    path.write_text(json.dumps(ROWS[0], indent=2), encoding="utf-8")
    assert report(capsys, str(path))[1]["right"] == 1


def test_an_array_that_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(ROWS, indent=1)[:-20], encoding="utf-8")
    status, _, err = run(capsys, str(path))
    assert status == 2
    assert "an array of JSON that cannot be read: not JSON" in err
    assert "one object a line, or one array of objects" in err


def test_lines_that_begin_with_a_bad_one(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for first in (b"[1]", b"nonsense", b"\xff", b"[]"):
        path = Path(write(ROWS[0]))
        path.write_bytes(b"\n" + first + b"\r\n" + path.read_bytes())
        status, found = report(capsys, str(path))
        assert (status, found["right"]) == (1, 1)
        assert [row["line"] for row in (*found["bad_rows"], *found["rows"])] == [2, 3]


def test_columns_are_chosen(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"question": "?", "steps": [{"text": "no"}, {"text": "#### 5"}], "task": {"answer": "5"}, "a.b": "#### 6"}
    _, found = report(capsys, write(row), "--text", "steps.-1.text", "--answer", "task.answer")
    assert found["right"] == 1
    _, found = report(capsys, write(row), "--text", "a.b", "--answer", "task.answer")
    assert found["wrong"] == 1


@pytest.mark.parametrize(
    ("row", "arguments", "message"),
    [
        ({"question": "?", "answer": "5"}, [], "has 'question', 'answer'. Name it with --text COLUMN"),
        ({"completion": "?", "result": "5"}, [], "has 'completion', 'result'. Name it with --answer COLUMN"),
        (
            {"completion": "?", "answer": "5"},
            ["--text", "txt"],
            "--text txt: in the first row there is no column 'txt'",
        ),
        ({"completion": "?", "answer": "5"}, ["--answer", "a.b"], "--answer a.b: in the first row"),
    ],
)
def test_a_column_that_is_not_there(
    row: dict[str, Any], arguments: list[str], message: str, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, write(row), *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    for path, message in ((tmp_path / "none.jsonl", "No such file"), (tmp_path, "directory"), (empty, "no rows")):
        status, _, err = run(capsys, str(path))
        assert status == 2
        assert message in err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["grade", str(empty), "--rows", "few"])


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    data = io.BytesIO(b"\xef\xbb\xbf" + json.dumps(ROWS[0]).encode())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=data))
    status, found = report(capsys, "-")
    assert (status, found["right"]) == (0, 1)


def test_what_the_file_says_itself_is_compared(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    agreed = {**ROWS[0], "is_correct": True}
    disputed = {**ROWS[0], "correct": False}
    status, out, _ = run(capsys, write(agreed, ROWS[1], disputed), "--wrong")
    assert status == 1
    assert "right (file: wrong)" in out
    assert "The file's own verdict is the same for 1 of 2 completions." in out
    assert run(capsys, write(agreed))[0] == 0


def test_formulas(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sympy")
    rows = [{"completion": r"\boxed{2x}", "answer": "x+x"}, {"completion": r"\boxed{3x}", "answer": "x+x"}]
    _, found = report(capsys, write(*rows), "--kind", "expression")
    assert [row["verdict"] for row in found["rows"]] == ["right", "wrong"]
    _, found = report(capsys, write({**rows[0], "answer_kind": "expression"}))
    assert found["right"] == 1
    status, found = report(capsys, write({"completion": "x", "answer": "1/0"}), "--kind", "expression")
    assert (status, len(found["bad_rows"])) == (1, 1)


HOSTILE = "\x1b[31m[bold]\u2028\u202e" + "深い" * 40 + "\ud800 #### 5\x07 or 6\r\n" + "y" * 300


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_every_width_is_kept_and_no_character_acts(width: int, write: Any) -> None:
    rows = [
        {"completion": HOSTILE, "answer": "1234567890123456789", "is_correct": True},
        {"completion": ["a" * 500, "", "4 +", r"\boxed{4"], "answer": "x" * 50 + "#### 5"},
        {"small_model_finetuned_twice": 1, "completion": "#### 1,234,567", "answer": "4"},
    ]
    found = list(read_rows(io.BytesIO(Path(write(*rows)).read_bytes())))
    graded = [Graded(one, grade(one.text, one.answer)) for one in found if isinstance(one, Completion)]
    assert len(graded) == 6
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    show(console, graded, [BadRow(7, "not JSON")], wrong=False, most=0)
    out = console.file.getvalue()
    assert max(map(cell_len, out.split("\n"))) <= width
    assert all(character.isprintable() or character == "\n" for character in out)
    assert "‹5" in out


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no data folder {DATA}")
def test_the_published_sample_solutions(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = report(capsys, str(DATA / "example_model_solutions.jsonl"))
    assert status == 0
    assert found["completions"] == found["flagged"] == found["agreed"] == 5276
    assert {row["name"] for row in found["rows"]} == {
        "6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification",
    }  # fmt: skip


def test_the_names_of_columns_do_not_clash() -> None:
    assert not set(TEXT_COLUMNS) & set(ANSWER_COLUMNS)
