"""One process writes to a run folder, for as long as it lives."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trajgym.errors import ConfigError
from trajgym.trainers.folder_lock import lock_folder

HOLD = """
import sys
from pathlib import Path
from trajgym.trainers.folder_lock import lock_folder
lock_folder(Path(sys.argv[1]), owner := set())
"""

FORK = """
import os
if not os.fork():
    os.read(0, 1)  # until the test is over
os._exit(0)  # like a kill: nothing is cleaned up
"""


class Owner:
    """Anything that lives for a while."""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


def another_process(marker: Path) -> str:
    """Try to lock from outside; return what is said against it."""
    done = subprocess.run([sys.executable, "-c", HOLD, str(marker)], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def test_owners_of_one_process_share_it_and_the_last_one_gives_it_back(marker: Path) -> None:
    first, second = Owner(), Owner()
    lock_folder(marker, first)
    lock_folder(marker, second)
    del first
    gc.collect()
    assert f"ConfigError: {marker.parent} is being written by another process (process {os.getpid()} on " in (
        another_process(marker)
    )
    del second
    gc.collect()
    assert another_process(marker) == ""


def test_a_child_does_not_keep_what_its_parent_held(marker: Path) -> None:
    """Children of a killed trainer may live on for a while."""
    trainer = subprocess.Popen([sys.executable, "-c", HOLD + FORK, str(marker)], stdin=subprocess.PIPE)
    assert trainer.wait() == 0
    lock_folder(marker, owner := Owner())
    assert marker.read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"
    assert trainer.stdin is not None
    trainer.stdin.close()
    del owner


def test_a_folder_that_was_made_again_is_locked_again(marker: Path) -> None:
    first, second = Owner(), Owner()
    lock_folder(marker, first)
    marker.unlink()
    lock_folder(marker, second)
    del first
    gc.collect()
    assert "is being written by another process" in another_process(marker)


def test_file_systems_without_locks_are_trusted(marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*args: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    lock_folder(marker, owner := Owner())
    monkeypatch.setattr(fcntl, "lockf", _taken)
    with pytest.raises(ConfigError, match="written by another process"):
        lock_folder(marker.with_name("other"), owner)


def _taken(*args: Any) -> None:
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
