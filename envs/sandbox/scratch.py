"""Removing a scratch folder that lies on the host's disk, whatever a program has made of it."""

from __future__ import annotations

import contextlib
import os
import secrets

__all__ = ["remove_folder"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_folder(folder: str) -> None:
    """Remove a folder with all that is in it. What cannot be removed stays, without an error.

    A program can nest folders deeper than paths, the stack and open files reach, and make them with modes that keep its
    own user out. So each folder is opened up, and the folders in it move to the top before it goes.

    Args:
        folder: Nobody else may be at work in it any more.
    """
    with contextlib.suppress(OSError):
        top = os.open(folder, _FOLDER)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(folder)


def _empty(top: int) -> None:
    prefix = secrets.token_hex(8)  # no name in there begins with it
    names = os.listdir(top)
    for name in names:  # grows while it is walked
        with contextlib.suppress(OSError):
            if _is_folder_left(name, top):
                inner = os.open(name, _FOLDER, dir_fd=top)
                try:
                    for below in os.listdir(inner):
                        if _is_folder_left(below, inner):
                            raised = f"{prefix}-{len(names)}"
                            os.rename(below, raised, src_dir_fd=inner, dst_dir_fd=top)
                            names.append(raised)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)


def _is_folder_left(name: str, parent: int) -> bool:
    """Remove what is no folder; let the owner into what is one."""
    try:
        os.unlink(name, dir_fd=parent)
    except IsADirectoryError:
        os.chmod(name, 0o700, dir_fd=parent)
        return True
    return False
