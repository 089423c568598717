"""Whatever docs/checklist.md names exists: each item once, each file, each definition, each test."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "checklist.md").read_text(encoding="utf-8")
ITEMS = {"A": 5, "B": 26, "C": 10, "D": 15, "E": 21, "F": 18, "G": 16, "H": 10, "I": 14, "J": 16, "K": 13}
ROWS = {
    cells[0]: cells[1:]
    for line in PAGE.splitlines()
    if re.match(r"\| [A-K]\d+ \|", line)
    for cells in [[cell.strip() for cell in line.strip("|").split(" | ")]]
}
NAME = re.compile(r"`([\w./-]+)::(\w+)`")


@functools.cache
def definitions(path: Path) -> dict[str, bool]:
    """Every name that a module defines, at its top level or in a class; true for what runs only with -m slow."""
    found: dict[str, bool] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = any("mark.slow" in ast.unparse(mark) for mark in node.decorator_list)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: False for target in targets if isinstance(target, ast.Name)}
    return found


def test_every_item_has_its_row() -> None:
    assert list(ROWS) == [f"{letter}{n}" for letter, count in ITEMS.items() for n in range(1, count + 1)]
    assert all(len(cells) == 4 and all(cells) for cells in ROWS.values())


@pytest.mark.parametrize("item", ROWS)
def test_what_a_row_names_exists(item: str) -> None:
    _, code, proof, state = ROWS[item]
    for where, is_test in ((code, False), (proof, True)):
        named = NAME.findall(where)
        assert len(named) == where.count("`") // 2, "file::name"
        for file, name in named:
            assert (ROOT / file).is_file(), file
            assert name in definitions(ROOT / file), f"{file} has no {name}"
            assert is_test == (file.startswith("tests/") and name.startswith("test_"))
            if is_test:
                assert f"{name}`†" in where or not definitions(ROOT / file)[name], f"{name} is slow; mark it with †"
    assert re.fullmatch(r"done|not yet|partly: .+", state)
    assert NAME.search(code + proof) or state == "not yet", "nothing is named"
    assert NAME.search(proof) or state != "done", "done, but nothing proves it"


def test_the_count_in_the_text_is_that_of_the_rows() -> None:
    states = [cells[3].split(":")[0] for cells in ROWS.values()]
    told = re.search(r"Of (\d+) items (\d+) are done, (\d+) partly, (\d+) not yet", PAGE)
    assert told
    assert [int(n) for n in told.groups()] == [len(ROWS), *map(states.count, ("done", "partly", "not yet"))]
