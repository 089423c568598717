"""Whatever docs/checklist.md names exists: each item once, each file, each definition, each test."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import tomllib
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
NAME = re.compile(r"`([\w./-]+)::(\w+)`([†‡§]*)")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
PINNED = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
# What can be installed as we say, by the names under which it is imported.
OURS = {
    re.split(r"\W", line.replace("-", "_"), maxsplit=1)[0] for line in (*PINNED, *itertools.chain(*EXTRAS.values()))
}
OURS |= {"PIL"}


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def definitions(path: Path) -> dict[str, ast.stmt]:
    """Every name that a module defines, at its top level or in a class, with what defines it."""
    classes = [node for node in parsed(path).body if isinstance(node, ast.ClassDef)]
    found: dict[str, ast.stmt] = {}
    for node in (*parsed(path).body, *itertools.chain(*(c.body for c in classes))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


def calls(node: ast.AST, *names: str) -> set[str]:
    """The texts that functions of these names are given, as in ``pytest.importorskip("trl")``."""
    found = [n for n in ast.walk(node) if isinstance(n, ast.Call) and ast.unparse(n.func).split(".")[-1] in names]
    return {n.value for call in found for n in call.args if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def made_of(path: Path, test: str) -> list[ast.AST]:
    """Return what decides whether a test runs: the test, marks of its class and module, fixtures and helpers of these.

    Helpers count by their names alone, so a variable that is called like one makes it count too.
    """
    files = [folder / "conftest.py" for folder in reversed(path.parents) if folder.is_relative_to(ROOT)] + [path]
    known = {name: node for file in files if file.is_file() for name, node in definitions(file).items()}
    classes = [node for node in known.values() if isinstance(node, ast.ClassDef) and known[test] in node.body]
    functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    parts: list[ast.AST] = [known[test], *(mark for node in classes for mark in node.decorator_list)]
    parts += [node for node in parsed(path).body if not isinstance(node, functions) and calls(node, "importorskip")]
    parts += [known["pytestmark"]] if "pytestmark" in known else []
    for part in parts:  # which grows on the way
        inner = list(ast.walk(part))
        named = {n.id for n in inner if isinstance(n, ast.Name)} | {n.arg for n in inner if isinstance(n, ast.arg)}
        named |= calls(part, "usefixtures", "getfixturevalue")
        parts += [known[name] for name in sorted(named & known.keys()) if known[name] not in parts]
    return parts


def marks(path: Path, test: str) -> str:
    """Return the signs that belong behind the name of a test: †, ‡ and §, as the page explains them."""
    parts = made_of(path, test)
    texts = list(map(ast.unparse, parts))
    imported = {name.split(".")[0] for part in parts for name in calls(part, "importorskip")}
    due = {
        "†": any("mark.slow" in text for text in texts),
        "‡": any(re.search(r"environ(\.get\(|\[)'TRAJGYM_DATA'", text) for text in texts),
        "§": not imported <= OURS,
    }
    return "".join(sign for sign in due if due[sign])


def test_every_item_has_its_row() -> None:
    assert list(ROWS) == [f"{letter}{n}" for letter, count in ITEMS.items() for n in range(1, count + 1)]
    assert all(len(cells) == 4 and all(cells) for cells in ROWS.values())


@pytest.mark.parametrize("item", ROWS)
def test_what_a_row_names_exists(item: str) -> None:
    _, code, proof, state = ROWS[item]
    for where, is_test in ((code, False), (proof, True)):
        named = NAME.findall(where)
        assert len(named) == where.count("`") // 2, "file::name"
        for file, name, signs in named:
            assert (ROOT / file).is_file(), file
            assert name in definitions(ROOT / file), f"{file} has no {name}"
            assert is_test == (file.startswith("tests/") and name.startswith("test_"))
            due = marks(ROOT / file, name) if is_test else ""
            assert signs == due, f"{name} is marked {signs!r}; what it takes to run it is {due!r}"
    assert re.fullmatch(r"done|not yet|partly: .+", state)
    assert NAME.search(code + proof) or state == "not yet", "nothing is named"
    runs = [name for _, name, signs in NAME.findall(proof) if "§" not in signs]
    assert runs or state != "done", "done, but nothing that can be installed as we say proves it"


def test_the_count_in_the_text_is_that_of_the_rows() -> None:
    states = [cells[3].split(":")[0] for cells in ROWS.values()]
    told = re.search(r"Of (\d+) items (\d+) are done, (\d+) partly, (\d+) not yet", PAGE)
    assert told
    assert [int(n) for n in told.groups()] == [len(ROWS), *map(states.count, ("done", "partly", "not yet"))]


SLOW = "pytestmark = [pytest.mark.slow]\n"
DATA = """
@pytest.fixture
def gsm8k_data():
    return os.environ.get("TRAJGYM_DATA")

@pytest.fixture
def rows(gsm8k_data):
    return gsm8k_data.read_text()
"""


@pytest.mark.parametrize(
    ("source", "signs"),
    [
        ("def test_x(): pass", ""),
        ("@pytest.mark.slow\ndef test_x(): pass", "†"),
        (f"{SLOW}def test_x(): pass", "†"),
        ("pytestmark = pytest.mark.slow\nclass TestIt:\n    def test_x(self): pass", "†"),
        ("@pytest.mark.slow\nclass TestIt:\n    def test_x(self): pass", "†"),
        ("@pytest.mark.slow\nclass TestIt:\n    def test_y(self): pass\ndef test_x(): pass", ""),
        (f"{DATA}def test_x(gsm8k_data): pass", "‡"),
        (f"{DATA}def test_x(rows): pass", "‡"),
        (f"{DATA}def test_x(request): request.getfixturevalue('rows')", "‡"),
        (f"{DATA}@pytest.mark.usefixtures('rows')\ndef test_x(): pass", "‡"),
        (f"{DATA}{SLOW}def test_x(rows): pass", "†‡"),
        (f"{DATA}def test_x(monkeypatch): monkeypatch.setenv('TRAJGYM_DATA', '/there')", ""),
        (
            "HERE = Path(os.environ['TRAJGYM_DATA'])\nreal = pytest.mark.skipif(not HERE.exists())\n"
            "@real\ndef test_x(): pass\ndef test_y(): pass",
            "‡",
        ),
        ("def test_x(): pytest.importorskip('agents')", "§"),
        ("pytest.importorskip('agents.extensions')\ndef test_x(): pass", "§"),
        ("agents = pytest.importorskip('agents')\ndef test_x(): pass", "§"),
        ("pytest.importorskip('trl')\ndef test_x(): pytest.importorskip('prometheus_client')", ""),
    ],
)
def test_what_a_test_needs_is_seen(source: str, signs: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(source, encoding="utf-8")
    assert marks(tmp_path / "test_it.py", "test_x") == signs
