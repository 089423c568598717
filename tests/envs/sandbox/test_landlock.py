"""Which files stay in reach. Without Landlock, nothing that the children try would do harm."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trajgym.envs.sandbox import landlock

MAKE_REG, REFER, TRUNCATE, EXECUTE = 1 << 8, 1 << 13, 1 << 14, 1 << 0
MAKE_NODES = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12  # devices, sockets, pipes, symbolic links
IOCTL_DEV = 1 << 15


def needs(version: int) -> pytest.MarkDecorator:
    reason = f"this kernel has Landlock version {landlock.abi()}, the test needs {version}"
    return pytest.mark.skipif(landlock.abi() < version, reason=reason)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("read", "write", "outside"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "single").write_text("single")
    return tmp_path


TREE = """
from trajgym.envs.sandbox import landlock
root = given[0] + "/"
READ = [root + "read", root + "single", "/dev/null", root + "missing"]
WRITE = [root + "write"]
"""


@needs(3)
def test_files(child: Callable[..., Any], tree: Path) -> None:
    done = child(
        TREE
        + """
held = open(root + "outside/file")
seen["version"] = landlock.restrict(read=READ, write=WRITE)
def read(path): seen["text"] = open(root + path).read()
seen["inside"] = [tried(read, "read/file"), tried(read, "write/file"), tried(read, "single"), tried(open, "/dev/null")]
seen["listing"] = [sorted(os.listdir(root + name)) for name in ("read", "write")]
seen["held"] = held.read()
seen["outside"] = [tried(read, "outside/file"), tried(os.listdir, root + "outside"), tried(os.listdir, "/"),
                   tried(open, "/etc/passwd"), tried(open, "/proc/self/environ"), tried(open, "/dev/null", "w")]
seen["changing"] = {
    name: [tried(open, root + name + "/file", "a"), tried(os.truncate, root + name + "/file", 3),
           tried(open, root + name + "/new", "w"), tried(os.mkdir, root + name + "/folder"),
           tried(os.rename, root + name + "/file", root + name + "/inner/file"),
           tried(os.rmdir, root + name + "/folder"), tried(os.remove, root + name + "/inner/file")]
    for name in ("write", "read", "outside")
}
open(root + "write/mine", "w").close()
seen["out of the tree"] = [
    tried(os.rename, root + "write/mine", root + "outside/mine"), tried(os.link, root + "write/mine", root + "mine"),
    tried(os.rename, root + "read/file", root + "write/taken"),
    tried(os.link, root + "read/file", root + "write/taken"),
    tried(os.link, root + "outside/file", root + "write/taken"),
]
seen["never"] = [
    tried(os.symlink, "/etc", root + "write/etc"), tried(os.mkfifo, root + "write/fifo"),
    tried(os.mknod, root + "write/socket", 0o140600), tried(os.execv, "/bin/true", ["true"]),
]
""",
        tree,
    )
    seen = done.seen
    assert seen.pop("version") == min(landlock.abi(), 7), done.errors
    refused = {"EACCES", "EXDEV", "EPERM"}
    assert set(seen.pop("out of the tree")) <= refused
    assert seen == {
        "text": "single",
        "inside": ["ok"] * 4,
        "listing": [["file", "inner"], ["file", "inner"]],
        "held": "outside",
        "outside": ["EACCES"] * 6,
        "changing": {
            "write": ["ok"] * 7,
            "read": ["EACCES"] * 5 + ["ENOENT"] * 2,
            "outside": ["EACCES"] * 5 + ["ENOENT"] * 2,
        },
        "never": ["EACCES"] * 4,
    }
    assert sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()) == [
        "outside/file",
        "read/file",
        "single",
        "write/mine",
        "write/new",
    ]
    assert [(tree / name / "file").read_text() for name in ("read", "outside")] == ["read", "outside"]


@needs(1)
def test_a_second_call_takes_away_and_never_gives(child: Callable[..., Any], tree: Path) -> None:
    done = child(
        TREE
        + """
landlock.restrict(read=[root], write=[])
seen["first"] = [tried(open, root + name) for name in ("read/file", "single", "write/file")]
landlock.restrict(read=[root + "read", "/"], write=[root])
seen["second"] = [tried(open, root + "read/file"), tried(open, root + "read/file", "a"), tried(open, "/etc/passwd")]
landlock.restrict(read=[root + "read"], write=[])
seen["third"] = [tried(open, root + name) for name in ("read/file", "single", "write/file")]
""",
        tree,
    )
    assert done.seen == {
        "first": ["ok"] * 3,
        "second": ["ok", "EACCES", "EACCES"],
        "third": ["ok", "EACCES", "EACCES"],
    }, done.errors


@needs(4)
def test_tcp(child: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        done = child(
            """
