"""What a method of another process has returned or raised, on its way back."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import cloudpickle

from trajgym.errors import TrainingError, TrajgymError

__all__ = ["Answer"]

T = TypeVar("T")


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What a worker's method has returned or raised.

    Args:
        value: Returned.
        error: Raised, as cloudpickle ships it.
        text: The same as text, with the lines of code on its way.
    """

    value: T | None = None
    error: bytes = b""
    text: str = ""

    @classmethod
    def of(cls, work: Callable[[], T]) -> Answer[T]:
        """Do something and return what came of it."""
        try:
            return cls(work())
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            try:
                data = cloudpickle.dumps(error)
                pickle.loads(data)  # noqa: S301  some errors can be written and not read
            except Exception:
                data = cloudpickle.dumps(TrainingError(f"In a rollout worker: {type(error).__name__}: {error}"))
            return cls(error=data, text=text)

    def open(self) -> T:
        """Return the value.

        Raises:
            Exception: What was raised there; where it is not one of ours, with a note that says where it was.
        """
        if self.error:
            try:
                error: Exception = pickle.loads(self.error)  # noqa: S301  from a worker that this process has started
            except Exception:  # its class exists there alone
                error = TrainingError(f"In a rollout worker: {self.text.splitlines()[-1]}")
            if not isinstance(error, TrajgymError):
                error.add_note(f"In a rollout worker:\n{self.text}")
            raise error
        return self.value  # type: ignore[return-value]
