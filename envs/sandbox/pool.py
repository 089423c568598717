"""A pool: one zygote, and any number of sessions forked from it."""

from __future__ import annotations

import asyncio
import logging
import operator
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterable
from types import TracebackType

from trajgym.envs.sandbox import landlock, selftest
from trajgym.envs.sandbox.limits import Limits
from trajgym.envs.sandbox.link import Link
from trajgym.envs.sandbox.places import find_places, unassigned_uid
from trajgym.envs.sandbox.results import IsolationUnavailable, PoolClosed, Result
from trajgym.envs.sandbox.scratch import remove_folder
from trajgym.envs.sandbox.session import Session, drive
from trajgym.envs.sandbox.tiers import LAYERS_OF, candidates, missing, remedy, unavailable
from trajgym.errors import ConfigError

__all__ = ["Pool"]

_log = logging.getLogger(__name__)


class Pool:
    """Interpreters for untrusted code, isolated by the kernel. A context manager that closes it.

    Starting takes the time to import the packages once; a session then is a fork. Where the machinery dies (somebody
    killed it, memory ran out), its sessions answer ``PoolDied``, and the next :meth:`open` builds it anew.

    Args:
        limits: What each session may use, unless it is opened with limits of its own.
        packages: Top-level packages that code may import besides the standard library; name those they need as well.
        isolation: ``"namespaces"``, ``"landlock"`` or ``"none"``; by default the strongest that passes its self-test.
        min_isolation: The weakest that will do; ``"landlock"`` unless ``isolation`` is ``"none"``.
        allow_unsafe: With the environment variable ``TRAJGYM_ALLOW_UNSAFE=1``, permits ``"none"``.
        without: Layers to leave out, to see what each does; needs the same two switches and counts as ``"none"``.

    Raises:
        IsolationUnavailable: No permitted isolation works here; says what is missing and how to get it.
        ConfigError: For an argument that cannot be.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        packages: Iterable[str] = ("numpy", "mpmath", "sympy"),
        isolation: str | None = None,
        min_isolation: str | None = None,
        allow_unsafe: bool = False,
        without: Iterable[str] = (),
    ) -> None:
        self.limits = limits or Limits()
        if isinstance(packages, str):
            raise ConfigError(f"packages takes several: write ({packages!r},), with a comma.")
        self.packages = tuple(packages)
        self._places = find_places(self.packages)
        self._without = frozenset(without)
        if self._without:
            candidates("none", "none", allow_unsafe=allow_unsafe)
        self._tiers = candidates(isolation, min_isolation, allow_unsafe=allow_unsafe)
        self._lock = threading.Lock()
        self._closed = False
        self._folder: str | None = None
        self.restarts = 0
        """How often the machinery was built anew."""
        self.isolation = "none"
        """What keeps code from the host."""
        self.landlock = 0
        """Version of the kernel's Landlock, 0 for none."""
        self._link = self._build()

    def open(self, seed: int = 0, *, limits: Limits | None = None) -> Session:
        """Open a session: an interpreter of its own, with a state that lasts until it is closed.

        Args:
            seed: Makes its random numbers; the same seed and code give the same output.
            limits: Replace the pool's.

        Raises:
            PoolClosed: After :meth:`close`, and in a forked process.
            IsolationUnavailable: The machinery died and could not be built anew, or the machine has no more to give.
            ConfigError: ``seed`` is no whole number.
        """
        link = self._live_link()
        try:
            seed = operator.index(seed)
        except TypeError:
            raise ConfigError(f"seed must be a whole number, got {seed!r}.") from None
        if seed.bit_length() > 256:
            raise ConfigError(f"seed must have at most 256 bits, got one of {seed.bit_length():,}.")
        limits = limits or self.limits
        folder = self._scratch_folder(link, limits)
        return Session.open(link, self.isolation, limits, seed, folder)

    @property
    def uid(self) -> int:
        """User id that sessions run as, seen from inside: 1000 in namespaces of their own, else a real one."""
        return int(self._link.ready["uid"])

    @property
    def layers(self) -> frozenset[str]:
        """The layers that are on, of :data:`trajgym.envs.sandbox.jail.LAYERS`."""
        return self._link.layers

    async def aopen(self, seed: int = 0, *, limits: Limits | None = None) -> Session:
        """Open a session without blocking the event loop; see :meth:`open`."""
        return await asyncio.to_thread(self.open, seed, limits=limits)

    def run(self, pairs: Iterable[tuple[Session, str]]) -> list[Result]:
        """Run one call in each of several sessions at once, from this one thread.

        Args:
            pairs: Sessions, each of them once, and what to run in them.

        Returns:
            One result per pair, in order.
        """
        return drive(list(pairs))

    def close(self) -> None:
        """End every session and the machinery. Idempotent; in a forked process, without effect on the parent's."""
        if not self._link.is_owner():
            return
        self._closed = True
        self._link.close()
        for session in list(self._link.members):
            session.close()
        self._remove_folder()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        sessions = sum(session.dead is None for session in self._link.members)
        return f"<Pool, isolation {self.isolation}, {sessions} sessions>"

    def _live_link(self) -> Link:
        self._link.check_owner()  # first: a thread may have held the lock when this process was forked
        with self._lock:
            if not self._closed and not self._link.alive():
                _log.warning("%s; it is built anew", self._link.failure)
                self._link.close()
                self._link = self._build()
                self.restarts += 1
            if self._closed:  # meanwhile, perhaps
                self._link.close()
                raise PoolClosed("This pool is closed. Make a new Pool.")
            return self._link

    def _build(self) -> Link:
        """Start a zygote with the strongest isolation that holds."""
        reasons: dict[str, str] = {}
        for tier in self._tiers:
            reasons[tier] = missing(tier)
            if reasons[tier]:
                continue
            try:
                link = self._start(tier)
            except IsolationUnavailable as error:
                if re.match(r"(ModuleNotFound|Import)Error: ", str(error)):
                    message = f"packages: {error}. Name what they need as well: {self.packages!r} is all there is."
                    raise ConfigError(message) from error
                number = re.search(r"\[Errno (\d+)\]", str(error))
                hint = remedy(tier, int(number[1]) if number else None)
                reasons[tier] = f"{error}; {hint}" if hint else str(error)
                continue
            misses = [] if tier == "none" or self._without else self._test(link, tier)
            if not misses:
                self.isolation = "none" if self._without else tier
                self.landlock = int(link.ready["landlock"])
                return link
            link.close()
            reasons[tier] = "its self-test failed: " + ", ".join(misses)
        raise unavailable(reasons)

    def _start(self, tier: str) -> Link:
        layers = set(LAYERS_OF[tier]) - self._without
        if landlock.abi() == 0:
            layers.discard("landlock")
        self._remove_folder()  # each zygote removes its own when it ends
        if "namespaces" not in layers and self.limits.scratch:
            self._folder = tempfile.mkdtemp(prefix="trajgym-scratch-")
        settings = {
            "layers": sorted(layers),
            "packages": self.packages,
            "search": self._places.search,
            "read": self._places.read,
            "hide": self._places.hide,
            "uid": unassigned_uid() if os.geteuid() == 0 and tier != "none" else None,
            "folder": self._folder if "namespaces" not in layers else None,
        }
        try:
            return Link(settings, sys.executable)
        except BaseException:
            self._remove_folder()
            raise

    def _test(self, link: Link, tier: str) -> list[str]:
        try:
            with Session.open(
                link, tier, self.limits, seed=0, folder=self._scratch_folder(link, self.limits)
            ) as session:
                return selftest.misses(session, self.packages)
        except (IsolationUnavailable, OSError) as error:
            return [str(error)]

    def _scratch_folder(self, link: Link, limits: Limits) -> str | None:
        """Make the scratch folder of one session, where the kernel does not."""
        if "namespaces" in link.layers or not limits.scratch:
            return None
        if self._folder is None:
            raise ConfigError(
                "Without namespaces, scratch is asked for when the pool is made: Pool(limits=Limits(scratch=…))."
            )
        try:
            folder = tempfile.mkdtemp(dir=self._folder)
            os.chown(folder, os.stat(self._folder).st_uid, -1)
        except OSError as error:
            raise IsolationUnavailable(f"A session's scratch folder could not be made: {error}.") from error
        return folder

    def _remove_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            remove_folder(folder)
