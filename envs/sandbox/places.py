"""Which files a worker may read: the standard library and the allowed packages, never a whole site-packages folder."""

from __future__ import annotations

import importlib.util
import os
import pwd
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass

from trajgym.errors import ConfigError, did_you_mean

__all__ = ["Places", "find_places", "unassigned_uid"]

_ZONES = "/usr/share/zoneinfo"


@dataclass(frozen=True)
class Places:
    """Where Python finds things in the jail.

    Args:
        search: Folders for ``sys.path`` beyond the standard library.
        read: Files and folders to keep readable.
        hide: Folders within them of which nothing else is to be seen.
    """

    search: tuple[str, ...]
    read: tuple[str, ...]
    hide: tuple[str, ...]


def find_places(packages: Iterable[str]) -> Places:
    """Find the standard library and ``packages`` of the running interpreter.

    Args:
        packages: Names of top-level packages or modules.

    Raises:
        ConfigError: One is not installed, or is not a top-level name.
    """
    library = sysconfig.get_path("stdlib")
    # In a virtual environment, the plain path would be that of the environment's folder, with every package in it.
    extra = sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix})
    read = [library, extra]
    search: list[str] = []
    for name in packages:
        folder, paths = _locate(name)
        read += paths
        if folder not in search and folder not in (library, extra):
            search.append(folder)
    hide = (f"{at}/{name}" for at in (library, extra) for name in ("site-packages", "dist-packages"))
    read += [path for path in (_ZONES, os.devnull) if os.path.exists(path)]
    return Places(tuple(search), tuple(dict.fromkeys(read)), tuple(dict.fromkeys(hide)))


def unassigned_uid() -> int:
    """Return a user id that no account has."""
    for uid in range(60017, 61000):
        try:
            pwd.getpwuid(uid)
        except KeyError:
            return uid
    raise ConfigError("Every user id from 60017 to 60999 has an account, and the interpreter needs one without.")


def _locate(name: str) -> tuple[str, list[str]]:
    """Return the folder a package is found in, and its own files: the package and the libraries it brings."""
    if not name.isidentifier():
        raise ConfigError(f"packages: {name!r} is no top-level package name such as 'numpy'.")
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # __main__ and other modules that were imported from nowhere
        spec = None
    if spec is None:
        close = did_you_mean(name, (p for p in ("numpy", "sympy", "mpmath", "scipy", "pandas", "networkx")))
        raise ConfigError(
            f"packages: {name!r} is not installed for {sys.executable}.{close} Install it or leave it out."
        )
    paths = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    if not os.path.exists(paths[0]):
        raise ConfigError(f"packages: {name!r} is built into Python or has no files; leave it out.")
    folder = os.path.dirname(paths[0])
    libraries = f"{folder}/{name}.libs"
    return folder, [*paths, *([libraries] if os.path.isdir(libraries) else [])]
