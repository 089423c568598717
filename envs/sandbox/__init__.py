"""An interpreter for untrusted Python: stateful like a notebook, fast, and isolated by the Linux kernel.

A :class:`Pool` keeps one warm process; every :class:`Session` is a fork of it in a jail of its own. A call gives a
typed :class:`Result`, whatever the code does.

>>> with Pool() as pool, pool.open(seed=0) as session:  # doctest: +SKIP
...     session.call("x = 6")
...     session.call("x * 7").output
'42'

Above the wall, in this process: ``pool``, ``session``, ``call``, ``watch``, ``link``, ``results``, ``limits``,
``places``, ``tiers``, ``selftest``. Below it, importing only the standard library and each other: ``zygote``,
``preload``, ``stored``, ``namespaces``, ``jail``, ``seccomp``, ``worker``, ``cell``, ``quick``, ``source``,
``traces``, ``threads``. On both sides: ``text``, ``reply``, ``scratch``, ``machine`` with its ``syscalls``,
``landlock``. docs/security.md says what each layer stops.
"""

from __future__ import annotations

from trajgym.envs.sandbox.limits import Limits
from trajgym.envs.sandbox.pool import Pool
from trajgym.envs.sandbox.results import IsolationUnavailable, Kind, PoolClosed, Result
from trajgym.envs.sandbox.session import Session

__all__ = ["IsolationUnavailable", "Kind", "Limits", "Pool", "PoolClosed", "Result", "Session"]
