"""Ctrl-C at a moment that suits the run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType

__all__ = ["Interrupt", "Interrupted", "StopRequested"]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the run was saved first; the message says how to go on."""


class StopRequested(BaseException):
    """Raised by :meth:`Interrupt.check`, caught by the training loop."""


class Interrupt:
    """Notes the first Ctrl-C and raises at the next safe point; the second one stops at once.

    An optimiser step that is half done would leave weights that no resumed run could reproduce, so the loop says
    where it may be stopped by calling :meth:`check`.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: object = None

    def check(self, _progress: int = 0) -> None:
        """Raise :class:`StopRequested` when Ctrl-C was pressed."""
        if self.requested:
            raise StopRequested

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # elsewhere signals cannot be caught
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        with contextlib.suppress(OSError):  # print() is not reentrant, and may be what the signal has interrupted
            os.write(2, b"\nCtrl-C: saving the last finished update; press again to stop at once.\n")
