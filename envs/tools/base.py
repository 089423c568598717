"""A tool: a typed function with a docstring, or a class when it has a state.

>>> @tool
... def lookup(table: str, row: int, exact: bool = False) -> str:
...     '''Look up a row of a table.
...
...     Args:
...         table: Its name.
...     '''
...     return f"{table}[{row}]"
>>> lookup.signature
'lookup(table: string, row: integer, exact: boolean = false)'
>>> lookup.check({"table": "t", "row": "3"}).kind
'wrong_type'

A class has ``__call__`` with the typed arguments and optionally ``open(seed)`` and ``close()``; every episode
gets an instance of its own. With a ``clone()``, which returns an independent instance in the same state, an episode
that uses it can be cloned in the middle.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import cloudpickle

from trajgym.envs.tools.arguments import Arguments
from trajgym.envs.tools.docstring import Docstring
from trajgym.errors import ConfigError, ToolDefinitionError
from trajgym.registry import Registry
from trajgym.types import CallError

__all__ = ["TOOLS", "Tool", "ToolFailure", "get_tool", "register_tool", "select_tools", "tool"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_KIND = re.compile(r"[a-z][a-z0-9_]*")


class ToolFailure(Exception):
    """Raised by a tool to answer with a typed error instead of a result.

    Args:
        kind: The kind of error in lower case, such as ``"division_by_zero"``.
        message: A sentence for the policy.
    """

    def __init__(self, kind: str, message: str) -> None:
        if not _KIND.fullmatch(kind):
            raise ValueError(f"The kind of a ToolFailure looks like 'not_found', got {kind!r}")
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return self.message


class Tool:
    """Something a policy may call; made by :func:`tool`. Immutable.

    Args:
        target: A function, or a class with ``__call__``.
        name: What the policy writes; the name of the target by default.
        description: What the policy is told; the docstring without its sections on code by default.
        timeout: Time limit of a call in seconds. A tool that has one runs in a process of its own, where it
            can be killed, so its function and its arguments must be picklable (by cloudpickle).

    Raises:
        ToolDefinitionError: A policy could not call this, or it could not be run as asked.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self.stateful = inspect.isclass(target)
        if not (self.stateful or inspect.isroutine(target)):
            raise ToolDefinitionError(f"A tool is a function or a class with __call__, got {target!r}.")
        self.name = target.__name__ if name is None else name
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ToolDefinitionError(
                f"A tool cannot be called {self.name!r}: names are 1 to 64 letters, digits, `_` and `-` and begin "
                "with a letter or `_`. Pass name=."
            )
        function = self._called(target) if inspect.isclass(target) else target
        self._refuse_unusual(function)
        docstring = Docstring.read(target.__doc__)
        if inspect.isclass(target) and not docstring.parameters:
            parameters = Docstring.read(function.__doc__).parameters
        else:
            parameters = docstring.parameters
        self.description = docstring.description if description is None else description.strip()
        if not self.description:
            raise ToolDefinitionError(
                f"Tool {self.name!r} has no docstring, so a policy could not know what it does. Write one, or pass "
                "description=."
            )
        if timeout is not None and not _is_positive(timeout):
            raise ToolDefinitionError(f"The timeout of tool {self.name!r} must be a number of seconds > 0: {timeout!r}")
        self.timeout = None if timeout is None else float(timeout)
        self.target = target
        self._given_description = description
        self._arguments = Arguments(function, self.name, parameters)
        if timeout is not None:
            self._pickle()
        self.__doc__ = target.__doc__

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of the arguments: an object, with nothing but its properties allowed."""
        return self._arguments.schema

    @property
    def signature(self) -> str:
        """The tool in one line, with the names JSON gives to types."""
        return self._arguments.signature

    @property
    def isolation(self) -> str:
        """How it is kept from the host: the attribute ``isolation`` of the target, else ``"process"`` or ``"none"``."""
        return str(getattr(self.target, "isolation", "none" if self.timeout is None else "process"))

    @functools.cached_property
    def payload(self) -> bytes:
        """The target as cloudpickle ships it to another process."""
        return self._pickle()

    @property
    def can_clone(self) -> bool:
        """Whether an episode can be cloned whatever the tool has done in it.

        A function always can. A class can if it has a ``clone()``, no attribute ``can_clone`` that is false, and no
        timeout, since nobody but its own process knows its state then.
        """
        if not self.stateful:
            return True
        return self.timeout is None and hasattr(self.target, "clone") and bool(getattr(self.target, "can_clone", True))

    def check(self, arguments: Mapping[str, Any]) -> CallError | None:
        """Return what is wrong with ``arguments``, or ``None``. Nothing is coerced."""
        read = self._arguments.read(arguments)
        return read if isinstance(read, CallError) else None

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any] | CallError:
        """Return the keyword arguments for the target, defaults filled in, or what is wrong."""
        return self._arguments.read(arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what was decorated, without any check."""
        return self.target(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.signature}>"

    def __copy__(self) -> Tool:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Tool:
        return self

    def __reduce__(self) -> tuple[Callable[..., Tool], tuple[Any, ...]]:
        module, path = self.target.__module__, self.target.__qualname__
        if module in sys.modules and module != "__main__" and _find(module, path) is self:
            return _find, (module, path)
        return _rebuild, (self.target, self.name, self._given_description, self.timeout)

    def _called(self, cls: type[Any]) -> Callable[..., Any]:
        call = next((c.__dict__["__call__"] for c in cls.__mro__ if "__call__" in c.__dict__), None)
        if call is None:
            raise ToolDefinitionError(f"Class {cls.__name__!r} has no __call__ to run when the policy calls it.")
        for function, arguments, form in (
            (cls, (), "__init__(self)"),
            (getattr(cls, "open", None), (None, 0), "open(self, seed)"),
            (getattr(cls, "close", None), (None,), "close(self)"),
            (getattr(cls, "clone", None), (None,), "clone(self)"),
        ):
            try:
                if function is not None:
                    inspect.signature(function).bind(*arguments)
            except TypeError as error:
                raise ToolDefinitionError(f"Class {cls.__name__!r} needs the form {form}: {error}.") from error
            if function is not None:
                self._refuse_unusual(function)
        # Bound to a stand-in, so that `self` is no argument of the tool.
        return call.__get__(object.__new__(cls), cls)  # type: ignore[no-any-return]

    def _refuse_unusual(self, function: Callable[..., Any]) -> None:
        inner = inspect.unwrap(function)
        if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
            raise ToolDefinitionError(
                f"Tool {self.name!r} is async. Write a plain `def`; the calls of one turn run concurrently anyway, and "
                "asyncio.run() serves within."
            )
        if inspect.isgeneratorfunction(inner):
            raise ToolDefinitionError(f"Tool {self.name!r} is a generator. Return one value.")

    def _pickle(self) -> bytes:
        try:
            return cloudpickle.dumps(self.target)  # type: ignore[no-any-return]
        except Exception as error:
            raise ToolDefinitionError(
                f"Tool {self.name!r} cannot be sent to the process in which timeout= runs it: {error}. Make such "
                "objects within the tool, or drop the timeout."
            ) from error


