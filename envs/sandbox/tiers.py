"""Which isolation there is, strongest first, and what to do where there is none."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from trajgym.envs.sandbox import landlock, machine
from trajgym.envs.sandbox.results import IsolationUnavailable
from trajgym.errors import ConfigError, UnknownNameError

__all__ = ["LAYERS_OF", "TIERS", "UNSAFE_SWITCH", "candidates", "missing", "unavailable"]

TIERS = ("namespaces", "landlock", "none")
"""From strong to weak; ``"none"`` isolates nothing."""

LAYERS_OF: Mapping[str, tuple[str, ...]] = {
    "namespaces": ("namespaces", "landlock", "seccomp", "rlimits", "capabilities"),
    "landlock": ("landlock", "seccomp", "rlimits", "capabilities"),
    "none": ("rlimits",),
}

UNSAFE_SWITCH = "TRAJGYM_ALLOW_UNSAFE"

_NO_NAMESPACES = (
    "allow user namespaces: `sysctl -w kernel.unprivileged_userns_clone=1` (Debian), "
    "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu), `sysctl -w user.max_user_namespaces=15000`, "
    "or in a container `--security-opt seccomp=unconfined`, with `--cap-add SYS_ADMIN` where that is not enough"
)
_NO_LANDLOCK = (
    "take Linux 5.13 or newer with Landlock on: CONFIG_SECURITY_LANDLOCK=y and `landlock` in the boot option lsm="
)
_NO_MACHINE = "use x86-64 or aarch64 Linux with a 64-bit Python (on Windows: WSL 2; on a Mac: a Linux container)"


def candidates(isolation: str | None, min_isolation: str | None, *, allow_unsafe: bool) -> tuple[str, ...]:
    """Return the tiers to try, in order.

    Args:
        isolation: The one to use, or ``None`` for the strongest that works.
        min_isolation: The weakest that will do; by default ``"landlock"``, unless ``isolation`` is ``"none"``.
        allow_unsafe: The first of the two switches that ``"none"`` needs.

    Raises:
        ConfigError: For an unknown tier, two that exclude each other, or ``"none"`` without both switches.
    """
    if min_isolation is None:
        min_isolation = "none" if isolation == "none" else "landlock"
    for name, tier in (("isolation", isolation), ("min_isolation", min_isolation)):
        if tier not in TIERS and not (name == "isolation" and tier is None):
            raise UnknownNameError(name, tier, TIERS)
    chosen: tuple[str, ...] = TIERS[: TIERS.index(min_isolation) + 1] if isolation is None else (isolation,)
    if isolation is not None and TIERS.index(isolation) > TIERS.index(min_isolation):
        raise ConfigError(f"isolation={isolation!r} is weaker than min_isolation={min_isolation!r}.")
    if "none" in chosen and not (allow_unsafe and os.environ.get(UNSAFE_SWITCH) == "1"):
        raise ConfigError(
            "Without isolation, code of a policy can read and delete every file of yours and use the network. If that "
            f"is what you want, on a machine made for it, pass allow_unsafe=True and set {UNSAFE_SWITCH}=1."
        )
    return chosen


def missing(tier: str) -> str:
    """Return what this machine lacks for ``tier`` as far as one call can tell, or an empty string."""
    if tier != "none" and machine.this_machine() is None:
        return f"this is no machine whose system calls are known; {_NO_MACHINE}"
    if tier == "landlock" and landlock.abi() == 0:
        return f"this kernel has no Landlock; {_NO_LANDLOCK}"
    return ""


def remedy(tier: str, error: int | None) -> str:
    """Return what to do about a refusal with this errno."""
    if tier == "namespaces" and error in (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EINVAL, errno.ENOSYS):
        return _NO_NAMESPACES
    return ""


def unavailable(reasons: Mapping[str, str]) -> IsolationUnavailable:
    """Return the error that says why none of the tiers works."""
    listed = "".join(f"\n  {tier}: {reason}." for tier, reason in reasons.items())
    return IsolationUnavailable(
        f"This machine cannot isolate code:{listed}\n`trajgym doctor` shows what it has. Docs: docs/security.md."
    )
