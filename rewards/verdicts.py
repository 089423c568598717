"""Asking a judge for verdicts in a fixed form: unreadable replies are asked for once more, and an end is made of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from trajgym.errors import EnvironmentFault
from trajgym.rewards.outside import Outside

__all__ = ["Verdicts"]

_UNREADABLE_ALARM = 20  # verdicts in a row

Case = TypeVar("Case")
Verdict = TypeVar("Verdict")


class Verdicts(Generic[Case, Verdict]):
    """A judge's verdicts on cases.

    A reply that is not in the form asked for is asked for once more, with another marker, so that nothing is
    remembered; then it is no verdict. After twenty such in a row the judge is held to be out of order.

    Args:
        ask: Turns prompts into replies.
        write: Writes the prompt about a case; the salt is to change its marker. Returns prompt and marker.
        read: Reads a reply with that marker, ``None`` for one without the form.
        **options: See :class:`trajgym.rewards.outside.Outside`.
    """

    def __init__(
        self,
        ask: Callable[[list[str]], Sequence[str]],
        write: Callable[[Case, str], tuple[str, str]],
        read: Callable[[str, str], Verdict | None],
        **options: Any,
    ) -> None:
        self._replies: Outside[str, str] = Outside(ask, **{"name": "judge", **options})
        self._write, self._read = write, read
        self._unreadable = _Streak()

    def __call__(self, cases: Sequence[Case]) -> list[Verdict | None]:
        """Return the verdict on each case, ``None`` where there is no readable one.

        Raises:
            EnvironmentFault: When the judge is out of order.
        """
        verdicts = self._asked(cases, "")
        again = [i for i, verdict in enumerate(verdicts) if verdict is None]
        for i, verdict in zip(again, self._asked([cases[i] for i in again], "again"), strict=True):
            verdicts[i] = verdict
        for verdict in verdicts:
            if self._unreadable.count(verdict is None) >= _UNREADABLE_ALARM:
                raise EnvironmentFault(
                    f"The judge is out of order: {_UNREADABLE_ALARM} verdicts in a row were not in the form it was "
                    "asked for. Look at one of its replies, or take a better model."
                )
        return verdicts

    def _asked(self, cases: Sequence[Case], salt: str) -> list[Verdict | None]:
        written = [self._write(case, salt) for case in cases]
        replies = self._replies([prompt for prompt, _ in written])
        return [self._read(reply, marker) for reply, (_, marker) in zip(replies, written, strict=True)]


class _Streak:
    """Counts how often in a row something happened, across threads."""

    def __init__(self) -> None:
        self._lock, self._length = threading.Lock(), 0

    def count(self, happened: bool) -> int:
        with self._lock:
            self._length = self._length + 1 if happened else 0
            return self._length

    def __reduce__(self) -> tuple[type[_Streak], tuple[()]]:
        return type(self), ()
