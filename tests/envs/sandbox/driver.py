"""A program that has untrusted code run, and looks from outside what it did. One isolation, one user: whoever runs it.

Takes the name of the isolation and a folder of its own. Reads orders, one JSON object per line; writes one per order:
``{"is": answer}``, or ``{"failed": traceback}`` where the sandbox itself raised. The first line tells who runs where.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from trajgym.envs.sandbox import IsolationUnavailable, Kind, Limits, Pool, Result
from trajgym.envs.tools.base import ToolFailure
from trajgym.envs.tools.python import python_tool

MEBIBYTE = 1 << 20
# Those of the case file's rows.
ATTACKED = Limits(cpu=0.3, wall=3.0, memory=128 * MEBIBYTE)
ATTACKED_WITH_SCRATCH = Limits(cpu=0.3, wall=3.0, memory=128 * MEBIBYTE, scratch=4 * MEBIBYTE)
USED = Limits(cpu=1.0, memory=512 * MEBIBYTE, scratch=16 * MEBIBYTE)
PACKAGES = ("numpy", "mpmath", "sympy")
GONE_SECONDS = 2.0
HOST_SECONDS = 0.3


class Bait:
    """Things of the host that code would like to reach, and what became of them.

    Everybody may do everything with the file and its folder, so that nothing but the jail protects them.
    """

    def __init__(self, folder: str) -> None:
        self.file = f"{folder}/bait/canary"
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.port = self._tcp.getsockname()[1]
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", self.port))
        self._unix = socket.socket(socket.AF_UNIX)
        self._unix.bind(f"\0sbxcanary{os.getpid()}")
        self._unix.listen()
        for listener in (self._tcp, self._udp, self._unix):
            listener.setblocking(False)
        os.mkdir(os.path.dirname(self.file))
        os.chmod(os.path.dirname(self.file), 0o777)
        self._lay()

    def complaints(self) -> list[str]:
        """Say what was touched since the last time."""
        found = []
        if (now := self._state()) != self._before:
            found.append(f"the file or its folder changed from {self._before} to {now}")
            self._lay()
        for name, listener in {"TCP": self._tcp, "UDP": self._udp, "Unix": self._unix}.items():
            try:
                if listener is self._udp:
                    listener.recv(1)
                else:
                    listener.accept()[0].close()
                found.append(f"somebody reached the {name} socket")
            except BlockingIOError:
                pass
        return found

    def _lay(self) -> None:
        folder = os.path.dirname(self.file)
        for name in os.listdir(folder):
            os.remove(f"{folder}/{name}")
        with open(self.file, "w") as file:
            file.write("tweet")
        os.chmod(self.file, 0o666)
        self._before = self._state()

    def _state(self) -> list[Any]:
        folder = os.path.dirname(self.file)
        state: list[Any] = [sorted(os.listdir(folder))]
        for path in (folder, self.file):
            try:
                s = os.stat(path)
                state.append([s.st_mode, s.st_uid, s.st_gid, s.st_nlink, s.st_size, s.st_mtime_ns, s.st_ctime_ns])
            except OSError as error:
                return [*state, str(error)]
        with open(self.file, "rb") as file:
            return [*state, file.read().hex()]


class Driver:
    """Carries out orders.

    Args:
        tier: The isolation.
        folder: Where temporary files go.
    """

    def __init__(self, tier: str, folder: str) -> None:
        self.tier, self.folder = tier, folder
        self.bait = Bait(folder)
        self._pools: dict[Limits, Pool] = {}

    def attack(self, cells: list[tuple[str, str]], scratch: bool) -> dict[str, Any]:
        """Run cells, each in the session of the name it comes with, and see what is left of them and of us.

        Args:
            cells: Pairs of the name of a session and code.
            scratch: Whether sessions get a scratch folder also where that is not the default.
        """
        pool = self._pool(ATTACKED_WITH_SCRATCH if scratch else ATTACKED)
        before = self._traces()
        sessions = {name: pool.open() for name, _ in cells}
        work = time.process_time()
        results = [sessions[name].call(self._filled(code)) for name, code in cells]
        work = time.process_time() - work
        last = cells[-1][0]
        after = {name: session.call("1+1") for name, session in sessions.items()}
        for session in sessions.values():
            session.close()
        complaints = self.bait.complaints()
        with pool.open() as fresh:
            if fresh.call("1+1").output != "2" or pool.restarts:
                complaints.append("the pool suffered")
                self._pools.pop(pool.limits).close()
        complaints += [f"the calls cost the host {work:.2f} s of its own"] if work > HOST_SECONDS else []
        complaints += [f"session {name} suffered" for name, r in after.items() if name != last and r.output != "2"]
        deadline = time.monotonic() + GONE_SECONDS
        while (left := self._traces() - before) and time.monotonic() < deadline:
            time.sleep(0.01)
        complaints += [f"{trace} is left" for trace in sorted(left)]
        shown = [_shown(result) for result in results]
        return {"results": shown, "next": _shown(after[last]), "complaints": complaints}

    def interpret(self, calls: list[str], needs: list[str]) -> dict[str, Any]:
        """Run the calls of a policy through the tool and tell the last one's outcome.

        Args:
            calls: The code of each.
            needs: Packages that must be at hand.
        """
        if missing := [name for name in needs if importlib.util.find_spec(name) is None]:
            return {"missing": missing}
        tool = python_tool(limits=USED, isolation=self.tier, packages=_with_dependencies((*PACKAGES, *needs)))
        target = tool.target()
        target.open(0)
        kind, seen = None, ""
        for code in calls:
            try:
                kind, seen = None, target(code)
            except ToolFailure as failure:
                kind, seen = failure.kind, str(failure)
        last = target.result
        target.close()
        return {**_shown(last), "kind": last.error_type if kind == "exception" else kind, "seen": seen}

    def close(self) -> None:
        """End everything."""
        for pool in self._pools.values():
            pool.close()

    def _pool(self, limits: Limits) -> Pool:
        if limits not in self._pools:
            self._pools[limits] = Pool(limits=limits, packages=PACKAGES, isolation=self.tier)
        return self._pools[limits]

    def _filled(self, code: str) -> str:
        facts = {"{HOST_PID}": str(os.getpid()), "{PORT}": str(self.bait.port), "{CANARY}": self.bait.file}
        return re.sub("|".join(map(re.escape, facts)), lambda found: facts[found[0]], code)

    def _traces(self) -> set[str]:
        """What there is that a session must not leave behind."""
        found = {f"process {pid}" for pid in _below(os.getpid())}
        found |= {f"descriptor {name}" for name in os.listdir("/proc/self/fd")}
        return found | set(_paths_in(self.folder))


def _below(pid: int) -> Iterator[int]:
    """Yield the processes that descend from ``pid``."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except OSError:  # it has just ended
                continue
            children.setdefault(parent, []).append(int(name))
    found = [pid]
    while found:
        found += (below := children.get(found.pop(), []))
        yield from below


