"""Ctrl-C at a moment that suits the run; so with a request to end from a scheduler, or a terminal that goes away."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType

__all__ = ["Interrupt", "Interrupted", "StopRequested"]


# What to say. A signal that somebody else handles or ignores, as nohup does with SIGHUP, is left to him.
_ALSO = {
    signal.SIGTERM: b"\nSIGTERM: saving the last finished update.\n",
    signal.SIGHUP: b"\nSIGHUP: saving the last finished update.\n",
}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or another request to end: the run was saved first; the message says how to go on."""


class StopRequested(BaseException):
    """Raised by :meth:`Interrupt.check`, caught by the training loop."""


class Interrupt:
    """Notes the first Ctrl-C and raises at the next safe point; the second one stops at once.

    SIGTERM and SIGHUP are noted in the same way, however often they come: schedulers send them in pairs.

    An optimiser step that is half done would leave weights that no resumed run could reproduce, so the loop says
    where it may be stopped by calling :meth:`check`.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, object] = {}

    def check(self, _progress: int = 0) -> None:
        """Raise :class:`StopRequested` when Ctrl-C was pressed."""
        if self.requested:
            raise StopRequested

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # elsewhere signals cannot be caught
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)
            for number in _ALSO:
                if signal.getsignal(number) == signal.SIG_DFL:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.requested:
            return
        self.requested = True
        text = b"\nCtrl-C: saving the last finished update; press again to stop at once.\n"
        with contextlib.suppress(OSError):  # print() is not reentrant, and may be what the signal has interrupted
            os.write(2, _ALSO.get(signal.Signals(number), text))
