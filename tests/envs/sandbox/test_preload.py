"""What the zygote imports: the usual standard library and the named packages, and nothing beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PRELOAD = """
from trajgym.envs.sandbox.preload import preload
packages, folder = given[0].split(), given[1]
try:
    preload(packages, [folder])
except ImportError as error:
    seen["refused"] = str(error)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Packages, one of which needs another; ``log`` tells who was imported."""
    for name, code in {
        "alone": "",
        "needy": "import helper",
        "helper": "",
        "greeting": "import warnings; warnings.warn('old'); import greeting.part",
        "stranger": "",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"{code}\n")
        (tmp_path / name / "part.py").touch()
    return tmp_path


def test_named_packages_are_imported_and_no_neighbour_can_be(child: Callable[..., Any], site: Path) -> None:
    ended = child(
        PRELOAD
        + """
seen["loaded"] = sorted(set(packages) & set(sys.modules))
for name in ("stranger", "alone.part"):
    try:
        __import__(name)
        seen[name] = "imported"
    except ImportError as error:
        seen[name] = str(error)
""",
        "alone greeting",
        site,
    )
    assert ended.status == 0, ended.errors
    assert ended.seen["loaded"] == ["alone", "greeting"]
    assert ended.seen["stranger"] == "No module named 'stranger'"
    assert ended.seen["alone.part"] == "imported"
    assert ended.errors == ""  # their warnings are not ours


def test_what_a_package_needs_must_be_named_too(child: Callable[..., Any], site: Path) -> None:
    assert child(PRELOAD, "needy", site).seen == {"refused": "No module named 'helper'"}
    assert child(PRELOAD, "needy helper", site).seen == {}


def test_the_usual_modules_are_there_and_extensions_stay_importable(child: Callable[..., Any], site: Path) -> None:
    ended = child(
        PRELOAD
        + """
seen["loaded"] = [name for name in ("json", "decimal", "asyncio", "zoneinfo", "_json", "zlib") if name in sys.modules]
seen["curses"] = "_curses" in sys.modules
seen["threads"] = len(os.listdir("/proc/self/task"))
seen["bytecode"] = sys.dont_write_bytecode
try:
    os.system("true")
except PermissionError as error:
    seen["system"] = str(error)
""",
        "",
        site,
    )
    assert ended.seen["loaded"] == ["json", "decimal", "asyncio", "zoneinfo", "_json", "zlib"]
    assert not ended.seen["curses"]
    assert ended.seen["threads"] == 1
    assert ended.seen["bytecode"]
    assert "There is no shell here" in ended.seen["system"]
