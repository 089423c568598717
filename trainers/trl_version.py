"""The versions of TRL that the bridge is written for; it overrides methods that TRL does not promise to keep."""

from __future__ import annotations

import importlib.metadata

from trajgym.errors import ConfigError

__all__ = ["REQUIREMENT", "require_trl"]

_FIRST, _BEYOND = (1, 16), (1, 17)
REQUIREMENT = "trl>=1.16,<1.17"


def require_trl() -> None:
    """Refuse to go on without a TRL of the right version.

    Raises:
        ConfigError: When TRL is not installed, or is older or newer than what the bridge was tested with.
    """
    try:
        version = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(f"The bridge to TRL needs TRL. Install it: pip install '{REQUIREMENT}'.") from error
    major, minor = (int(part) for part in version.split(".")[:2])
    if not _FIRST <= (major, minor) < _BEYOND:
        raise ConfigError(
            f"The bridge to TRL is written for {REQUIREMENT} and found {version}. Install that version "
            f"(pip install '{REQUIREMENT}'), or train with trajgym's own trainer, which needs no TRL."
        )
