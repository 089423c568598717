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
        entry_points: Entry-point group whose members are loaded when a name is first looked up.
        hint: Sentence added to the error for an unknown name.
    """

    def __init__(self, kind: str, *, entry_points: str | None = None, hint: str = "") -> None:
        self.kind = kind
        self.hint = hint
        self._group = entry_points
        self._items: dict[str, T] = {}

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
            ConfigError: When an installed package promises something that cannot be loaded.
        """
        if isinstance(name, str):  # whatever else a caller asks for may not even be hashable
            if name not in self._items:
                self._load_entry_points()
            if name in self._items:
                return self._items[name]
        raise UnknownNameError(self.kind, name, self._items, self.hint)

    def __contains__(self, name: object) -> bool:
        self._load_entry_points()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        self._load_entry_points()
        return iter(dict(self._items))

    def __len__(self) -> int:
        self._load_entry_points()
        return len(self._items)

    def _load_entry_points(self) -> None:
        # Loaded late, so that importing the package does not import its plug-ins.
        group, self._group = self._group, None
        if group is None:
            return
        for point in importlib.metadata.entry_points(group=group):
            if point.name in self._items:
                continue
            try:
                self._items[point.name] = point.load()
            except Exception as error:
                self._group = group  # or the names behind this one would seem unknown from now on
                package = point.dist.name if point.dist else "the package that declares it"
                raise ConfigError(
                    f"The {self.kind} {point.name!r} cannot be loaded from {point.value!r}: {type(error).__name__}: "
                    f"{error}. Repair or uninstall {package} (entry-point group {group!r})."
                ) from error
