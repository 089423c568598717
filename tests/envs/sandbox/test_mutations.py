"""Each layer of the jail left out in turn: what it stops must then get through, or no test would miss the layer.

Everything tried here is harmless where it succeeds: it opens, asks or sends signal 0, and what it touches is bait.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from trajgym.envs.sandbox import IsolationUnavailable, Limits, Pool, Session, selftest
from trajgym.envs.sandbox.jail import LAYERS
from trajgym.envs.sandbox.limits import MEBIBYTE
from trajgym.envs.sandbox.tiers import LAYERS_OF, UNSAFE_SWITCH

LIMITS = Limits(cpu=5.0, memory=64 * MEBIBYTE, scratch=MEBIBYTE)
PACKAGES = ("mpmath",)

# `refused(f)` is true when `f()` raised, so each probe is true when it was stopped.
PRELUDE = """
import _thread, ctypes, fcntl, os, resource, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
def refused(attempt):
    try:
        attempt()
    except (OSError, ValueError, MemoryError, RuntimeError):
        return True
    return False
def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
def unix():
    socket.socket(socket.AF_UNIX).connect("\\0" + {name!r})
"""

# Name, probe, and the layers of which each stops it: on "namespaces", on "landlock" ("" where nothing does).
PROBES = [
    ("reads a file", "refused(lambda: open({canary!r}).read())", "namespaces landlock", "landlock"),
    ("makes a file", "refused(lambda: open({canary!r} + '.new', 'w'))", "namespaces landlock", "landlock"),
    ("opens the root", "refused(lambda: os.open('/', os.O_RDONLY))", "namespaces landlock", "landlock"),
    ("asks about a file", "refused(lambda: os.stat({canary!r}))", "namespaces seccomp", "seccomp"),
    ("sets the time of a file", "refused(lambda: os.utime({canary!r}))", "namespaces seccomp", "seccomp"),
    ("opens without rights", "refused(lambda: os.open('/', os.O_PATH))", "seccomp", "seccomp"),
    (
        "connects over TCP",
        "refused(lambda: socket.create_connection(('127.0.0.1', {port}), 1))",
        "namespaces landlock seccomp",
        "landlock seccomp",
    ),
    ("connects to an abstract socket", "refused(unix)", "namespaces landlock seccomp", "landlock seccomp"),
    ("makes a socket", "refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))", "seccomp", "seccomp"),
    # In a namespace of its own it has no parent, and 0 is its own group.
    ("signals its parent", "refused(lambda: os.kill(os.getppid(), 0))", "seccomp", "landlock seccomp"),
    ("forks", "refused(fork)", "seccomp rlimits", "seccomp rlimits"),
    ("starts a thread", "refused(lambda: _thread.start_new_thread(int, ()))", "seccomp rlimits", "seccomp rlimits"),
    ("starts a program", "libc.execve(b'/nonexistent', None, None) and ctypes.get_errno() == 1", "seccomp", "seccomp"),
    ("locks a shared file", "refused(lambda: fcntl.flock(open(os.__file__), fcntl.LOCK_SH))", "seccomp", "seccomp"),
    ("sets a timer", "refused(lambda: signal.setitimer(signal.ITIMER_REAL, 1000))", "seccomp", "seccomp"),
    ("makes shared memory", "libc.shmget(0, 4096, 0o1600) == -1", "seccomp", "seccomp"),
    (
        "changes its limits",
        "refused(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20)))",
        "seccomp",
        "seccomp",
    ),
    ("takes more memory", "refused(lambda: bytearray({memory}))", "rlimits", "rlimits"),
    ("fills the disk", "refused(lambda: open('file', 'wb').write(bytes({disk})))", "namespaces rlimits", "rlimits"),
    ("changes its root", "refused(lambda: os.chroot('.'))", "seccomp capabilities", ""),
    # Of the two, root has the first to lose and others the second.
    (
        "has powers or can be traced",
        "refused(lambda: os.chroot('.')) and libc.prctl(3, 0, 0, 0, 0) != 1",
        "seccomp capabilities",
        "seccomp capabilities",
    ),
    ("sees the name of the machine", "os.uname().nodename == 'sandbox'", "namespaces", ""),
]
STOPPED = [
    pytest.param(tier, probe, frozenset(layers.split()), id=f"{name}-{tier}".replace(" ", "-"))
    for name, probe, *stopped_by in PROBES
    for tier, layers in zip(("namespaces", "landlock"), stopped_by, strict=True)
    if layers
]

Open = Callable[..., Session]


@pytest.fixture(scope="module")
def session_without() -> Iterator[Open]:
    """Open a session on an isolation without some of its layers."""
    pools: dict[tuple[str, frozenset[str]], Pool] = {}

    def open_session(tier: str, without: frozenset[str] = frozenset()) -> Session:
        if (tier, without) not in pools:
            try:
                pools[tier, without] = Pool(
                    limits=LIMITS, packages=PACKAGES, isolation=tier, allow_unsafe=True, without=without
                )
            except IsolationUnavailable as error:
                pytest.skip(str(error))
            assert pools[tier, without].isolation == ("none" if without else tier)
        return pools[tier, without].open()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(UNSAFE_SWITCH, "1")
        yield open_session
    for pool in pools.values():
        pool.close()


@pytest.fixture
def bait() -> Iterator[dict[str, object]]:
    """What the probes reach for; permissions protect none of it."""
    with selftest._canaries() as facts:
        yield {**facts, "memory": LIMITS.memory + 64 * MEBIBYTE, "disk": 3 * MEBIBYTE}


@pytest.mark.parametrize(("tier", "probe", "stopped_by"), STOPPED)
def test_a_probe_gets_through_when_what_stops_it_is_gone(
    session_without: Open, bait: dict[str, object], tier: str, probe: str, stopped_by: frozenset[str]
) -> None:
    def stopped(session: Session) -> str:
        with session:
            assert session.call(PRELUDE.format(**bait)).ok
            changed = session.call("os.getuid()").output != str(os.getuid())
            if changed and tier == "landlock" and "capabilities" in stopped_by:
                pytest.skip("here root becomes somebody else, who has neither")
            return session.call(probe.format(**bait)).output

    assert stopped(session_without(tier)) == "True"
    assert stopped(session_without(tier, stopped_by)) == "False"


def test_every_layer_is_needed_by_some_probe() -> None:
    for place, tier in enumerate(("namespaces", "landlock"), start=2):
        found = {layer for row in PROBES for layer in row[place].split()}
        assert found == set(LAYERS_OF[tier]) <= set(LAYERS)


@pytest.mark.parametrize(
    ("tier", "without", "missed"),
    [
        ("namespaces", "namespaces landlock", {"reads a file of the host", "writes a file of the host"}),
        ("namespaces", "seccomp", {"makes a UDP socket", "sets a timer", "makes namespaces"}),
        ("namespaces", "rlimits", {"takes more memory than it may"}),
        ("landlock", "landlock", {"reads a file of the host", "writes a file of the host"}),
        ("landlock", "seccomp", {"asks about a file of the host", "makes a UDP socket", "sets a timer"}),
        ("landlock", "rlimits", {"takes more memory than it may"}),
    ],
)
def test_the_self_test_misses_a_layer(session_without: Open, tier: str, without: str, missed: set[str]) -> None:
    with session_without(tier) as session:
        assert selftest.misses(session, PACKAGES) == []
    with session_without(tier, frozenset(without.split())) as session:
        assert missed <= set(selftest.misses(session, PACKAGES))
