"""Imports from notes: all that was noted can be imported without a question to the file system, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Python tells of every question about a path.
INSTALLED = """
import importlib.machinery, importlib.util
from trajgym.envs.sandbox.stored import install, note
folder = given[0]
sys.path.append(folder)
install(note([f"{folder}/{name}" for name in given[1].split()]))
asked = []
for call in ("stat", "listdir"):
    def ask(path=None, *rest, call=getattr(os, call), **options):
        asked.append(str(path))
        return call(path, *rest, **options)
    setattr(sys.modules["posix"], call, ask)
def tell(name):
    try:
        return getattr(__import__(name, fromlist=["told"]), "told", "no word")
    except ImportError as error:
        return str(error)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in {
        "pack/__init__.py": "told = 'pack'",
        "pack/inner/__init__.py": "told = 'inner'",
        "pack/inner/deep.py": "told = 'deep'",
        "pack/tests/__init__.py": "told = 'tests'",
        "single.py": "told = 'single'",
        "spacious/part.py": "told = 'part'",
        "stranger/__init__.py": "told = 'stranger'",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pack", "pack"),
        ("pack.inner", "inner"),
        ("pack.inner.deep", "deep"),
        ("single", "single"),
        ("spacious.part", "part"),
        ("pack.tests", "No module named 'pack.tests'"),
        ("pack.nothing", "No module named 'pack.nothing'"),
        ("stranger", "No module named 'stranger'"),
    ],
)
def test_what_was_noted_can_be_imported(child: Callable[..., Any], site: Path, name: str, told: str) -> None:
    ended = child(
        INSTALLED + "seen['told'] = tell(given[2])\nseen['asked'] = asked", site, "pack single.py spacious", name
    )
    assert ended.seen.get("told") == told, ended.errors
    assert ended.seen["asked"] == []


def test_files_that_come_later_do_not_exist(child: Callable[..., Any], site: Path) -> None:
    code = INSTALLED + "open(folder + '/pack/late.py', 'w').close()\nseen['told'] = tell('pack.late')"
    assert child(code, site, "pack").seen == {"told": "No module named 'pack.late'"}


def test_the_notes_tell_what_a_folder_holds(child: Callable[..., Any], site: Path) -> None:
    ended = child(
        """
from trajgym.envs.sandbox.stored import note
files = note([given[0] + "/pack", given[0] + "/single.py"])
seen["folders"] = {path.removeprefix(given[0]): sorted(names) for path, names in files.folders.items()}
seen["same"] = all(os.stat(path) == found for path, found in files.stats.items())
seen["tests"] = any("/tests" in path for path in files.stats)
""",
        site,
    )
    folders = ended.seen["folders"]
    assert folders["/pack"] == ["__init__.py", "inner"]
    assert folders[""] == ["pack", "single.py"]
    assert ended.seen["same"]
    assert not ended.seen["tests"]
