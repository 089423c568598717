"""Every error this package raises on purpose.

TrajgymError
├── ConfigError (ValueError)          an option has a value it cannot have
│   └── UnknownNameError (KeyError)   a name nobody registered; lists the known ones, says "did you mean"
├── DataError                         a data set is missing, unreadable or malformed
├── ToolDefinitionError (TypeError)   a function cannot become a tool
├── EpisodeError (RuntimeError)       the environment is used out of order, e.g. stepped after the end
├── TemplateError                     a chat template or tokenizer cannot carry the dialogue exactly
├── RewardError                       a reward term returned something that is not a finite number
├── CheckpointError                   a checkpoint is missing, half-written or does not fit
├── StorageError (OSError)            the run folder cannot be written, e.g. the disk is full
├── TrainingError                     an update cannot go on, e.g. the loss is not a number
└── EnvironmentFault                  our machinery failed, not the policy: the trajectory is invalid

Messages say what was got, what is allowed and where to change it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "EnvironmentFault",
    "EpisodeError",
    "RewardError",
    "StorageError",
    "TemplateError",
    "ToolDefinitionError",
    "TrainingError",
    "TrajgymError",
    "UnknownNameError",
    "did_you_mean",
]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest known name, or an empty string.

    >>> did_you_mean("hermse", ["hermes", "react"])
    " Did you mean 'hermes'?"
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


class TrajgymError(Exception):
    """Base of every error raised on purpose by this package."""


class ConfigError(TrajgymError, ValueError):
    """An option has a value it cannot have."""


class UnknownNameError(ConfigError, KeyError):
    """A name that nobody registered.

    Args:
        kind: What was looked up, in the singular: ``"tool"``, ``"protocol"``, …
        name: What was asked for.
        known: The names that exist.
        hint: Where to add or find more.
    """

    def __init__(self, kind: str, name: object, known: Iterable[str], hint: str = "") -> None:
        names = sorted(known)
        listed = ", ".join(repr(n) for n in names) or "none"
        close = did_you_mean(str(name), names)
        tail = f" {hint}" if hint else ""
        self.message = f"Unknown {kind} {name!r}.{close} Known: {listed}.{tail}"
        self._parts = (kind, name, names, hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        # KeyError would show the repr of the message, with quotes around it.
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self._parts)


class DataError(TrajgymError):
    """A data set is missing, unreadable or malformed."""


class ToolDefinitionError(TrajgymError, TypeError):
    """A function cannot become a tool; raised when it is defined, not when it is called."""


class EpisodeError(TrajgymError, RuntimeError):
    """The environment was used out of order, for example stepped after the end."""


class TemplateError(TrajgymError):
    """A chat template or tokenizer cannot carry the dialogue token for token."""


class RewardError(TrajgymError):
    """A reward term returned something that is not a finite number."""


class CheckpointError(TrajgymError):
    """A checkpoint is missing, half-written or does not fit this run."""


class StorageError(TrajgymError, OSError):
    """The run folder cannot be written."""


class TrainingError(TrajgymError):
    """An update cannot go on."""


class EnvironmentFault(TrajgymError):
    """Our machinery failed (a dead worker, lost isolation), not the policy.

    Raised by tools and environments; the rollout marks the trajectory invalid, and an invalid
    trajectory leaves the baseline and the loss.
    """