def _paths_in(folder: str) -> Iterator[str]:
    folders = [folder]
    for path in folders:  # grows while it is walked
        with contextlib.suppress(OSError):
            for entry in os.scandir(path):
                yield entry.path
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)


def _with_dependencies(packages: Iterable[str]) -> tuple[str, ...]:
    """Return the packages and the importable names of all that they require, sorted."""
    names_of: dict[str, list[str]] = {}
    for name, owners in importlib.metadata.packages_distributions().items():
        for owner in owners:
            names_of.setdefault(_normal(owner), []).append(name)
    found, queue = set(packages), [_normal(name) for name in packages]
    seen = set(queue)
    for distribution in queue:  # grows while it is walked
        found |= {name for name in names_of.get(distribution, ()) if name.isidentifier() and not name.startswith("_")}
        try:
            requirements = importlib.metadata.requires(distribution) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for requirement in requirements:
            other = _normal(re.match(r"[\w.-]+", requirement)[0])  # type: ignore[index]
            if "extra ==" not in requirement and other in names_of and other not in seen:
                seen.add(other)
                queue.append(other)
    return tuple(sorted(name for name in found if importlib.util.find_spec(name) is not None))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _shown(result: Result) -> dict[str, Any]:
    fields = ("kind", "output", "dropped", "error_type", "message", "traceback", "state_lost", "isolation", "text")
    return {field: getattr(result, field) for field in fields}


def main(tier: str, folder: str) -> None:
    def say(**answer: object) -> None:
        print(json.dumps(answer), flush=True)

    try:
        driver = Driver(tier, folder)
        if driver.attack([("a", "1+1")], scratch=False)["results"][0]["kind"] != Kind.OK:
            raise RuntimeError("not even 1+1 works")
    except IsolationUnavailable as error:
        say(unavailable=str(error))
        return
    say(uid=os.geteuid(), groups=os.getgroups(), isolation=tier, pid=os.getpid())
    orders: dict[str, Callable[..., Any]] = {"attack": driver.attack, "interpret": driver.interpret}
    for line in sys.stdin:
        order = json.loads(line)
        try:
            say(**{"is": orders[order.pop("do")](**order)})
        except Exception:
            say(failed=traceback.format_exc())
    driver.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
