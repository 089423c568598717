"""The first layer: a root of its own, in namespaces of its own. Runs once, in the process that becomes the zygote.

The new root is a small read-only tmpfs with read-only binds of what Python needs, at the paths they have outside. There
is no /proc, no /sys, no home, no network device; other processes have no number in here.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from trajgym.envs.sandbox import machine

__all__ = ["SCRATCH", "become", "can_become", "enter", "private_scratch"]

SCRATCH = "/scratch"

_PRIVATE_FLAGS = machine.MS_NOSUID | machine.MS_NODEV
_INSIDE_ID = 1000


def enter(read: Sequence[str], hide: Sequence[str], uid: int | None) -> None:
    """Leave the host's files, network and identity behind; the next fork is process 1 of a namespace.

    Args:
        read: Files and folders to keep, read-only.
        hide: Folders within them of which nothing else is to be seen.
        uid: For root: the user id to become, which nobody else should have.

    Raises:
        OSError: The kernel refuses one of the steps.
    """
    # The kernel takes the id maps through /proc, which will be out of sight by then.
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    machine.set_dumpable(True)  # or /proc/self would not be ours to write, after a change of user
    outside_uid, outside_gid = os.geteuid(), os.getegid()
    if uid is not None:
        # It takes root's rights to bind folders below one that only root may enter, so this comes before they go.
        machine.unshare(machine.CLONE_NEWNS)
        _build_root(read, hide)
        become(uid)
        outside_uid = outside_gid = uid
        machine.set_dumpable(True)
    machine.unshare(
        machine.CLONE_NEWUSER
        | machine.CLONE_NEWNS
        | machine.CLONE_NEWPID
        | machine.CLONE_NEWNET
        | machine.CLONE_NEWIPC
        | machine.CLONE_NEWUTS
        | machine.CLONE_NEWCGROUP
    )
    _write(proc, "setgroups", "deny")
    _write(proc, "uid_map", f"{_INSIDE_ID} {outside_uid} 1")
    _write(proc, "gid_map", f"{_INSIDE_ID} {outside_gid} 1")
    os.close(proc)
    if uid is None:
        _build_root(read, hide)
    socket.sethostname("sandbox")


def can_become(uid: int, read: Sequence[str] = ()) -> bool:
    """Whether root here may take the identity ``uid``, and then read all of ``read``.

    Root of a container may be refused. What a user can read is asked as that user: only the kernel knows all rules.
    """
    try:
        os.seteuid(uid)
    except OSError:
        return False
    try:
        wanted = ((path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)) for path in read)
        return all(os.access(path, mode, effective_ids=True) for path, mode in wanted)
    finally:
        os.seteuid(0)


def become(uid: int) -> None:
    """Drop root for ``uid``, groups included, for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def private_scratch(size: int) -> None:
    """Give this process a scratch folder that nobody else sees and that ends with it.

    Args:
        size: Bytes; 0 leaves the empty read-only folder in place.
    """
    if size:
        machine.unshare(machine.CLONE_NEWNS)
        options = f"size={size},nr_inodes=1024,mode=0700"
        machine.mount("tmpfs", SCRATCH, "tmpfs", _PRIVATE_FLAGS | machine.MS_NOEXEC, options)
    os.chdir(SCRATCH)


def _build_root(read: Sequence[str], hide: Sequence[str]) -> None:
    machine.mount("none", "/", None, machine.MS_REC | machine.MS_PRIVATE)
    # The whole old tree moves to /old of a first tmpfs, where a path below the mount point is not hidden by it.
    machine.mount("tmpfs", "/tmp", "tmpfs", _PRIVATE_FLAGS, "mode=0755,size=1m")  # noqa: S108
    os.mkdir("/tmp/new")  # noqa: S108
    os.mkdir("/tmp/old")  # noqa: S108
    machine.pivot_root("/tmp", "/tmp/old")  # noqa: S108
    os.chdir("/")
    machine.mount("tmpfs", "/new", "tmpfs", _PRIVATE_FLAGS, "mode=0755,size=1m")
    covered = tuple(f"{folder}/" for folder in hide)
    for path in read:
        if not path.startswith(covered):
            _bind(path)
    for folder in hide:
        if os.path.isdir("/new" + folder):
            machine.mount("tmpfs", "/new" + folder, "tmpfs", _PRIVATE_FLAGS, "mode=0755,size=1m")
            for path in read:
                if path.startswith(f"{folder}/"):
                    _bind(path)
            machine.mount_setattr("/new" + folder, machine.MOUNT_ATTR_RDONLY)
    os.mkdir("/new" + SCRATCH)
    os.chmod("/new", 0o311)  # noqa: S103  (its owner may enter but not list it, and nobody may write)
    os.chdir("/new")
    machine.pivot_root(".", ".")
    machine.umount(".", machine.MNT_DETACH)
    os.chdir("/")
    machine.mount_setattr("/", machine.MOUNT_ATTR_RDONLY, recursive=False)


def _bind(path: str) -> None:
    source, target = "/old" + path, "/new" + path
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif os.path.exists(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
    else:
        return
    machine.mount(source, target, None, machine.MS_BIND | machine.MS_REC)
    attributes = machine.MOUNT_ATTR_RDONLY | machine.MOUNT_ATTR_NOSUID
    if not path.startswith("/dev/"):
        attributes |= machine.MOUNT_ATTR_NODEV
    machine.mount_setattr(target, attributes)


def _write(proc: int, name: str, text: str) -> None:
    descriptor = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
