"""The folders at the top level become one package, ``trajgym``: in a wheel, and where the sources lie."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS: dict[str, Any] = PYPROJECT["tool"]["setuptools"]
FOLDER_OF: dict[str, str] = SETUPTOOLS["package-dir"]  # "trajgym.envs" -> "envs"

# Files in a package folder that are for a checkout alone. Anything else that lies there must reach the user.
NOT_SHIPPED = {"trajgym/scripts/check", "trajgym/scripts/setup"}


def _files(folder: Path) -> Iterator[Path]:
    """Every file under ``folder`` that belongs to the sources, without following links."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        paths = (Path(parent) / name for name in names if not name.endswith(".pyc"))
        yield from (path for path in paths if not path.is_symlink())


def _installed_paths() -> dict[str, Path]:
    """Where each source file lies once installed, such as ``trajgym/envs/base.py``."""
    return {
        f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder).as_posix()}": path
        for package, folder in FOLDER_OF.items()
        for path in _files(ROOT / folder)
    }


def _run(*command: str | Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | environment
    return subprocess.run(
        [str(part) for part in command], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the working tree, built from a copy so that old build output cannot slip into it."""
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for folder in FOLDER_OF.values():
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    built = _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, folder=copy)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def target(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed into it."""
    folder = tmp_path_factory.mktemp("target")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    installed = _run(*pip, "--no-deps", "--no-index", "--target", folder, wheel, folder=folder)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    return folder


def test_the_packages_list_is_what_lies_in_the_folders() -> None:
    packages = {
        Path(name).parent.as_posix().replace("/", ".") for name in _installed_paths() if name.endswith("/__init__.py")
    }
    assert SETUPTOOLS["packages"] == sorted(packages), "edit [tool.setuptools] packages in pyproject.toml"


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for name, path in _installed_paths().items() if name.endswith(".py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_links_and_the_mapping_name_the_same_folders() -> None:
    links = {path.name: os.readlink(path) for path in (ROOT / "trajgym").iterdir() if path.is_symlink()}
    assert links == {name: f"../{name}" for name in links}, "relative, so that a checkout can be moved"
    empty = [name for name in links if not (ROOT / name / "__init__.py").is_file()]
    assert empty == [], "git keeps no empty folder, so in a clone these links would lead nowhere"
    mapping = {"trajgym": "trajgym"} | {f"trajgym.{name}": name for name in links}
    assert mapping == FOLDER_OF, "edit [tool.setuptools.package-dir] in pyproject.toml, or the links in trajgym/"


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - metadata == set(_installed_paths()) - NOT_SHIPPED
    assert "trajgym/py.typed" in names
    assert {"METADATA", "entry_points.txt", "licenses/LICENSE"} <= {name.split("/", 1)[1] for name in metadata}


def test_what_is_not_shipped_exists() -> None:
    assert set(_installed_paths()) >= NOT_SHIPPED


BARE = "from importlib.util import find_spec; import sys; sys.exit(find_spec(sys.argv[1]) is not None)"
WHERE = "import sys, importlib; print(importlib.import_module(sys.argv[1]).__file__)"


@pytest.mark.parametrize("package", sorted(SETUPTOOLS["packages"]))
def test_the_installed_wheel_imports_from_anywhere(target: Path, tmp_path: Path, package: str) -> None:
    done = _run(sys.executable, "-c", WHERE, package, folder=tmp_path, PYTHONPATH=str(target))
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == target / package.replace(".", "/") / "__init__.py"


@pytest.mark.parametrize("name", sorted(set(FOLDER_OF.values()) - {"trajgym"}))
def test_bare_names_do_not_exist_once_installed(target: Path, tmp_path: Path, name: str) -> None:
    from_wheel = _run(sys.executable, "-c", BARE, name, folder=tmp_path, PYTHONPATH=str(target))
    from_checkout = _run(sys.executable, "-c", BARE, name, folder=tmp_path)
    assert (from_wheel.returncode, from_checkout.returncode) == (0, 0), f"`import {name}` works outside the checkout"


def test_the_editable_install_is_this_checkout(tmp_path: Path) -> None:
    done = _run(sys.executable, "-c", WHERE, "trajgym.envs.tools", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).resolve() == ROOT / "envs" / "tools" / "__init__.py"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_imported_package_is_a_declared_dependency() -> None:
    project = PYPROJECT["project"]
    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name != "dev"}
    requirements = [*project["dependencies"], *(need for needs in extras.values() for need in needs)]
    declared = {_normal(found[0]) for need in requirements if (found := re.match(r"[\w.-]+", need))}
    provides = importlib.metadata.packages_distributions()

    undeclared = {}
    for path in _installed_paths().values():
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                modules = [node.module]
            for top in {module.split(".")[0] for module in modules} - {"trajgym"} - sys.stdlib_module_names:
                if not declared & {_normal(name) for name in (top, *provides.get(top, ()))}:
                    undeclared[top] = path.relative_to(ROOT).as_posix()
    assert undeclared == {}, "add them to pyproject.toml, outside the dev extra"
