"""Registry: names to things, from this package and from installed ones."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.registry import Registry

GROUP = "trajgym.test_colours"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with a distribution that adds the colours ``blue`` and ``red``."""
    (tmp_path / "colours_plugin.py").write_text("BLUE = 3\nRED = 4\n")
    metadata = tmp_path / "colours_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: colours-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\nblue = colours_plugin:BLUE\nred = colours_plugin:RED\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield metadata / "entry_points.txt"
    sys.modules.pop("colours_plugin", None)


@pytest.fixture
def colours() -> Registry[int]:
    return Registry("colour", entry_points=GROUP, hint="Mix one.")


def test_what_is_registered_is_found() -> None:
    colours: Registry[object] = Registry("colour")
    red = object()
    assert colours.register("red", red) is red
    assert colours["red"] is red
    assert colours.get("rde") is None
    assert (list(colours), len(colours), "red" in colours, "rde" in colours) == (["red"], 1, True, False)


def test_a_name_is_not_taken_silently() -> None:
    colours: Registry[object] = Registry("colour")
    red = colours.register("red", object())
    colours.register("red", red)  # the same thing again, e.g. a module that is loaded twice
    with pytest.raises(ConfigError, match=r"The colour 'red' exists already.*replace=True"):
        colours.register("red", object())
    assert colours["red"] is red
    other = object()
    assert colours.register("red", other, replace=True) is colours["red"] is other


@pytest.mark.parametrize("name", ["rde", "", 3, None, ["red"], {}])
def test_anything_else_is_unknown(name: object) -> None:
    colours: Registry[int] = Registry("colour", hint="Mix one.")
    colours.register("red", 1)
    with pytest.raises(UnknownNameError, match=r"Unknown colour .* Known: 'red'\. Mix one\."):
        colours[name]  # type: ignore[index]


def test_the_list_may_grow_while_one_goes_through_it() -> None:
    colours: Registry[int] = Registry("colour")
    colours.register("red", 1)
    assert [colours.register(f"{name}ish", 2) for name in colours] == [2]


def test_installed_packages_add_names(installed: Path, colours: Registry[int]) -> None:
    assert colours["blue"] == 3
    assert sorted(colours) == ["blue", "red"]
    with pytest.raises(UnknownNameError, match="Known: 'blue', 'red'"):
        colours["green"]


@pytest.mark.parametrize("look", [len, list, lambda c: "blue" in c])
def test_every_way_to_look_finds_them(installed: Path, colours: Registry[int], look: object) -> None:
    assert look(colours)  # type: ignore[operator]


def test_they_are_not_imported_before_somebody_asks(installed: Path, colours: Registry[int]) -> None:
    colours.register("red", 1)
    assert colours["red"] == 1
    assert "colours_plugin" not in sys.modules
    assert colours["blue"] == 3
    assert "colours_plugin" in sys.modules


def test_ones_own_name_goes_before_an_installed_one(installed: Path, colours: Registry[int]) -> None:
    colours.register("red", 1)
    assert dict(colours) == {"red": 1, "blue": 3}


@pytest.mark.parametrize(
    ("value", "reason"),
    [("colours_plugin:GREEN", "AttributeError"), ("nowhere_to_be_found:X", "ModuleNotFoundError: No module named")],
)
def test_a_broken_package_is_named_each_time(installed: Path, colours: Registry[int], value: str, reason: str) -> None:
    installed.write_text(f"[{GROUP}]\naaa = {value}\nblue = colours_plugin:BLUE\n")
    colours.register("red", 1)
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"The colour 'aaa' cannot be loaded from '{value}': {reason}.*colours"):
            colours["aaa"]
    assert (colours["red"], colours["blue"]) == (1, 3)  # what others bring still works
    assert sorted(colours) == ["aaa", "blue", "red"]
    installed.write_text(f"[{GROUP}]\naaa = colours_plugin:RED\n")
    with pytest.raises(UnknownNameError):
        colours["green"]
    assert colours["aaa"] == 4
