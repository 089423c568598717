"""Threads for a process that may not have any: each runs to its end in the call that starts it.

That is a schedule which real threads could have had, so programs that start workers and join them run unchanged. A
program whose threads wait for something that is done only after they were started never gets on; the time limit ends
it. What would outlive the cell, a daemon thread, is refused.
"""

from __future__ import annotations

import concurrent.futures.thread
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures.thread import BrokenThreadPool
from threading import Thread
from typing import Any, ParamSpec, TypeVar

from trajgym.envs.sandbox.traces import describe

__all__ = ["InlineExecutor", "install"]

P = ParamSpec("P")
T = TypeVar("T")

_running: list[Thread] = []  # innermost last
_real_current_thread = threading.current_thread


def install() -> None:
    """Replace what ``threading`` and ``concurrent.futures`` offer, for the whole process. Idempotent.

    ``_thread.start_new_thread`` stays as it is.
    """
    for method, function in {"start": _start, "join": _join, "is_alive": _is_alive}.items():
        setattr(Thread, method, function)
    setattr(Thread, "ident", property(_ident))  # noqa: B010  # to a type checker it has no setter
    for name in ("current_thread", "currentThread"):
        setattr(threading, name, _current_thread)
    for name in ("excepthook", "__excepthook__"):
        setattr(threading, name, _excepthook)
    for module in (concurrent.futures, concurrent.futures.thread):
        setattr(module, "ThreadPoolExecutor", InlineExecutor)  # noqa: B010  # to a type checker it is a class


class InlineExecutor(Executor):
    """Stands in for ``ThreadPoolExecutor``: runs each call in :meth:`submit`.

    Args:
        max_workers: Checked, and otherwise without effect.
        thread_name_prefix: Begins the name of the thread that a call sees itself in.
        initializer: Called once, before the first call.
        initargs: Its arguments.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._name = f"{thread_name_prefix or 'ThreadPoolExecutor'}_0"
        self._initialize: Callable[[], object] | None = (lambda: initializer(*initargs)) if initializer else None
        self._broken = False
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call ``fn`` and return the future that holds its result or its exception.

        Raises:
            RuntimeError: The executor was shut down.
            BrokenThreadPool: The initializer raised.
        """
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        if self._initialize is not None:
            initialize, self._initialize = self._initialize, None
            self._broken = True  # unless it returns
            self._in_a_thread(lambda: self._begin(initialize))
        if self._broken:
            raise BrokenThreadPool("A thread initializer failed, the thread pool is not usable anymore")
        self._in_a_thread(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further calls; there is never one left to wait for or to cancel."""
        self._closed = True

    def _begin(self, initialize: Callable[[], object]) -> None:
        initialize()
        self._broken = False

    def _in_a_thread(self, work: Callable[[], None]) -> None:
        Thread(target=work, name=self._name, daemon=False).start()


def _start(self: Thread) -> None:
    """Run the thread to its end.

    Raises:
        RuntimeError: It was started before, or is a daemon.
    """
    if not self._initialized:  # type: ignore[attr-defined]
        raise RuntimeError("thread.__init__() not called")
    if _was_started(self):
        raise RuntimeError("threads can only be started once")
    if self.daemon:
        raise RuntimeError("can't start new thread: background work is not available here, so daemon threads are not")
    self._started.set()  # type: ignore[attr-defined]
    _running.append(self)
    try:
        self.run()
    except SystemExit:  # ends the thread, silently
        pass
    except BaseException as error:
        threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, self)))
    finally:
        _running.pop()


def _join(self: Thread, timeout: float | None = None) -> None:
    """Return at once, since a thread that was started has ended.

    Raises:
        RuntimeError: It has not been started, or is one that this code runs in.
    """
    if not _was_started(self):
        raise RuntimeError("cannot join thread before it is started")
    if self.is_alive():
        raise RuntimeError("cannot join current thread")


def _is_alive(self: Thread) -> bool:
    return self in _running or self is threading.main_thread()


def _ident(self: Thread) -> int | None:
    return threading.get_ident() if _was_started(self) else None


def _was_started(thread: Thread) -> bool:
    return thread._started.is_set()  # type: ignore[attr-defined, no-any-return]


def _current_thread() -> Thread:
    return _running[-1] if _running else _real_current_thread()


def _excepthook(args: threading.ExceptHookArgs) -> None:
    """Print an exception that ended a thread, with the frames of the caller's cells."""
    if args.exc_value is not None and args.exc_type is not SystemExit and sys.stderr is not None:
        name = args.thread.name if args.thread else threading.get_ident()
        print(f"Exception in thread {name}:\n{describe(args.exc_value).traceback}", end="", file=sys.stderr, flush=True)
