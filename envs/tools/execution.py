"""The tools of one episode at work: concurrent calls, fresh state, time limits that hold.

>>> from trajgym.envs.tools.base import tool
>>> @tool
... def double(number: int) -> int:
...     '''Double a number.'''
...     return 2 * number
>>> with ToolSessions([double], seed=0) as sessions:
...     results = sessions.run([ToolCall("double", {"number": 21}), ToolCall("double", {"number": "21"})])
>>> [(result.content, result.error) for result in results][0]
('42', None)
>>> results[1].error
'wrong_type'
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in; `signal` wraps it
import copy
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from trajgym.envs.tools.base import Tool, select_tools
from trajgym.envs.tools.process import ToolProcess, ToolProcessDied, give_back, take
from trajgym.envs.tools.worker import Outcome, finish, invoke, start
from trajgym.errors import ConfigError, EnvironmentFault, EpisodeError, did_you_mean
from trajgym.types import CallError, ToolCall, ToolResult

__all__ = ["ToolSessions", "side_by_side"]

_MAX_CONCURRENT = 16
_LOOK_UP = 0.2  # seconds; a wait is broken off so often to see what else there is
_log = logging.getLogger(__name__)


class ToolSessions:
    """The tools of one episode. Close it, or use it as a context manager.

    Args:
        tools: Names and tools.
        seed: Given to ``open`` of every tool that has a state.
        max_chars: Most characters of a result; a longer one loses its middle.

    Raises:
        UnknownNameError: Nobody registered a name.
        ConfigError: Two tools have one name.
    """

    def __init__(self, tools: Iterable[str | Tool], seed: int, *, max_chars: int = 10_000) -> None:
        self.tools = select_tools(tools)
        self._closed = False
        self._sessions: dict[str, _Session] = {
            name: (_InHere if tool.timeout is None else _InProcess)(tool, seed, max_chars)
            for name, tool in self.tools.items()
        }

    def run(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """Run the calls of one turn, concurrently; calls to one tool with a state run in their order.

        Args:
            calls: The calls. One that a tool cannot take gives an error result.

        Returns:
            One result per call, in call order.

        Raises:
            EnvironmentFault: A tool failed for a reason the policy cannot have.
            EpisodeError: After :meth:`close`.
        """
        if self._closed:
            raise EpisodeError("These tools are closed: the episode has ended. Make new ToolSessions for the next.")
        results: list[ToolResult | None] = [None] * len(calls)
        lanes: dict[object, list[int]] = {}
        for i, call in enumerate(calls):
            tool = self.tools.get(call.name)
            lanes.setdefault(call.name if tool is not None and tool.stateful else i, []).append(i)

        def drive(lane: list[int]) -> None:
            for i in lane:
                results[i] = self._run_one(calls[i])

        if len(lanes) == 1:
            drive(*lanes.values())
        elif lanes:
            side_by_side(drive, list(lanes.values()))
        return tuple(result for result in results if result is not None)

    def clone(self) -> Self:
        """Return independent tools in exactly the same state.

        Raises:
            ConfigError: A tool has a state that cannot be cloned.
            EnvironmentFault: A tool failed to clone itself.
        """
        twin = copy.copy(self)
        twin._sessions = {}
        try:
            for name, session in self._sessions.items():
                twin._sessions[name] = session.clone()
        except BaseException:
            twin.close()
            raise
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()

    def close(self) -> None:
        """Close every tool that was opened. Idempotent; a tool that fails to close is logged."""
        self._closed = True
        for name, session in self._sessions.items():
            try:
                session.close()
            except Exception:
                _log.warning("Tool %r failed to close", name, exc_info=True)

    def __enter__(self) -> ToolSessions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Without this, the process of a tool whose episode was dropped would live as long as the interpreter.
        if not getattr(self, "_closed", True):
            self.close()

    def _run_one(self, call: ToolCall) -> ToolResult:
        tool = self.tools.get(call.name)
        if tool is None:
            known = ", ".join(self.tools) or "none"
            close = did_you_mean(call.name, self.tools)
            return ToolResult(call, f"There is no tool {call.name!r}.{close} Tools: {known}.", "unknown_tool")
        arguments = tool.read(call.arguments)
        if isinstance(arguments, CallError):
            return ToolResult(call, arguments.message, arguments.kind)
        began = time.perf_counter()
        session = self._sessions[tool.name]
        outcome = session.call(arguments)
        seconds = time.perf_counter() - began
        return ToolResult(call, outcome.content, outcome.error, seconds, session.isolation)


def side_by_side(work: Callable[[list[int]], None], lanes: Sequence[list[int]], *, most: int = _MAX_CONCURRENT) -> None:
    """Do ``work`` with every lane in at most ``most`` threads and wait for all of them.

    The threads are daemons, unlike those of an executor: a tool that never returns must not keep the process alive.

    Raises:
        BaseException: The first error among the lanes, in their order.
    """
    waiting = iter(range(len(lanes)))
    errors: dict[int, BaseException] = {}

    def drive() -> None:
        for i in waiting:  # an iterator over a range hands out each number once, to whichever thread asks
            try:
                work(lanes[i])
            except BaseException as error:
                errors[i] = error

    threads = [
        threading.Thread(target=drive, name=f"trajgym-tool-{i}", daemon=True) for i in range(min(len(lanes), most))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        # Not one long wait: a Ctrl-C that comes between the interpreter's last look and the wait is seen only after it.
        while thread.is_alive():
            thread.join(_LOOK_UP)
    if errors:
        raise errors[min(errors)]


class _Session(Protocol):
    """One tool within one episode."""

    def __init__(self, tool: Tool, seed: int, limit: int) -> None: ...

    @property
    def isolation(self) -> str:
        """How what runs is kept from the host."""

    def call(self, arguments: Mapping[str, Any]) -> Outcome:
        """Run it; opened at the first call."""

    def clone(self) -> _Session:
        """Return an independent one in the same state."""

    def close(self) -> None:
        """End it, if it was opened."""


class _InHere:
    """A tool without a time limit: a plain call in this process."""

    def __init__(self, tool: Tool, seed: int, limit: int) -> None:
        self._tool, self._seed, self._limit = tool, seed, limit
        self._function: Callable[..., Any] | None = None if tool.stateful else tool.target

    @property
    def isolation(self) -> str:
        # An instance may know it only once it is open.
        return str(getattr(self._function, "isolation", "none"))

    def call(self, arguments: Mapping[str, Any]) -> Outcome:
        if self._function is None:
            try:
                self._function = start(self._tool.target, self._seed)
            except (ConfigError, EnvironmentFault):  # they know best what is missing, and whose fault it is
                raise
            except Exception as error:
                raise EnvironmentFault(f"The tool {self._tool.name!r} did not open: {error!r}") from error
        with _TellInterrupts():
            return invoke(self._function, arguments, self._limit, (EnvironmentFault, _UsersInterrupt))

    def clone(self) -> _InHere:
        twin = _InHere(self._tool, self._seed, self._limit)
        if self._tool.stateful and self._function is not None:
            twin._function = _cloned(self._tool.name, self._function)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        if self._tool.stateful and self._function is not None:
            raise ConfigError(
                f"Tool {self._tool.name!r} has a state in this episode, which cannot be pickled. Pickle the "
                "environment before the tool's first call or between episodes, or clone() it within this process."
            )
        return _InHere, (self._tool, self._seed, self._limit)

    def close(self) -> None:
        if self._tool.stateful and self._function is not None:
            function, self._function = self._function, None
            finish(function)


class _InProcess:
    """A tool with a time limit: one process per call without a state, else one per episode."""

    def __init__(self, tool: Tool, seed: int, limit: int) -> None:
        self._tool, self._seed, self._limit = tool, seed, limit
        self._process: ToolProcess | None = None

    @property
    def isolation(self) -> str:
        return self._tool.isolation

    def call(self, arguments: Mapping[str, Any]) -> Outcome:
        process = self._open() if self._tool.stateful else take(self._tool)
        name, lost = self._tool.name, " Its state is lost: the next call starts anew." if self._tool.stateful else ""
        try:
            outcome, reusable = process.call(arguments, self._limit)
        except TimeoutError:
            return Outcome(f"{name} was stopped after its time limit of {self._tool.timeout:g} s.{lost}", "timeout")
        except ToolProcessDied as error:
            return Outcome(f"The process of {name} broke down ({error}).{lost}", "worker_died")
        if not self._tool.stateful:
            if reusable:
                give_back(process)
            else:
                process.kill()
        return outcome

    def clone(self) -> _InProcess:
        self._refuse_live("cloned", "Drop its timeout and give it a clone(), or let it keep no state")
        return _InProcess(self._tool, self._seed, self._limit)

    def __reduce__(self) -> tuple[Any, ...]:
        self._refuse_live("pickled", "Pickle the environment before the tool's first call or between episodes")
        return _InProcess, (self._tool, self._seed, self._limit)

    def close(self) -> None:
        if self._process is not None:
            self._process.close()

    def _refuse_live(self, done: str, remedy: str) -> None:
        # Once it was killed, the next call starts from the seed again: there is no state that could be lost.
        if self._process is not None and self._process.usable:
            raise ConfigError(
                f"Tool {self._tool.name!r} cannot be {done} now: with timeout= its state is in a process of its own. "
                f"{remedy}."
            )

    def _open(self) -> ToolProcess:
        if self._process is None or not self._process.usable:
            self._process = ToolProcess(self._tool, self._seed)
        return self._process


def _cloned(name: str, instance: Any) -> Any:
    """Ask an opened tool for its clone."""
    if not hasattr(instance, "clone"):
        raise ConfigError(
            f"Tool {name!r} has a state in this episode and cannot be cloned. Give its class a method clone(self) that "
            "returns an independent instance in the same state; copy.deepcopy(self) where all of it can be copied."
        )
    try:
        twin = instance.clone()
    except ConfigError as error:
        raise ConfigError(f"Tool {name!r} cannot be cloned now: {error}") from error
    except EnvironmentFault:
        raise
    except Exception as error:
        raise EnvironmentFault(f"The tool {name!r} did not clone itself: {error!r}") from error
    if twin is instance or type(twin) is not type(instance):
        raise ConfigError(f"clone() of the tool {name!r} must return another instance of its class, got {twin!r}.")
    return twin


class _UsersInterrupt(KeyboardInterrupt):
    """Ctrl-C at the keyboard, as opposed to a tool that raises KeyboardInterrupt."""


class _TellInterrupts:
    """Tells Ctrl-C from a KeyboardInterrupt of the tool, which must not end the run.

    Around every call, so it counts in microseconds: a class and not a generator, and the functions beneath those of
    ``signal``, which look each handler up among their enums first.
    """

    __slots__ = ("_ours",)

    def __enter__(self) -> None:
        ours = threading.current_thread() is threading.main_thread()
        self._ours = ours and _signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._ours:
            _signal.signal(signal.SIGINT, _interrupt)

    def __exit__(self, *error: object) -> None:
        if self._ours:
            _signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise _UsersInterrupt
