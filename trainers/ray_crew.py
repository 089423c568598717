"""Rollout workers as actors of Ray, on a cluster or on this machine alone.

Ray starts the processes, says when one is gone and carries what is sent: weights lie in its object store, once on each
machine however many workers read them there. Whom to give what, and what to do about a death, is decided in
:mod:`trajgym.trainers.workers`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from trajgym.errors import ConfigError, TrainingError
from trajgym.trainers.telling import say
from trajgym.trainers.worker import RolloutWorker
from trajgym.trainers.worker_answer import Answer
from trajgym.trainers.worker_weights import Packed
from trajgym.trainers.workers import WorkerGone

__all__ = ["RayCrew", "require_ray"]

_GRACE = 5.0  # seconds in which workers may close their environments


def require_ray() -> None:
    """Raise unless Ray is installed.

    Raises:
        ConfigError: Names what to install.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "rollout_workers needs Ray, which is not installed: pip install 'trajgym[ray]'. Or set rollout_workers to "
            "0, which plays in this process."
        )


class RayCrew:
    """Actors of Ray; see :class:`trajgym.trainers.workers.Crew`.

    A process that is connected to Ray already stays so. Otherwise it joins the cluster at ``address``, or starts Ray on
    this machine, with as many CPUs as the workers ask for; both end with :meth:`close`, or with the process.

    Args:
        plan: What a worker is made from: of :func:`trajgym.trainers.worker.pack_plan`.
        count: How many workers there are to be.
        cpus: CPUs of each.
        gpus: GPUs of each, maybe a part of one.
        address: Of a cluster: ``"auto"`` for the one that this machine belongs to, or ``"host:port"``.
        worker: The class of the actors.

    Raises:
        ConfigError: When Ray is not installed, or there is no such cluster.
        TrainingError: When Ray cannot be started on this machine.
    """

    def __init__(
        self,
        plan: Any,
        *,
        count: int,
        cpus: int,
        gpus: float,
        address: str | None,
        worker: type = RolloutWorker,
    ) -> None:
        require_ray()
        import ray

        self._ray = ray
        self._own = not ray.is_initialized()
        self._workers: list[Any] = []
        if self._own:
            with _own_signals():
                _connect(address, cpus=count * cpus)
        elif address is not None:
            raise ConfigError(
                f"ray_address is {address!r}, but this process is connected to Ray already. Leave ray_address unset to "
                "use that connection, or call ray.shutdown() first."
            )
        there = ray.cluster_resources()
        wanted = {"CPU": count * cpus, "GPU": count * gpus}
        for kind, number in wanted.items():
            if there.get(kind, 0) < number:
                if self._own and address is None:  # nobody can add any
                    ray.shutdown()
                    raise ConfigError(
                        f"{count} rollout workers ask for {number:g} {kind}s, and this machine has "
                        f"{there.get(kind, 0):g}. Lower rollout_workers or worker_gpus, or give a ray_address."
                    )
                found = f"{there.get(kind, 0):g} in the cluster"
                say(f"  ! {count} rollout workers ask for {number:g} {kind}s, with {found}: waiting for more.")
        self._plan = ray.put(plan)
        # Ray's own way to start actors anew would lose their weights.
        self._kind = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0)(worker)

    def hire(self) -> Any:
        """Start a worker and return it, without waiting for it."""
        self._workers.append(self._kind.remote(self._plan))
        return self._workers[-1]

    def publish(self, packed: Packed) -> Any:
        """Put weights into the object store; readers on one machine share one copy."""
        return self._ray.put(dict(packed))

    def send(self, worker: Any, method: str, *args: Any) -> Any:
        """Ask a worker to do something and return a ticket, without waiting."""
        return getattr(worker, method).remote(*args)

    def first(self, tickets: Sequence[Any], seconds: float) -> Any | None:
        """Return a ticket that is answered, or ``None`` if none is after so many seconds."""
        ready, _ = self._ray.wait(list(tickets), num_returns=1, timeout=seconds)
        return ready[0] if ready else None

    def answer(self, ticket: Any) -> Answer[Any]:
        """Return the answer to a ticket.

        Raises:
            WorkerGone: When there will be none.
            TrainingError: When Ray could not call the worker's method at all.
        """
        errors = self._ray.exceptions
        try:
            found: Answer[Any] = self._ray.get(ticket)
        except errors.RayTaskError as error:
            raise TrainingError(f"Ray could not call a rollout worker: {_first_line(error)}") from error
        except errors.RayError as error:
            raise WorkerGone(_first_line(error)) from error
        return found

    def dismiss(self, worker: Any) -> None:
        """End a worker at once, dead or alive."""
        self._workers.remove(worker)
        with contextlib.suppress(Exception):  # it may be dead, or Ray
            self._ray.kill(worker, no_restart=True)

    def close(self) -> None:
        """End all workers, and Ray where it was started or joined for them."""
        if not self._ray.is_initialized():
            return
        with contextlib.suppress(Exception):
            tickets = [worker.close.remote() for worker in self._workers]
            if tickets:
                self._ray.wait(tickets, num_returns=len(tickets), timeout=_GRACE)
        for worker in list(self._workers):
            self.dismiss(worker)
        self._plan = None
        if self._own:
            self._ray.shutdown()


def _connect(address: str | None, *, cpus: int) -> None:
    import ray

    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            f"ray_address {address!r} goes through a proxy, which all weights would have to pass. Start the run on a "
            "machine of the cluster, with ray_address auto."
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is to be told of this run
    quiet = {"logging_level": "WARNING", "log_to_driver": True}
    try:
        if address is None:
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except Exception as error:  # Ray has no type of its own for this
        ray.shutdown()
        if address is None:
            raise TrainingError(
                f"Ray could not be started on this machine: {_first_line(error)} Is it too busy, or short of memory? "
                "Ray's logs are in /tmp/ray/session_latest/logs. Go on with --resume."
            ) from error
        raise ConfigError(
            f"ray_address {address!r}: {_first_line(error)} Give 'auto' on a machine where `ray start` has run, "
            "'host:port' of a cluster's head, or nothing to start Ray on this machine."
        ) from error


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep SIGTERM as it was: Ray would end the process at once, and the run wants to save something first."""
    here = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if here:
            signal.signal(signal.SIGTERM, before)


def _first_line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if text.endswith(".") else f"{text}."
