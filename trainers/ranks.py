"""Several processes that train one policy.

Each rank plays its share of the groups. Then all trajectories are exchanged, so that from credit to batch every rank
computes the same, whatever the others have lost; micro-batches are dealt to the ranks again, and gradients are added.
What one process would have computed is what all of them compute: nothing is averaged over ranks, since Z already
counts everybody.
"""

from __future__ import annotations

import datetime
import itertools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from torch import Tensor
from torch import distributed as dist

from trajgym.errors import ConfigError, TrainingError, TrajgymError
from trajgym.trainers.interrupt import StopRequested

__all__ = ["Ranks"]

T = TypeVar("T")

_BUCKET = 16 * 1024 * 1024  # numbers that are added up in one go
_GRACE = 10.0  # seconds to tell of an error before ending; those who wait in a joint pass cannot listen


class Ranks:
    """The processes of a run; one of them, without a launcher.

    Args:
        cpu: Whether the models live on the CPU.
        deadline: Seconds to wait for the others at a meeting point before the run ends with an error.

    Raises:
        ConfigError: For a kind of launch that this trainer does not do.
        TrainingError: When the processes do not find each other.
    """

    def __init__(self, *, cpu: bool, deadline: float) -> None:
        self.deadline = deadline
        self.watch: Callable[[str], AbstractContextManager[None]] = lambda part: nullcontext()  # measures "sync"
        wait = datetime.timedelta(seconds=deadline)
        for kind in ("DEEPSPEED", "MEGATRON_LM"):
            if os.environ.get(f"ACCELERATE_USE_{kind}", "false").lower() == "true":
                raise ConfigError(
                    f"The launch asks for {kind}, which this trainer does not drive. FSDP divides parameters, "
                    "gradients and optimiser states too: `trajgym plan --plan fsdp` writes a launch file for it."
                )
        try:
            state = PartialState(cpu=cpu, timeout=wait)
        except (RuntimeError, ValueError) as error:
            raise TrainingError(
                f"The {os.environ.get('WORLD_SIZE', '?')} processes of this launch do not find each other: {error}"
            ) from error
        self.count: int = state.num_processes
        self.rank: int = state.process_index
        self.device: torch.device = state.device
        self.all_stop = False  # every rank has raised the error under way, so they can still work together
        # Objects travel over gloo, also beside GPUs: it alone can say who is missing.
        self._group = dist.new_group(backend="gloo", timeout=wait) if self.count > 1 else None

    @property
    def main(self) -> bool:
        """Whether this is the rank that prints and writes."""
        return self.rank == 0

    def mine(self, items: Sequence[T]) -> list[T]:
        """Return this rank's share: every ``count``-th item."""
        return list(items[self.rank :: self.count])

    def together(self, work: Callable[[], T], *, joint: bool = False) -> list[T]:
        """Do something on every rank and return what it gave on each, in the order of ranks.

        An error of one is an error of all, so that nobody waits for a rank that will not come.

        Args:
            work: What to do.
            joint: Whether ranks need one another within ``work``, as in passes over divided parameters. Where one fails
                there, the others learn of it only when it is gone, so it does not wait for them.

        Raises:
            StopRequested: When a rank was asked to stop.
            TrainingError: When another rank failed, or did not come within the deadline; names it.
            Exception: What ``work`` raised here.
        """
        if self.count == 1:
            return [work()]
        result: Any = None
        error: Exception | None = None
        state = "done"
        try:
            result = work()
        except StopRequested:
            state = "stop"
        except Exception as caught:
            error, state = caught, f"{type(caught).__name__}: {caught}"
        left = joint and error is not None and not isinstance(error, TrajgymError)
        try:
            found = self._gather((state, result), _GRACE if left else self.deadline)
        except TrainingError as lost:
            raise TrainingError(f"{lost} {self._last_words(state)}") from (error or lost.__cause__)
        self.all_stop = not left and any(other != "done" for other, _ in found)
        if error is not None:
            raise error
        for rank, (other, _) in enumerate(found):
            if other not in ("done", "stop"):
                raise TrainingError(f"Rank {rank} of {self.count} failed, so all stop. There: {other}")
        if any(other == "stop" for other, _ in found):
            raise StopRequested
        return [part for _, part in found]

    def merged(self, parts: Sequence[Sequence[T]]) -> list[T]:
        """Undo :meth:`mine`: put the shares of all ranks back into the order they were dealt from."""
        missing = object()
        rounds: Iterable[Any] = itertools.zip_longest(*parts, fillvalue=missing)
        return [item for dealt in rounds for item in dealt if item is not missing]

    def add_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace each gradient by the sum over all ranks; a rank without one counts as zero."""
        if self.count == 1:
            return
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        for kind in sorted({p.dtype for p in parameters}, key=str):
            bucket: list[Tensor] = []
            for p in [p for p in parameters if p.dtype == kind]:
                if bucket and sum(g.numel() for g in bucket) + p.numel() > _BUCKET:
                    self._add(bucket)
                    bucket = []
                assert p.grad is not None
                bucket.append(p.grad)
            self._add(bucket)

    def total(self, numbers: dict[str, float]) -> dict[str, float]:
        """Return the sums over all ranks of what each has counted."""
        if self.count == 1:
            return numbers
        found = self._gather(numbers, self.deadline)
        return {name: sum(other[name] for other in found) for name in numbers}

    def _add(self, gradients: list[Tensor]) -> None:
        if not gradients:
            return
        flat = torch.cat([g.reshape(-1) for g in gradients])
        self._reached(lambda: dist.all_reduce(flat))
        for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def _gather(self, mine: T, seconds: float) -> list[T]:
        """Return what every rank brings within that time."""
        found: list[Any] = [None] * self.count
        wait = datetime.timedelta(seconds=min(seconds, self.deadline))
        self._reached(lambda: dist.monitored_barrier(self._group, timeout=wait, wait_all_ranks=True))
        self._reached(lambda: dist.all_gather_object(found, mine, group=self._group))
        return found

    def _last_words(self, mine: str) -> str:
        """Say why this rank stops, and return what the others say, over the launch's store: connections may be cut."""
        said = [f"Here: {mine.splitlines()[0]}."] if mine != "done" else []
        try:
            store = dist.distributed_c10d._get_default_store()
            store.set(f"trajgym/end/{self.rank}", mine.splitlines()[0])
            keys = {rank: f"trajgym/end/{rank}" for rank in range(self.count) if rank != self.rank}
            end = time.monotonic() + _GRACE
            while time.monotonic() < end and not store.check(list(keys.values())):
                time.sleep(0.1)
            for rank, key in keys.items():
                words = store.get(key).decode() if store.check([key]) else ""
                if words != "done":
                    said.append(f"Rank {rank} says: {words}." if words else f"Rank {rank} says nothing.")
        except RuntimeError:
            said.append("The store of this launch is gone, which rank 0 keeps unless the launcher does.")
        return " ".join(said)

    def _reached(self, meet: Callable[[], object]) -> None:
        try:
            with self.watch("sync"):
                meet()
        except RuntimeError as error:
            raise TrainingError(
                f"Rank {self.rank} of {self.count} waited for the others in vain ({self.deadline:g} s at most): "
                f"{str(error).splitlines()[0]} See to the output of the ranks named there; the checkpoints are intact. "
                "Where episodes take that long, raise rank_deadline."
            ) from error
