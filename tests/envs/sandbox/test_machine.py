from __future__ import annotations

import errno
import os
import platform
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trajgym.envs.sandbox import machine
from trajgym.envs.sandbox.machine import AARCH64, X86_64, Machine, syscall, this_machine

linux = pytest.mark.skipif(this_machine() is None, reason="not a machine the jail knows")


@pytest.mark.parametrize("known", [X86_64, AARCH64], ids=lambda machine: machine.name)
def test_every_number_is_the_kernels(known: Machine, kernel_numbers: Callable[[str], dict[str, int]]) -> None:
    expected = kernel_numbers(known.name)
    assert dict(known.calls) == {name: expected.get(name) for name in known.calls}


def test_a_call_that_one_machine_lacks_its_header_lacks_too(
    kernel_numbers: Callable[[str], dict[str, int]],
) -> None:
    missing = X86_64.calls.keys() - AARCH64.calls.keys()
    assert {"open", "stat", "poll", "rename"} <= missing
    assert not missing & kernel_numbers("aarch64").keys()
    assert AARCH64.calls.keys() <= X86_64.calls.keys()


def test_numbers_are_unique_and_shared_from_424_on() -> None:
    for known in (X86_64, AARCH64):
        assert len(set(known.calls.values())) == len(known.calls)
    recent = {name: number for name, number in X86_64.calls.items() if number >= 424}
    assert recent == {name: number for name, number in AARCH64.calls.items() if number >= 424}


def test_a_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        X86_64.calls["read"] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("system", "order", "pointer", "processor", "expected"),
    [
        ("linux", "little", 8, "x86_64", X86_64),
        ("linux", "little", 8, "aarch64", AARCH64),
        ("linux", "little", 4, "x86_64", None),
        ("linux", "little", 4, "aarch64", None),
        ("linux", "big", 8, "aarch64", None),
        ("linux", "little", 8, "riscv64", None),
        ("linux", "little", 8, "i686", None),
        ("darwin", "little", 8, "x86_64", None),
    ],
)
def test_this_machine(
    monkeypatch: pytest.MonkeyPatch, system: str, order: str, pointer: int, processor: str, expected: Machine | None
) -> None:
    real = struct.calcsize
    with monkeypatch.context() as changed:
        changed.setattr(sys, "platform", system)
        changed.setattr(sys, "byteorder", order)
        changed.setattr(struct, "calcsize", lambda form: pointer if form == "P" else real(form))
        changed.setattr(os, "uname", lambda: os.uname_result(("Linux", "host", "6.0", "#1", processor)))
        found = this_machine.__wrapped__()
    assert found is expected


@linux
def test_this_machine_is_the_real_one() -> None:
    found = this_machine()
    assert found is not None
    assert found.name == platform.machine()


@linux
def test_syscall_by_name_and_by_number() -> None:
    found = this_machine()
    assert found is not None
    assert syscall("getpid") == syscall(found.calls["getpid"]) == os.getpid()


@linux
def test_syscall_passes_bytes_and_whole_registers() -> None:
    reading, writing = os.pipe()
    try:
        assert syscall("write", writing, b"a\0b", 3) == 3
        assert os.read(reading, 9) == b"a\0b"
        # More than 32 bits arrive whole, both ways.
        with open(__file__, "rb") as file:
            assert syscall("lseek", file.fileno(), 2**33, os.SEEK_SET) == 2**33
            with pytest.raises(OSError, match="lseek") as raised:
                syscall("lseek", file.fileno(), -(2**33) + 5, os.SEEK_SET)
        assert raised.value.errno == errno.EINVAL
    finally:
        os.close(reading)
        os.close(writing)


@linux
def test_syscall_raises_the_kernels_errno() -> None:
    with pytest.raises(OSError, match="close: Bad file descriptor") as raised:
        syscall("close", -1)
    assert raised.value.errno == errno.EBADF
    with pytest.raises(FileNotFoundError):
        syscall("mkdirat", -100, b"/nowhere/at/all", 0o700)
    with pytest.raises(OSError, match="no_such_call") as raised:
        syscall("no_such_call")
    assert raised.value.errno == errno.ENOSYS


