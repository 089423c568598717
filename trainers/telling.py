"""Lines for whoever watches a run; nobody has to."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

__all__ = ["say"]


def say(text: str) -> None:
    """Print a line of a run. Where standard output is gone, the run goes on without it.

    The reader of a pipe may end, a terminal be closed, the disk of a log file be full: hours of training must not end
    with them. What is told is in the run folder as well.

    Warns:
        RuntimeWarning: Once, when the line could not be printed.
    """
    try:
        print(text, flush=True)
    except (OSError, ValueError) as error:  # ValueError: somebody has closed it
        # What is still buffered must go somewhere, or the interpreter would fail over it at its end.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        warnings.warn(
            f"Standard output is gone ({error}). The run goes on without it; metrics.jsonl has everything.",
            RuntimeWarning,
            stacklevel=2,
        )
