"""The zygote: a small single-threaded process with Python, numpy and sympy warm, which forks a worker per session.

It is exec'd afresh with a clean environment and no descriptor but its own, so nothing of the trainer is in its memory.
It builds what the workers share (the root, the namespaces), and then only forks, and reports who has ended. It never
reads what a worker writes.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from trajgym.envs.sandbox import jail, landlock, machine, namespaces, stored, threads, worker
from trajgym.envs.sandbox.cell import Notebook
from trajgym.envs.sandbox.preload import preload
from trajgym.envs.sandbox.scratch import remove_folder

__all__ = ["main"]

_SETUP_FAILED = 97
_MESSAGE = 1 << 16


def main(control: int, parent: int) -> NoReturn:
    """Build the jail as the host's first message says, then serve until the host is gone.

    Args:
        control: Descriptor of the SEQPACKET socket to the host.
        parent: Pidfd of the host, which is readable when the host has ended, however it ended.
    """
    channel = socket.socket(fileno=control)
    settings: dict[str, Any] = json.loads(channel.recv(_MESSAGE))
    try:
        zygote = Zygote(channel, parent, settings)
    except Exception as error:
        channel.send(json.dumps({"event": "failed", "reason": f"{type(error).__name__}: {error}"}).encode())
        os._exit(1)
    zygote.serve()


class Zygote:
    """Forks workers into the jail.

    Args:
        channel: To the host.
        parent: Pidfd of the host.
        settings: ``layers``, ``packages``, ``search``, ``read``, ``hide``; ``uid`` to become, or null; ``folder`` for
            scratch, or null.
    """

    def __init__(self, channel: socket.socket, parent: int, settings: Mapping[str, Any]) -> None:
        layers = frozenset(settings["layers"])
        self._channel, self._parent = channel, parent
        most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
        # Should memory run out, a worker must go before the trainer does.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        own_namespaces = "namespaces" in layers
        by_notes = not own_namespaces and "seccomp" in layers  # no worker may ask about the host's files
        preload(settings["packages"], settings["search"], compiled=by_notes)
        threads.install()
        if len(os.listdir("/proc/self/task")) > 1:
            raise RuntimeError(f"one of the packages {settings['packages']} starts threads when it is imported")
        files = stored.note(settings["read"]) if by_notes else None
        with open("/proc/self/statm") as file:
            base = int(file.read().split()[0]) * resource.getpagesize()
        # In a namespace of its own, every worker is process 1.
        calls = jail.call_filter(1, paths=True) if own_namespaces and "seccomp" in layers else None
        self._jail = jail.Jail(layers, settings["read"], base, files, calls)
        # Its streams are numbers of descriptors, which mean the worker's own once it has arranged them.
        self._notebook = Notebook()
        gc.collect()
        gc.freeze()  # a worker's collector must not touch, and so copy, the pages that all share
        uid, folder = settings["uid"], settings["folder"]
        if uid is not None and not namespaces.can_become(uid, () if own_namespaces else settings["read"]):
            uid = None
        if own_namespaces:
            namespaces.enter(settings["read"], settings["hide"], uid)
            _step_aside(channel, parent, None)
        else:
            if uid is not None and folder is not None:
                os.chown(folder, uid, uid)
            _step_aside(channel, parent, folder)
            if uid is not None:
                namespaces.become(uid)
                machine.death_signal(signal.SIGKILL)  # the change of user has cleared it
            if "landlock" in layers:
                # Inherited by all workers: their own rules name whole folders; what is too much in these ends here.
                read = [*_without(settings["read"], settings["hide"])]
                landlock.restrict(read=read, write=[os.devnull, *([folder] if folder else [])])
        if "capabilities" in layers:
            machine.seal_capabilities()
        self._workers: dict[int, tuple[int, int]] = {}
        self._outbox: collections.deque[tuple[bytes, list[int]]] = collections.deque()
        self._pid = os.getpid()
        self._self = os.pidfd_open(self._pid)
        self._fork: Callable[[], int] = self._fork_into_namespace if own_namespaces else os.fork
        self._post({"event": "ready", "uid": os.geteuid(), "landlock": landlock.abi(), "base": base})

    def serve(self) -> NoReturn:
        """Fork on request and report ends, until the host closes the channel or dies."""
        self._channel.setblocking(False)
        control = self._channel.fileno()
        poller = select.epoll()
        poller.register(control, select.EPOLLIN)
        poller.register(self._parent, select.EPOLLIN)
        self._poller = poller
        while True:
            poller.modify(control, select.EPOLLIN | (select.EPOLLOUT if self._outbox else 0))
            for descriptor, events in poller.poll():
                if descriptor == self._parent:
                    os._exit(0)
                if descriptor != control:
                    self._reap(descriptor)
                elif events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                    self._receive()
            self._flush()

    def _receive(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._channel, _MESSAGE, 2)
        except BlockingIOError:
            return
        except ConnectionError:
            os._exit(0)
        if not message:
            os._exit(0)
        self._spawn(json.loads(message), descriptors)

    def _spawn(self, order: dict[str, Any], descriptors: Sequence[int]) -> None:
        number = order["number"]
        try:
            pid = self._fork()
            if pid == 0:
                self._be_worker(order, *descriptors)
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            self._post({"event": "failed", "number": number, "reason": str(error)})
        else:
            self._workers[pidfd] = (number, pid)
            self._poller.register(pidfd, select.EPOLLIN)
            self._post({"event": "spawned", "number": number}, [pidfd])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork_into_namespace(self) -> int:
        """Fork a child that is process 1 of a namespace of its own."""
        machine.unshare(machine.CLONE_NEWPID)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid:  # the zygote's own next child must not land in there too
                machine.setns(self._self, machine.CLONE_NEWPID)
        return pid

    def _be_worker(self, order: Mapping[str, Any], control: int, output: int) -> NoReturn:
        try:
            self._workers.clear()  # no worker is to know of others
            jail.take_descriptors(control, output)
            if self._fork is os.fork:
                # Set here, since it is cleared by a change of uid; it follows the thread that forked, the only one.
                machine.death_signal(signal.SIGKILL)
                if os.getppid() != self._pid:  # it came too late
                    os._exit(0)
            self._jail.enter(order)
            worker.serve(jail.CONTROL, self._notebook, order["output"])
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(1, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(_SETUP_FAILED)

    def _reap(self, pidfd: int) -> None:
        number, pid = self._workers.pop(pidfd)
        self._poller.unregister(pidfd)
        _, status, used = os.wait4(pid, 0)
        os.close(pidfd)
        self._post({"event": "exit", "number": number, "status": status, "cpu": used.ru_utime + used.ru_stime})

    def _post(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Send, or keep for later: waiting for a host that waits for us would be the end of both."""
        self._outbox.append((json.dumps(message).encode(), [os.dup(d) for d in descriptors or ()]))
        self._flush()

    def _flush(self) -> None:
        while self._outbox:
            message, descriptors = self._outbox[0]
            try:
                socket.send_fds(self._channel, [message], descriptors)
            except BlockingIOError:
                return
            except OSError:
                os._exit(0)
            self._outbox.popleft()
            for descriptor in descriptors:
                os.close(descriptor)


def _step_aside(channel: socket.socket, parent: int, folder: str | None) -> None:
    """Go on in a child (process 1, where a namespace was made for it); what stays behind waits and tidies up.

    Args:
        channel: To the host; closed in the process that stays.
        parent: Pidfd of the host; closed likewise.
        folder: Removed when the child has ended, however it ended.
    """
    pid = os.fork()
    if pid:
        channel.close()
        os.close(parent)
        _, status = os.waitpid(pid, 0)
        if folder is not None:
            remove_folder(folder)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    machine.death_signal(signal.SIGKILL)


def _without(read: Sequence[str], hide: Sequence[str]) -> Iterator[str]:
    """Yield ``read``, a folder that holds one of ``hide`` replaced by what else is in it."""
    for path in read:
        hidden = {os.path.basename(folder) for folder in hide if os.path.dirname(folder) == path}
        if hidden & set(os.listdir(path) if os.path.isdir(path) else ()):
            yield from (f"{path}/{name}" for name in os.listdir(path) if name not in hidden)
        else:
            yield path
