"""Every row of the case file of the interpreter, through the tool as a policy uses it, wherever it can run."""

from __future__ import annotations

import builtins
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

CASES = Path(os.environ.get("TRAJGYM_CASES") or Path(__file__).resolve().parents[4] / "shared" / "cases")
CUT = re.compile(r"\n\[… ([\d,]+) characters dropped …\]\n")


def case_rows() -> list[Any]:
    path = CASES / "interpreter.jsonl"
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [pytest.param(row, id=row["id"]) for row in rows]


@pytest.mark.cases
@pytest.mark.parametrize("row", case_rows())
def test_case(host: Any, row: dict[str, Any]) -> None:
    got = host.ask("interpret", calls=row["calls"], needs=row.get("needs", []))
    if "missing" in got:
        pytest.skip(f"needs {', '.join(got['missing'])}")
    if got["kind"] is None:
        assert is_expected_output(got, row), got
    else:
        kinds = {row["expected_error_kind"], *row.get("also_ok", ()), *row.get("also_ok_error", ())}
        assert got["kind"] in kinds or ("blocked" in kinds and is_refusal(got["kind"])), got
    assert row.get("expected_partial_output", "") in got["seen"]
    assert "must_not_contain" not in row or row["must_not_contain"] not in got["seen"]
    assert all(text in got["seen"] for text in row.get("must_be_literal", ()))
    # Whose state is gone must be told, and nobody else.
    assert ("The interpreter was restarted" in got["seen"]) == got["state_lost"]
    # Of all that is shown, nothing is the sandbox's own.
    assert not re.search(r'File "(?!<)', got["traceback"])


def is_expected_output(got: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether what a call showed that ran to its end is one of the things it may show."""
    if row.get("expected_truncated"):
        # Both ends are there, and what is said to be missing is what is missing (a line end may come on top).
        head, number, tail = CUT.split(got["seen"])
        missing = row["original_chars"] - len(head) - len(tail)
        return min(len(head), len(tail)) > 1000 and int(number.replace(",", "")) - missing in (0, 1)
    shown = "" if got["seen"] == "(no output)" else got["seen"].rstrip("\n")
    if row["expected_error_kind"] is not None or row["expected_output"] is None:
        return shown in row.get("also_ok_output", ())
    return shown in (row["expected_output"].rstrip("\n"), *row.get("also_ok_output", ()))


def is_refusal(kind: str) -> bool:
    """Whether an exception is what Python makes of an answer "no" from the kernel."""
    found = getattr(builtins, kind, None)
    return kind in ("URLError", "gaierror") or (isinstance(found, type) and issubclass(found, OSError))
