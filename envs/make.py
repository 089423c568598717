"""Making environments by id, with errors that say which ids there are."""

from __future__ import annotations

import re
from typing import Any

import gymnasium

from trajgym.errors import ConfigError, UnknownNameError

__all__ = ["ids", "make"]

_FORM = re.compile(r"(?:(?P<package>[^\W\d][\w.]*):)?(?:[\w-]+/)?[\w.-]+")
_ELSEWHERE = "Other packages' environments need their import: write 'package:ID'."


def ids() -> list[str]:
    """Return the ids of the environments that this package registers."""
    return sorted(i for i, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("trajgym."))


def make(env_id: str, /, **kwargs: Any) -> gymnasium.Env[str, str]:
    """Make an environment, one of ours or any other that Gymnasium knows.

    Args:
        env_id: As for ``gymnasium.make``; ``"package:ID"`` imports the package first.
        **kwargs: The environment's arguments.

    Raises:
        UnknownNameError: When there is no such id.
        ConfigError: When an argument is wrong.
        ModuleNotFoundError: When the package is there, but something that it imports is not.
    """
    form = _FORM.fullmatch(env_id) if isinstance(env_id, str) else None
    if form is None:
        raise UnknownNameError("environment", env_id, ids(), "An id looks like 'Name-v0' or 'package:Name-v0'.")
    try:
        return gymnasium.make(env_id, **kwargs)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        raise UnknownNameError("environment", env_id, ids(), _ELSEWHERE) from error
    except ModuleNotFoundError as error:
        # Gymnasium wraps the import's own error, which alone knows the name.
        cause = error.__cause__ if isinstance(error.__cause__, ModuleNotFoundError) else error
        package = form["package"]
        if package and cause.name and f"{package}.".startswith(f"{cause.name}."):
            raise UnknownNameError("environment", env_id, ids(), f"There is no package {cause.name!r}.") from error
        raise cause from None
    except TypeError as error:
        # The second one: Gymnasium's own name for the id among the arguments.
        if "unexpected keyword argument" not in str(error) and "multiple values for argument" not in str(error):
            raise
        raise ConfigError(f"{env_id} refuses an argument: {error}") from error