@linux
def test_a_process_gives_things_up(child: Callable[..., Any]) -> None:
    done = child("""
import ctypes, signal
from trajgym.envs.sandbox import machine
def prctl(option): return machine.syscall("prctl", option, 0, 0, 0, 0)
seen["before"] = [prctl(39), prctl(3)]
machine.no_new_privs(); machine.set_dumpable(False)
seen["after"] = [prctl(39), prctl(3)]
machine.set_dumpable(True)
seen["dumpable again"] = prctl(3)
machine.death_signal(signal.SIGTERM)
sig = ctypes.c_int()
machine.syscall("prctl", 2, ctypes.addressof(sig))
seen["death signal"] = sig.value
for _ in range(9): os.dup(0)
machine.close_from(3)
seen["open"] = [n for n in range(256) if tried(os.fstat, n) == "ok"]
""")
    assert done.seen == {
        "before": [0, 1],
        "after": [1, 0],
        "dumpable again": 1,
        "death signal": 15,
        "open": [0, 1, 2],
    }, done.errors


@linux
def test_no_capability_is_left_and_none_comes_back(child: Callable[..., Any]) -> None:
    done = child("""
from trajgym.envs.sandbox import machine
def sets():
    lines = dict(line.split(":") for line in open("/proc/self/status"))
    return {name: int(lines["Cap" + name], 16) for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")}
may = sets()["Eff"] >> 8 & 1
machine.seal_capabilities()
machine.drop_capabilities()
seen["after"] = sets()
seen["bounded"] = not may or seen["after"].pop("Bnd") == 0
seen["after"].pop("Bnd", None)
seen["locked"] = not may or machine.syscall("prctl", 27) == 0xEF
seen["again"] = tried(machine.drop_capabilities)
seen["hostname"] = tried(machine.unshare, machine.CLONE_NEWUTS)
""")
    assert done.seen == {
        "after": {"Inh": 0, "Prm": 0, "Eff": 0, "Amb": 0},
        "bounded": True,
        "locked": True,
        "again": "ok",
        "hostname": "EPERM",
    }, done.errors


@linux
def test_mounts_in_a_namespace_of_its_own(child: Callable[..., Any], tmp_path: Path) -> None:
    done = child(
        """
from trajgym.envs.sandbox.machine import *
from trajgym.envs.sandbox import machine
root = given[0]
def write(name, text):
    with open("/proc/self/" + name, "w") as file:
        file.write(text)
def enter():
    user, group = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | CLONE_NEWNS)
    write("setgroups", "deny"); write("uid_map", f"0 {user} 1"); write("gid_map", f"0 {group} 1")
    mount(None, "/", flags=MS_REC | MS_PRIVATE)
seen["namespaces"] = tried(enter)
if seen["namespaces"] == "ok":
    outer = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
    os.mkdir(root + "/old"); os.mkdir(root + "/bound"); os.mkdir(root + "/inner")
    mount(root + "/inner", root + "/bound", flags=MS_BIND)
    seen["write before"] = tried(open, root + "/bound/a", "w")
    mount_setattr(root + "/bound", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID)
    seen["write after"] = tried(open, root + "/bound/b", "w")
    umount(root + "/bound")
    seen["unmounted"] = os.listdir(root + "/bound")
    unshare(CLONE_NEWNS)
    pivot_root(root, root + "/old"); os.chdir("/"); umount("/old")
    seen["root"] = sorted(os.listdir("/"))
    seen["back"] = tried(setns, outer, CLONE_NEWNS)
    seen["missing"] = tried(mount, "tmpfs", "/nowhere", "tmpfs")
""",
        tmp_path,
    )
    if done.seen.get("namespaces") in ("EPERM", "EACCES", "ENOSPC", "ENOSYS", "EINVAL"):
        pytest.skip(f"this user may not make namespaces: {done.seen['namespaces']}")
    assert done.seen == {
        "namespaces": "ok",
        "write before": "ok",
        "write after": "EROFS",
        "unmounted": [],
        "root": ["bound", "inner", "old"],
        "back": "ok",
        "missing": "ENOENT",
    }, done.errors
    assert list(tmp_path.iterdir()) == []


def test_public_names_are_sorted_and_exist() -> None:
    assert sorted(machine.__all__) == sorted(set(machine.__all__))
    assert all(hasattr(machine, name) for name in machine.__all__)
