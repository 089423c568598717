"""Rules for the checkout itself that no linter knows."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE_FOLDERS = ("trajgym", "envs", "policies", "rewards", "evaluation", "trainers", "serving", "scripts")
NOT_SOURCES = {"build", "dist", "runs", "__pycache__"}
TEXT = {"", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}

MOST_LINES = {"README.md": 200, "CONTRIBUTING.md": 100}
MOST_LINES_OF_CODE = 400

UNWANTED = {
    "a path of somebody's machine": re.compile(r"(?<![\w./-])/(?:work|root)/"),
    "a mark for unfinished work": re.compile(r"\b(?:TODO|FIXME|XXX)\b"),
}


def _sources(*, tests: bool = True) -> Iterator[Path]:
    """The text files of the checkout, without what is built or cached, each once (links are not followed)."""
    for parent, folders, names in os.walk(ROOT):
        folders[:] = sorted(
            name
            for name in folders
            if (not name.startswith(".") or name == ".ci")
            and name not in NOT_SOURCES
            and not name.endswith(".egg-info")
            and (tests or name != "tests")
        )
        for path in (Path(parent) / name for name in sorted(names)):
            if path.suffix in TEXT and not path.is_symlink():
                yield path


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


MODULES = [path for path in _sources(tests=False) if path.suffix == ".py"]
PUBLIC = [
    path
    for path in MODULES
    if _name(path).split("/")[0] in PACKAGE_FOLDERS
    and not any(part.startswith("_") for part in path.parts[len(ROOT.parts) : -1])
    and (path.name == "__init__.py" or not path.name.startswith("_"))
]
PAGES = [path for path in _sources() if path.suffix == ".md"]


@pytest.mark.parametrize(("name", "most"), MOST_LINES.items())
def test_pages_stay_short(name: str, most: int) -> None:
    assert len(_lines(ROOT / name)) <= most


def test_modules_stay_readable() -> None:
    lengths = {_name(path): len(_lines(path)) for path in MODULES}
    assert {name: n for name, n in lengths.items() if n > MOST_LINES_OF_CODE} == {}, "split by meaning"


@pytest.mark.parametrize("what", UNWANTED)
def test_no_unwanted_words(what: str) -> None:
    found = [
        f"{_name(path)}:{number}: {line.strip()}"
        for path in _sources()
        if path != Path(__file__).resolve()  # it spells out what it looks for
        for number, line in enumerate(_lines(path), start=1)
        if UNWANTED[what].search(line)
    ]
    assert found == [], what


@pytest.mark.parametrize(
    ("what", "line", "found"),
    [
        ("a path of somebody's machine", "see /work" + "/main", True),
        ("a path of somebody's machine", "open('/root/.ssh/id')", True),
        ("a path of somebody's machine", "https://example.org/work" + "/", False),
        ("a path of somebody's machine", "docs/work" + "/plan.md", False),
        ("a mark for unfinished work", "# TODO: later", True),
        ("a mark for unfinished work", r"an escape such as \uXXXX", False),
    ],
)
def test_the_patterns_find_what_they_should(what: str, line: str, found: bool) -> None:
    assert bool(UNWANTED[what].search(line)) is found


def _sort_key(name: str) -> tuple[int, list[tuple[int, str]]]:
    """CONSTANTS, then Classes, then the rest, and numbers by value: the order ruff writes ``__all__`` in."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _exported(tree: ast.Module) -> list[str] | None:
    """The constant list bound to ``__all__``, or None when there is none."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List() as value):
                return [str(name) for name in ast.literal_eval(value)]
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.List() as value):
                return [str(name) for name in ast.literal_eval(value)]
    return None


@pytest.mark.parametrize("path", PUBLIC, ids=_name)
def test_public_modules_say_what_they_are(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "no module docstring"
    exported = _exported(tree)
    if exported is None:
        # A package that only marks its folder has nothing to export.
        assert len(tree.body) == 1, "no __all__"
    else:
        assert exported == sorted(set(exported), key=_sort_key), "__all__ is not sorted, or names something twice"


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path = link.split("#")[0]
            if path and "://" not in path and not path.startswith("mailto:") and not (page.parent / path).exists():
                broken.append(f"{_name(page)}: {link}")
    assert broken == []


def test_make_targets_in_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {"quickstart", "test", "clean", "help"} <= targets
    for page in PAGES:
        # Only commands: after a backtick or at the start of a line, so that "make sure" in prose is not one.
        named = set(re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE))
        assert named <= targets, f"{_name(page)} names {sorted(named - targets)}"


def test_decisions_are_numbered_without_gaps() -> None:
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(name.split("-")[0]) for name in names] == list(range(1, len(names) + 1))


@pytest.mark.parametrize("name", ["scripts/check", "scripts/setup", ".ci/run"])
def test_commands_can_be_run(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)
    assert _lines(ROOT / name)[0] == "#!/usr/bin/env bash"


def test_constraints_are_exact_and_each_given_once() -> None:
    lines = [line for line in _lines(ROOT / "constraints.txt") if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9a-z.]+", line)] == []
    assert lines[0].startswith("torch=="), "scripts/setup installs torch first"
    names = [re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in lines]
    assert len(names) == len(set(names))
