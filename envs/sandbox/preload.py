"""What the zygote imports and warms, so that no call of a session pays for it."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from types import ModuleType

__all__ = ["preload"]

# What programs of a language model import most, beyond what these import themselves.
_STANDARD = """
abc array ast asyncio base64 bisect calendar cmath collections collections.abc concurrent.futures contextlib copy csv
ctypes dataclasses datetime decimal difflib enum fractions functools gc glob gzip hashlib heapq html http.client inspect
io itertools json keyword linecache locale logging math numbers operator os pathlib pickle platform pprint queue random
re secrets shutil signal socket sqlite3 ssl stat statistics string struct subprocess sys tempfile textwrap threading
time timeit traceback types typing unicodedata urllib.request uuid warnings weakref zlib zoneinfo
"""

# Extension modules of no use in a jail, some of them large.
_SKIPPED = (
    "_ctypes_test",
    "_curses",
    "_dbm",
    "_gdbm",
    "_test",
    "_tkinter",
    "_xx",
    "nis",
    "ossaudiodev",
    "readline",
    "xx",
)


def _warm_numpy() -> None:
    numpy = importlib.import_module("numpy")
    for part in ("fft", "linalg", "polynomial", "random", "ma"):
        importlib.import_module(f"numpy.{part}")
    numpy.random.default_rng(0).random()
    numpy.linalg.solve(numpy.eye(2), numpy.ones(2))
    repr(numpy.arange(3) / 2)


def _warm_sympy() -> None:
    sympy = importlib.import_module("sympy")
    x, y = sympy.symbols("x y")
    sympy.solve(x**2 - 2, x)
    sympy.solve([x + y - 3, x - y - 1], [x, y])
    sympy.factor(x**2 - 1)
    sympy.integrate(x**2, x)
    sympy.sympify("x + 1")
    repr(sympy.diff(sympy.sin(x) * x, x).evalf(subs={x: 1}))


def _warm_matplotlib() -> None:
    importlib.import_module("matplotlib").use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots()
    axes.plot([1, 2])
    axes.set_title("$x$")
    figure.canvas.draw()  # finds the fonts, of which a worker may not ask whether they exist
    pyplot.close(figure)


_WARM: dict[str, Callable[[], None]] = {
    "matplotlib": _warm_matplotlib,
    "numpy": _warm_numpy,
    "sympy": _warm_sympy,
}


class _Allowed:
    """Finds the allowed packages, and nothing else, in folders that hold more."""

    def __init__(self, packages: Collection[str], search: Sequence[str]) -> None:
        self._packages, self._search = frozenset(packages), list(search)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a top-level package; Python itself finds what is in one."""
        return PathFinder.find_spec(name, self._search) if path is None and name in self._packages else None


def preload(packages: Collection[str], search: Sequence[str], *, compiled: bool = False) -> None:
    """Import the usual standard library, its extension modules and ``packages``.

    Extension modules load system libraries that are out of a worker's sight; once loaded, they are found by name.

    Args:
        packages: Names of top-level packages.
        search: Folders that hold them.
        compiled: Whether to import every compiled part of the packages too, for workers that cannot load one later.

    Raises:
        ImportError: A package, or one that it needs, is not among those allowed.
    """
    sys.meta_path.append(_Allowed(packages, search))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (*_STANDARD.split(), *_extensions()):
            with contextlib.suppress(ImportError):  # built without it
                importlib.import_module(name)
        for name in packages:
            importlib.import_module(name)
            _WARM.get(name, lambda: None)()
        for name in [part for package in packages if compiled for part in _compiled_parts(sys.modules[package])]:
            with contextlib.suppress(Exception):  # for another machine, or in need of something that is not allowed
                importlib.import_module(name)
    # Neither would find a program to start; better to say so than to answer with a status that nobody reads.
    os.system = sys.modules["posix"].system = _no_shell  # type: ignore[assignment, attr-defined]
    # Workers never write bytecode, nor look for it where it is not.
    sys.dont_write_bytecode = True


def _no_shell(command: str) -> int:
    """Stand in for ``os.system``."""
    raise PermissionError(1, "There is no shell here, and no other program", str(command))


def _compiled_parts(package: ModuleType) -> Iterator[str]:
    """Yield the names of the extension modules in a package, but for those that serve its tests."""
    for root in getattr(package, "__path__", ()):
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if name not in ("test", "tests")]
            within = package.__name__ + folder[len(root) :].replace(os.sep, ".")
            names = {file.split(".")[0] for file in files if file.endswith(tuple(EXTENSION_SUFFIXES))}
            yield from (f"{within}.{name}" for name in sorted(names) if "test" not in name)


def _extensions() -> list[str]:
    folder = os.path.join(sysconfig.get_path("platstdlib"), "lib-dynload")
    names = {file.split(".")[0] for file in os.listdir(folder)} if os.path.isdir(folder) else set()
    return sorted(name for name in names if not name.startswith(_SKIPPED))
