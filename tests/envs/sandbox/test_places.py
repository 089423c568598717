"""Which files a worker may read: exactly those of the packages that were named."""

from __future__ import annotations

import os
import pwd
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from trajgym.envs.sandbox import places
from trajgym.envs.sandbox.places import find_places, unassigned_uid
from trajgym.errors import ConfigError


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages: an ordinary one with libraries, a single file, a namespace package."""
    for name in ("ordinary", "ordinary.libs", "spacious/part", "neighbour"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("ordinary/__init__.py", "single.py", "spacious/part/__init__.py", "neighbour/__init__.py"):
        (tmp_path / name).touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_without_packages_there_is_the_standard_library_alone() -> None:
    found = find_places(())
    library = sysconfig.get_path("stdlib")
    assert found.search == ()
    assert library in found.read
    assert os.devnull in found.read
    assert not [path for path in found.read if path.rstrip("/").endswith(("site-packages", "dist-packages"))]
    assert f"{library}/site-packages" in found.hide


def test_no_folder_of_packages_is_in_sight_as_a_whole() -> None:
    found = find_places(("numpy",))
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *found.search}:
        for path in found.read:
            assert not f"{site}/".startswith(f"{path}/") or site in found.hide, f"{path} shows all of {site}"


def test_a_package_brings_its_own_files_and_its_libraries(site: Path) -> None:
    found = find_places(("ordinary", "single", "spacious"))
    assert found.search == (str(site),)
    here = {path for path in found.read if path.startswith(str(site))}
    assert here == {f"{site}/{name}" for name in ("ordinary", "ordinary.libs", "single.py", "spacious")}


def test_a_package_of_the_standard_library_adds_nothing_to_search() -> None:
    assert find_places(("json",)).search == ()


def test_nothing_is_listed_twice(site: Path) -> None:
    found = find_places(("ordinary", "ordinary", "json", "json"))
    assert len(found.read) == len(set(found.read))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nunpy", r"'nunpy' is not installed for .*python.*Did you mean 'numpy'\? Install it or leave it out"),
        ("os.path", "'os.path' is no top-level package name such as 'numpy'"),
        ("../etc", "no top-level package name"),
        ("", "no top-level package name"),
        ("sys", "'sys' is built into Python or has no files"),
        ("__main__", "'__main__' is not installed"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(ConfigError, match=message):
        find_places((name,))


def test_the_user_has_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError):
        pwd.getpwuid(unassigned_uid())
    taken = {60017, 60018}

    def getpwuid(uid: int) -> None:
        if uid not in taken:
            raise KeyError(uid)

    monkeypatch.setattr(places, "pwd", SimpleNamespace(getpwuid=getpwuid))
    assert unassigned_uid() == 60019
    taken.update(range(60017, 61000))
    with pytest.raises(ConfigError, match="60017 to 60999"):
        unassigned_uid()
