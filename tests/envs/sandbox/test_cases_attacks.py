"""Every row of the case file of attacks, on every kind of user and isolation that there is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

CASES = Path(os.environ.get("TRAJGYM_CASES") or Path(__file__).resolve().parents[4] / "shared" / "cases")


def case_rows() -> list[Any]:
    path = CASES / "attacks.jsonl"
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [pytest.param(row, id=row["id"]) for row in rows]


@pytest.mark.cases
@pytest.mark.parametrize("row", case_rows())
def test_case(host: Any, row: dict[str, Any]) -> None:
    seen = host.ask("attack", cells=[("only", row["code"])], scratch=False)
    (result,) = seen["results"]
    assert result["kind"] in row["allowed"], result
    assert "LEAK" not in result["output"]
    assert result["isolation"] == host.tier
    # Either the session goes on as if nothing had been, or it is over; and nothing else was touched.
    following = seen["next"]
    assert (following["kind"], following["output"]) == ("Ok", "2") or following["kind"] == "SessionDead", following
    assert seen["complaints"] == []