import socket
from trajgym.envs.sandbox import landlock
before, after = socket.socket(), socket.socket()
landlock.restrict(read=[], write=[])
seen["connect"] = tried(after.connect, ("127.0.0.1", int(given[0])))
seen["bind"] = tried(before.bind, ("127.0.0.1", 0))
""",
            server.getsockname()[1],
        )
        with pytest.raises(BlockingIOError):
            server.accept()
    assert done.seen == {"connect": "EACCES", "bind": "EACCES"}, done.errors


@needs(6)
def test_signals_and_abstract_sockets(child: Callable[..., Any]) -> None:
    name = f"trajgym-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        done = child(
            """
import socket
from trajgym.envs.sandbox import landlock
landlock.restrict(read=[], write=[])
seen["signal"] = tried(os.kill, int(given[0]), 0)
seen["myself"] = tried(os.kill, os.getpid(), 0)
seen["connect"] = tried(socket.socket(socket.AF_UNIX).connect, "\\0" + given[1])
""",
            os.getpid(),
            name,
        )
    assert done.seen == {"signal": "EPERM", "myself": "ok", "connect": "EPERM"}, done.errors


@needs(1)
def test_a_path_to_write_must_exist(child: Callable[..., Any], tree: Path) -> None:
    done = child(
        TREE
        + """
before = len(os.listdir("/proc/self/fd"))
seen["restrict"] = tried(landlock.restrict, read=READ, write=[root + "missing"])
seen["not a folder"] = tried(landlock.restrict, read=[root + "single/below"], write=[])
seen["unchanged"] = [tried(open, root + "outside/file"), len(os.listdir("/proc/self/fd")) - before]
""",
        tree,
    )
    assert done.seen == {"restrict": "ENOENT", "not a folder": "ENOTDIR", "unchanged": ["ok", 0]}, done.errors


@pytest.mark.parametrize("version", range(1, 8))
def test_a_kernel_that_knows_less(child: Callable[..., Any], tree: Path, version: int) -> None:
    if landlock.abi() < version:
        pytest.skip(f"this kernel has Landlock version {landlock.abi()}")
    done = child(
        TREE
        + f"landlock.abi = lambda: {version}\n"
        + """
seen["version"] = landlock.restrict(read=READ, write=WRITE)
seen["read"] = [tried(open, root + name) for name in ("read/file", "write/file", "outside/file")]
seen["write"] = [tried(open, root + name + "/new", "w") for name in ("read", "write", "outside")]
""",
        tree,
    )
    assert done.seen == {
        "version": version,
        "read": ["ok", "ok", "EACCES"],
        "write": ["EACCES", "ok", "EACCES"],
    }, done.errors


@pytest.mark.parametrize(
    ("version", "rights", "words", "flags"),
    [
        (1, 13, 1, 0),
        (2, 14, 1, 0),
        (3, 15, 1, 0),
        (4, 15, 2, 0),
        (5, 16, 2, 0),
        (6, 16, 3, 0),
        (7, 16, 3, 1),
        (8, 16, 3, 1),
        (99, 16, 3, 1),
    ],
)
def test_what_the_kernel_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int, rights: int, words: int, flags: int
) -> None:
    (tmp_path / "file").touch()
    asked = []

    def syscall(call: str, *args: int | bytes | None) -> int:
        asked.append((call, *args))
        return os.open("/", os.O_RDONLY) if call == "landlock_create_ruleset" else 0

    monkeypatch.setattr(landlock, "abi", lambda: version)
    monkeypatch.setattr(landlock, "syscall", syscall)
    monkeypatch.setattr(landlock, "no_new_privs", lambda: asked.append(("no_new_privs",)))
    file = str(tmp_path / "file")
    assert landlock.restrict(read=[str(tmp_path), file], write=[str(tmp_path), file]) == min(version, 7)

    (_, handled, size, _), *rules, privileges, (last, _, last_flags) = asked
    assert (privileges[0], last, last_flags, size) == ("no_new_privs", "landlock_restrict_self", flags, 8 * words)
    assert struct.unpack(f"={words}Q", handled) == ((1 << rights) - 1, 3, 3)[:words]
    given = [struct.unpack("=Qi", rule)[0] for _, _, _, rule, _ in rules]
    folder_read, file_read, folder_write, file_write = given
    assert all(right < 1 << rights and not right & (EXECUTE | MAKE_NODES | IOCTL_DEV) for right in given)
    assert (folder_read, file_read) == (0b1100, 0b100)
    assert folder_write & MAKE_REG
    assert bool(folder_write & REFER) is (version >= 2)
    assert bool(folder_write & TRUNCATE) is (version >= 3)
    assert file_write == 0b110 | (TRUNCATE if version >= 3 else 0)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_kernel_without_it(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def syscall(call: str, *_: object) -> int:
        raise OSError(code, call)

    monkeypatch.setattr(landlock, "syscall", syscall)
    assert landlock.abi.__wrapped__() == 0
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    with pytest.raises(OSError, match="landlock_create_ruleset") as raised:
        landlock.restrict(read=["/"], write=[])
    assert raised.value.errno == code
