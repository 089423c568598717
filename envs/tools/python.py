"""Python as a tool: a notebook for the policy, in the isolated interpreter of :mod:`trajgym.envs.sandbox`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from trajgym.envs.sandbox import Kind, Limits, Pool, Result, Session
from trajgym.envs.tools.base import Tool, ToolFailure, register_tool, tool
from trajgym.errors import ConfigError, EnvironmentFault

__all__ = ["PythonTool", "python_tool"]

# What a policy is told; results that are none of these have no kind of their own in a dialogue.
_KINDS = {
    Kind.USER_ERROR: "exception",
    Kind.EXIT: "exit",
    Kind.MEMORY_LIMIT: "memory",
    Kind.CPU_TIMEOUT: "timeout",
    Kind.WALL_TIMEOUT: "timeout",
    Kind.OUTPUT_LIMIT: "output_limit",
    Kind.CRASH: "worker_died",
    Kind.PROCESS_EXIT: "worker_died",
    Kind.PROTOCOL_VIOLATION: "protocol_violation",
    Kind.BACKGROUND_ACTIVITY: "background_activity",
}
_MAX_TEXT = 10_000  # characters; ToolSessions would cut a longer one once more, and miscount
_LOST = "The interpreter was restarted: variables, functions and imports of earlier calls are gone."


class PythonTool:
    """The target of the tool ``python``; subclasses made by :func:`python_tool` differ in these options."""

    options: ClassVar[dict[str, Any]] = {}
    limits: ClassVar[Limits] = Limits()
    stateless: ClassVar[bool] = False
    can_clone: ClassVar[bool] = False
    isolation: str = "kernel"
    """What keeps the code from the host; an opened instance says which of the pool's kinds it is."""

    def open(self, seed: int) -> None:
        """Get ready for an episode; the interpreter itself starts with the first call."""
        self._seed = seed
        self._session: Session | None = None
        self.result: Result | None = None
        """The last call's result as the sandbox gave it."""
        self.isolation = shared_pool(**self.options).isolation

    def __call__(self, code: str) -> str:
        """Run Python code.

        Args:
            code: The program, or the next cell of it.
        """
        if self._session is None:
            self._session = shared_pool(**self.options).open(self._seed, limits=self.limits)
        try:
            self.result = result = self._session.call(code)
        finally:
            if self.stateless:
                self.close()
        self.isolation = result.isolation
        if result.kind in (Kind.POOL_DIED, Kind.SESSION_DEAD):  # for no reason that the code could have
            raise EnvironmentFault(f"The Python interpreter is gone: {result.message}")
        note = ""
        if result.state_lost and not self.stateless:
            self._session = None  # the next call gets a new one
            note = f"\n{_LOST}"
        text = result.text_within(_MAX_TEXT - len(note)).rstrip("\n") + note
        if result.ok:
            return text or "(no output)"
        kind = result.error_type if result.refused else _KINDS[result.kind]
        raise ToolFailure(kind, text)

    def clone(self) -> Self:
        """Return another that is ready for the same calls.

        Raises:
            ConfigError: An interpreter is running: what it holds cannot be copied.
        """
        if self._session is not None:
            raise ConfigError(
                "its interpreter is running, and the objects in it cannot be copied. Use python_tool(stateless=True), "
                "whose calls leave nothing behind."
            )
        twin = type(self)()
        twin.open(self._seed)
        twin.result, twin.isolation = self.result, self.isolation
        return twin

    def close(self) -> None:
        """End the episode's interpreter."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def python_tool(
    *,
    name: str = "python",
    description: str | None = None,
    limits: Limits | None = None,
    stateless: bool = False,
    packages: Iterable[str] = ("numpy", "mpmath", "sympy"),
    isolation: str | None = None,
    min_isolation: str | None = None,
    allow_unsafe: bool = False,
) -> Tool:
    """Make a ``python`` tool with options of its own, to pass as ``tools=(python_tool(...),)``.

    Args:
        name: What the policy writes.
        description: What the policy is told, in place of the usual text.
        limits: What an episode's interpreter may use.
        stateless: Whether each call gets an interpreter of its own, with nothing left of earlier ones.
        packages: Top-level packages that code may import besides the standard library.
        isolation: As for :class:`trajgym.envs.sandbox.Pool`.
        min_isolation: Likewise.
        allow_unsafe: Likewise.
    """
    limits = limits or Limits()
    packages = tuple(packages)
    options = {
        "packages": packages,
        "isolation": isolation,
        "min_isolation": min_isolation,
        "allow_unsafe": allow_unsafe,
        # The pool must know beforehand whether there will be scratch folders; each session brings its own limits.
        "scratch": limits.scratch,
    }
    state = "Every call starts afresh: nothing is left of earlier calls." if stateless else _STATE
    target = type(
        "PythonTool",
        (PythonTool,),
        {
            "options": options,
            "limits": limits,
            "stateless": stateless,
            "can_clone": stateless,
            "__module__": __name__,
        },
    )
    return tool(name=name, description=description or _description(state, packages))(target)


_STATE = "State is kept as in a notebook: variables, functions and imports of earlier calls can be used."


def _description(state: str, packages: Iterable[str]) -> str:
    *others, last = ["the standard library", *packages]
    importable = f"{', '.join(others)} and {last}" if others else last
    return (
        "Run Python code and return what it prints, followed by the value of its last line if that is an expression. "
        f"{state} Programs may import {importable}. There is no network, "
        "no keyboard input and no file of the host; time, memory and output are limited."
    )


_pools: dict[tuple[tuple[str, Any], ...], Pool] = {}
_pools_lock = threading.Lock()


def shared_pool(*, scratch: int | None, **options: Any) -> Pool:
    """Return the pool that all episodes of this process with these options share, started when first needed.

    Raises:
        IsolationUnavailable: This machine cannot isolate code as asked.
    """
    key = tuple(sorted({**options, "scratch": scratch}.items()))
    with _pools_lock:
        if key not in _pools:
            _pools[key] = Pool(limits=Limits(scratch=scratch), **options)
        return _pools[key]


def _forget_pools() -> None:
    """In the child of a fork: the parent's pools are the parent's."""
    global _pools_lock
    _pools_lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_pools)

register_tool(python_tool())
