"""What tests of the tool ``python`` share: an interpreter that starts fast, and that nothing of it is left."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from multiprocessing import resource_tracker

import pytest

from trajgym.envs.sandbox import IsolationUnavailable, Limits, Pool
from trajgym.envs.tools import Tool
from trajgym.envs.tools import python as python_file
from trajgym.envs.tools.python import python_tool, shared_pool


@pytest.fixture(scope="module")
def isolated() -> None:
    """Skip where this machine isolates nothing."""
    try:
        Pool(packages=()).close()
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    resource_tracker.ensure_running()  # it holds a descriptor from the first spawned process on


@pytest.fixture
def python() -> Tool:
    """Without packages it starts faster; all of these share one pool."""
    return python_tool(packages=(), limits=Limits(cpu=1.0, wall=60.0))


@pytest.fixture
def pool(python: Tool) -> Pool:
    """The pool of the tool above."""
    return shared_pool(**python().options)


@pytest.fixture
def nothing_is_left(pool: Pool) -> Iterator[None]:
    """Check that a test ends its sessions and closes its files."""
    gc.collect()  # what earlier tests dropped
    files = len(os.listdir("/proc/self/fd")) - len(python_file._pools)
    yield
    gc.collect()
    assert all(session.dead is not None for session in list(pool._link.members))
    assert len(os.listdir("/proc/self/fd")) - len(python_file._pools) <= files  # fewer where an earlier test ends late
