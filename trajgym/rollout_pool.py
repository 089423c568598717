"""Environments at work: a pool of them, and threads that can be left behind in one that never answers."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import gymnasium

from trajgym.errors import ConfigError
from trajgym.rollout_replies import Reply

__all__ = ["Call", "EnvPool", "MakeEnv", "close_env"]

MakeEnv = Callable[[], "gymnasium.Env[str, str]"]
"""Makes one environment."""

_GRACE = 5.0  # seconds that a pool which closes waits for threads that are still at work

_log = logging.getLogger(__name__)


class Call(Future[Reply]):
    """A method of an environment, waiting for a thread, at work, or done.

    Args:
        work: What to run.
        name: Of the method, for messages.
    """

    def __init__(self, work: Callable[[], Reply], name: str) -> None:
        super().__init__()
        self.name = name
        self.asked = time.monotonic()
        self.began: float | None = None
        """When it got a thread, by ``time.monotonic()``."""
        self._work = work
        self._thread: threading.Thread | None = None
        self._over = self._left = False  # its thread has gone on to other calls; nobody waits for it any more

    def _run(self) -> None:
        self._thread, self.began = threading.current_thread(), time.monotonic()
        if not self.set_running_or_notify_cancel():
            return
        try:
            reply = self._work()
        except BaseException as error:  # SystemExit too: whoever asks for the result decides
            self.set_exception(error)
        else:
            self.set_result(reply)


class EnvPool:
    """Environments that are made when first needed and used again for later episodes.

    Args:
        make_env: Makes one environment.
        threads: Most environments that step at the same time; 0 steps them one after the other in the caller's
            thread, which costs least where all of them answer at once.
        deadline: Seconds that an environment may take to answer, and a group of episodes for its last members; see
            :mod:`trajgym.rollout_deadline`. ``None`` waits for ever.

    Raises:
        ConfigError: When the deadline is not a finite number above 0, or threads are negative, or none, which nobody
            can leave behind at a deadline.
    """

    def __init__(self, make_env: MakeEnv, *, threads: int = 32, deadline: float | None = None) -> None:
        if deadline is not None and not 0 < deadline < math.inf:
            raise ConfigError(f"deadline must be a finite number of seconds above 0, or None; got {deadline!r}.")
        if threads < 0 or (threads == 0 and deadline is not None):
            raise ConfigError(
                f"threads must be at least {0 if deadline is None else '1 with a deadline'}, got {threads}."
            )
        self.deadline = deadline
        self._make = make_env
        self._idle: list[gymnasium.Env[str, str]] = []
        self._inline = threads == 0
        self._threads = _Threads(threads)

    def take(self) -> gymnasium.Env[str, str]:
        """Return an environment that nobody uses."""
        return self._idle.pop() if self._idle else self._make()

    def give(self, env: gymnasium.Env[str, str]) -> None:
        """Put an environment back."""
        self._idle.append(env)

    def submit(self, method: Callable[..., Reply], *args: Any, **kwargs: Any) -> Call:
        """Run an environment's method beside everything else."""
        call = Call(lambda: method(*args, **kwargs), getattr(method, "__name__", "call").strip("_"))
        if self._inline:
            call._run()
        else:
            self._threads.start(call)
        return call

    def leave(self, call: Call, env: gymnasium.Env[str, str]) -> None:
        """Wait no longer for a call: its environment is closed once it is out of it, and not used again."""
        self._threads.leave(call)
        call.add_done_callback(lambda _: close_env(env))

    def close(self) -> None:
        """Close all environments and threads, but those that hang."""
        self._threads.close()
        for env in self._idle:
            close_env(env)
        self._idle.clear()

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Threads:
    """Threads that take calls in their order, as many as are needed up to a limit.

    Those of ``concurrent.futures`` are waited for when the interpreter ends, and one that hangs would have its place
    for good. These do not outlive the process, and one that is left behind does not count.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._open = 0  # calls that wait or are at work

    def start(self, call: Call) -> None:
        with self._lock:
            self._open += 1
            self._calls.put(call)
            self._hire()

    def leave(self, call: Call) -> None:
        with self._lock:
            if call.cancel() or call._over or call._left:
                return
            call._left = True
            self._open -= 1
            if call._thread is not None:
                self._threads.discard(call._thread)
            self._hire()

    def close(self) -> None:
        with self._lock:
            threads = list(self._threads)
        for _ in threads:
            self._calls.put(None)
        end = time.monotonic() + _GRACE
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _hire(self) -> None:
        if len(self._threads) < min(self._most, self._open):
            thread = threading.Thread(target=self._serve, name="trajgym-env", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call._run()
            with self._lock:
                call._over = True
                if call._left:
                    return
                self._open -= 1
            del call  # or this thread would keep the reply until the next call


def close_env(env: gymnasium.Env[str, str]) -> None:
    """Close an environment; one that is broken may fail even in that, and must not take the others with it."""
    try:
        env.close()
    except BaseException as error:  # SystemExit too
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # that may be Ctrl-C
        _log.warning("An environment failed to close", exc_info=True)
