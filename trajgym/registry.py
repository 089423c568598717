"""Names to things, with entry points and errors that help.

>>> colours: Registry[int] = Registry("colour")
>>> colours.register("red", 1)
1
>>> colours["rde"]
Traceback (most recent call last):
    ...
trajgym.errors.UnknownNameError: Unknown colour 'rde'. Did you mean 'red'? Known: 'red'.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from trajgym.errors import ConfigError, UnknownNameError

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping of registered names, filled by :meth:`register` and by installed packages.

    Args:
        kind: What is registered, in the singular, for messages.
        entry_points: Entry-point group; a member of it is loaded when its name is looked up.
        hint: Sentence added to the error for an unknown name.
    """

    def __init__(self, kind: str, *, entry_points: str | None = None, hint: str = "") -> None:
        self.kind = kind
        self.hint = hint
        self._group = entry_points
        self._items: dict[str, T] = {}
        self._promised: dict[str, importlib.metadata.EntryPoint] | None = None

    def register(self, name: str, item: T, *, replace: bool = False) -> T:
        """Add ``item`` under ``name`` and return it.

        Raises:
            ConfigError: When another item has the name and ``replace`` is not set.
        """
        if not replace and self._items.get(name, item) is not item:
            raise ConfigError(f"The {self.kind} {name!r} exists already. Choose another name, or pass replace=True.")
        self._items[name] = item
        return item

    def registered(self) -> dict[str, T]:
        """Return what is known by now; looks for no further installed packages."""
        return dict(self._items)

    def __getitem__(self, name: str) -> T:
        """Return the item called ``name``.

        Raises:
            UnknownNameError: When nobody registered it.
            ConfigError: When an installed package promises it, and it cannot be loaded.
        """
        if isinstance(name, str):  # whatever else a caller asks for may not even be hashable
            if name not in self._items:
                self._promised = None  # what could not be loaded may have been repaired
                if name in self._entry_points():
                    self._items[name] = self._load(name)
            if name in self._items:
                return self._items[name]
        raise UnknownNameError(self.kind, name, list(self), self.hint)

    def __contains__(self, name: object) -> bool:
        return name in self._items or name in self._entry_points()

    def __iter__(self) -> Iterator[str]:
        return iter({**self._items, **self._entry_points()})

    def __len__(self) -> int:
        return len(self._items.keys() | self._entry_points().keys())

    def _entry_points(self) -> dict[str, importlib.metadata.EntryPoint]:
        # Looked for late, so that importing the package does not read what is installed.
        if self._promised is None:
            found = importlib.metadata.entry_points(group=self._group) if self._group else ()
            self._promised = {point.name: point for point in found}
        return self._promised

    def _load(self, name: str) -> T:
        point = self._entry_points()[name]
        try:
            item: T = point.load()
        except Exception as error:
            package = point.dist.name if point.dist else "the package that declares it"
            raise ConfigError(
                f"The {self.kind} {name!r} cannot be loaded from {point.value!r}: {type(error).__name__}: "
                f"{error}. Repair or uninstall {package} (entry-point group {self._group!r})."
            ) from error
        return item
