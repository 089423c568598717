"""Making environments by id, with errors that say which ids there are."""

from __future__ import annotations

from typing import Any

import gymnasium

from trajgym.errors import UnknownNameError

__all__ = ["ids", "make"]


def ids() -> list[str]:
    """Return the ids of the environments that this package registers."""
    return sorted(i for i, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("trajgym."))


def make(env_id: str, **kwargs: Any) -> gymnasium.Env[str, str]:
    """Make an environment, one of ours or any other that Gymnasium knows.

    Args:
        env_id: As for ``gymnasium.make``; ``"package:ID"`` imports the package first.
        **kwargs: The environment's arguments.

    Raises:
        UnknownNameError: When there is no such id.
        ConfigError: When an argument is wrong.
    """
    try:
        return gymnasium.make(env_id, **kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        hint = "Other packages' environments need their import: write 'package:ID'."
        raise UnknownNameError("environment", env_id, ids(), hint) from error
    except ModuleNotFoundError as error:
        if ":" in env_id and error.name == env_id.split(":")[0].split(".")[0]:
            raise UnknownNameError("environment", env_id, ids(), f"There is no package {error.name!r}.") from error
        raise