@overload
def tool(target: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, timeout: float | None = None
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    target: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function or class, as ``@tool`` or ``@tool(timeout=5)``; see :class:`Tool`.

    Raises:
        ToolDefinitionError: Something about it cannot work.
    """
    if target is None:
        return lambda t: Tool(t, name=name, description=description, timeout=timeout)
    return Tool(target, name=name, description=description, timeout=timeout)


TOOLS: Registry[Tool] = Registry(
    "tool",
    entry_points="trajgym.tools",
    hint="Pass a Tool itself, or register_tool() it.",
)


def register_tool(tool: Tool, *, replace: bool = False) -> Tool:
    """Make a tool known by its name; returns it, so it can stand above ``@tool``.

    Raises:
        ConfigError: Another tool has the name and ``replace`` is not set, or it is no tool.
    """
    if not isinstance(tool, Tool):
        raise ConfigError(f"register_tool() takes what @tool makes, got {tool!r}.")
    return TOOLS.register(tool.name, tool, replace=replace)


def get_tool(tool: str | Tool) -> Tool:
    """Return a tool by its registered name; a tool itself is returned as it is.

    Raises:
        UnknownNameError: Nobody registered the name.
        ConfigError: It is no tool.
    """
    found: object = TOOLS[tool] if isinstance(tool, str) else tool
    if not isinstance(found, Tool):
        raise ConfigError(f"A tool is a registered name or what @tool makes, got {found!r}. Decorate it with @tool.")
    return found


def select_tools(tools: Iterable[str | Tool]) -> dict[str, Tool]:
    """Return the tools of one environment by name, in their order.

    Raises:
        UnknownNameError: Nobody registered a name.
        ConfigError: Two tools have one name, or something is no tool.
    """
    if isinstance(tools, (str, Tool)):
        raise ConfigError(f"tools= takes several: write ({tools!r},), with a comma.")
    selected: dict[str, Tool] = {}
    for item in tools:
        found = get_tool(item)
        if found.name in selected:
            raise ConfigError(f"Two tools are called {found.name!r}. Drop one, or rename it with @tool(name=...).")
        selected[found.name] = found
    return selected


def _is_positive(timeout: object) -> bool:
    return isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and 0 < timeout < math.inf


def _find(module: str, path: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _rebuild(target: Callable[..., Any], name: str, description: str | None, timeout: float | None) -> Tool:
    return Tool(target, name=name, description=description, timeout=timeout)
