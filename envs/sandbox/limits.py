"""What a session may use."""

from __future__ import annotations

from dataclasses import dataclass

from trajgym.errors import ConfigError

__all__ = ["MEBIBYTE", "Limits"]

MEBIBYTE = 1 << 20

# Wall time bounds sleeping and waiting only. Were it close to the CPU limit, a busy machine would decide which programs
# succeed, and with them which are rewarded.
WALL_PER_CPU = 5.0
_MOST_SECONDS = 10**9  # some thirty years; the kernel counts no further than it can


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a session; a call that breaks one gives a typed :class:`Result`.

    Args:
        cpu: Processor time of a call in seconds.
        wall: Time of a call in seconds, at least 5 × ``cpu``, which is the default.
        memory: Bytes of address space beyond the interpreter's own.
        output: Characters of output and value shown; a longer text loses its middle.
        output_bytes: Bytes written in one call after which the session is ended.
        scratch: Bytes of the scratch folder, 0 for none. By default 16 MiB where the kernel can bound the folder
            (isolation ``"namespaces"``), else none; there, a number bounds each file, not their sum.
        session_cpu: Processor time of a whole session in seconds.

    Raises:
        ConfigError: For a value that cannot be.
    """

    cpu: float = 2.0
    wall: float | None = None
    memory: int = 512 * MEBIBYTE
    output: int = 10_000
    output_bytes: int = MEBIBYTE
    scratch: int | None = None
    session_cpu: float = 3600.0

    def __post_init__(self) -> None:
        for name in ("cpu", "session_cpu"):
            _check_seconds(name, getattr(self, name), 0.001)
        if self.wall is not None:
            # 1e-9: 5 × 0.3 is 1.5 for the caller as well.
            _check_seconds("wall", self.wall, WALL_PER_CPU * self.cpu - 1e-9, f"{WALL_PER_CPU:g} × cpu, {self.cpu} s")
        _check_whole("memory", self.memory, 16 * MEBIBYTE)
        _check_whole("output", self.output, 100)
        _check_whole("output_bytes", self.output_bytes, 4096)
        if self.scratch is not None:
            _check_whole("scratch", self.scratch, 0)

    @property
    def wall_seconds(self) -> float:
        """Time of a call in seconds."""
        return WALL_PER_CPU * self.cpu if self.wall is None else self.wall


def _check_seconds(name: str, value: object, least: float, why: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= _MOST_SECONDS:
        reason = f" ({why}: a busy machine must not decide which programs succeed)" if why else ""
        allowed = f"{least:g} to {_MOST_SECONDS:,} seconds{reason}"
        raise ConfigError(f"Limits: {name} must be {allowed}, got {value!r}.")


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 62:
        raise ConfigError(f"Limits: {name} must be a whole number of at least {least:,}, got {value!r}.")
