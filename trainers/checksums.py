"""Checksums of a folder's files, so that what a disk has damaged is never taken for what was written."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

__all__ = ["CHECKSUMS", "damage", "write_checksums"]

CHECKSUMS = "checksums.json"
"""Name of the file that holds them: ``{path inside the folder: SHA-256 in hexadecimal}``."""


def write_checksums(folder: Path) -> None:
    """Write down the checksum of every file in ``folder`` and below.

    Raises:
        OSError: When a file cannot be read or written.
    """
    sums = {str(path.relative_to(folder)): _sum(path) for path in _files(folder)}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def damage(folder: Path) -> str | None:
    """Return what of a folder is not as it was written, or ``None`` when all is; empty when nobody can know.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     _ = (folder / "weights").write_bytes(b"1234")
    ...     write_checksums(folder)
    ...     whole = damage(folder)
    ...     _ = (folder / "weights").write_bytes(b"1235")
    ...     (whole, damage(folder))
    (None, 'weights has changed')
    """
    path = folder / CHECKSUMS
    if not path.exists():
        return ""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"{CHECKSUMS} cannot be read"
    if not isinstance(said, dict) or not said:
        return f"{CHECKSUMS} holds no checksums"
    there = {str(file.relative_to(folder)) for file in _files(folder)}
    for name in sorted(said.keys() | there):
        if name not in there:
            return f"{name} is missing"
        if name not in said:
            return f"{name} was not there when it was written"
        try:
            if _sum(folder / name) != said[name]:
                return f"{name} has changed"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / CHECKSUMS)


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
