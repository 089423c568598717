"""Imports without asking the file system, for workers that may read files but not ask about them.

Landlock guards the content of files, not their metadata, so where the host's tree is in sight the system-call filter
refuses ``stat`` and its kin altogether. Python's import system needs them. The zygote therefore notes beforehand what
they would say about the standard library and the allowed packages, and workers import from these notes.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

__all__ = ["Files", "install", "note"]


class Files:
    """Folders with what they hold, and files with what ``stat`` says of them."""

    def __init__(self) -> None:
        self.folders: dict[str, list[str]] = {}
        self.stats: dict[str, os.stat_result] = {}


def note(roots: Iterable[str]) -> Files:
    """Walk through ``roots`` and keep what an import may ask of them."""
    files = Files()
    for root in roots:
        if os.path.isfile(root):
            files.stats[root] = os.stat(root)
        for folder, folders, names in os.walk(root):
            folders[:] = [n for n in folders if n not in ("tests", "test", "site-packages", "dist-packages")]
            files.stats[folder] = os.stat(folder)
            files.folders[folder] = folders + names
            for name in names:
                path = f"{folder}/{name}"
                if name.endswith((".py", ".pyc", ".so")) and os.path.exists(path):
                    files.stats[path] = os.stat(path)
    for root in roots:  # a namespace package's or a module's folder is asked for the one name in it
        parent, name = os.path.split(root)
        if parent not in files.folders or name not in files.folders[parent]:
            files.folders.setdefault(parent, []).append(name)
            files.stats.setdefault(parent, os.stat(parent))
    return files


def install(files: Files) -> None:
    """Make the import system of this process ask ``files`` in place of the file system."""
    bootstrap: Any = sys.modules["_frozen_importlib_external"]
    bootstrap._os = _Noted("posix", files, bootstrap._os)
    for finder in list(sys.path_importer_cache.values()):
        if isinstance(finder, importlib.machinery.FileFinder):
            finder.invalidate_caches()


class _Noted(ModuleType):
    """The part of ``posix`` that the import system uses; what is not noted does not exist."""

    def __init__(self, name: str, files: Files, posix: Any) -> None:
        super().__init__(name)
        self._files, self._posix = files, posix

    def stat(self, path: str) -> os.stat_result:
        """Return what was noted."""
        try:
            return self._files.stats[os.fspath(path)]
        except KeyError:
            raise FileNotFoundError(2, "No such file or directory", path) from None

    def listdir(self, path: str) -> list[str]:
        """Return the names that were noted."""
        try:
            return self._files.folders[path]
        except KeyError:
            raise FileNotFoundError(2, "No such file or directory", path) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._posix, name)
