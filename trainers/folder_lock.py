"""One writer for each run folder: a lock that ends with the process, however it ends.

A POSIX record lock belongs to the process alone: a child that outlives a killed trainer does not keep it, which one
of ``flock`` would.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import weakref
from pathlib import Path
from typing import TextIO

from trajgym.errors import ConfigError

__all__ = ["lock_folder"]

_TAKEN = (errno.EAGAIN, errno.EACCES)

# By process and file. Closing any descriptor of a file drops the process's locks on it, so it is opened once.
_held: dict[tuple[int, Path], tuple[TextIO, int]] = {}


def lock_folder(marker: Path, owner: object) -> None:
    """Hold a folder's marker file for as long as ``owner`` lives; several owners in one process share it.

    The file then names the process and its host. A file system that knows no locks is trusted to have one writer.

    Args:
        marker: A file inside of the folder, made if there is none.
        owner: Whoever writes to the folder.

    Raises:
        ConfigError: When another process holds it.
        OSError: When the file cannot be written.
    """
    key = (os.getpid(), marker.resolve())
    file, owners = _held.get(key, (None, 0))
    if file is not None and not _same_file(file, marker):  # the folder was removed and made again
        file.close()
        file, owners = None, 0
    if file is None:
        file = marker.open("a+", encoding="utf-8")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip()
            if error.errno in _TAKEN:
                file.close()
                raise ConfigError(
                    f"{marker.parent} is being written by another process ({holder or 'unknown'}). Wait for it or stop "
                    "it, or choose another --name."
                ) from error
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
    _held[key] = (file, owners + 1)
    weakref.finalize(owner, _release, key, file)


def _same_file(file: TextIO, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _release(key: tuple[int, Path], file: TextIO) -> None:
    now, owners = _held.get(key, (None, 0))
    if now is not file:
        return  # of a folder that is gone, or a child's copy of its parent's
    if owners > 1:
        _held[key] = (file, owners - 1)
        return
    del _held[key]
    file.close()
