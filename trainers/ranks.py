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
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from torch import Tensor
from torch import distributed as dist

from trajgym.errors import ConfigError, TrainingError
from trajgym.trainers.interrupt import StopRequested

__all__ = ["Ranks"]

T = TypeVar("T")

_BUCKET = 16 * 1024 * 1024  # numbers that are added up in one go


class Ranks:
    """The processes of a run; one of them, without a launcher.

    Args:
        cpu: Whether the models live on the CPU.
        deadline: Seconds to wait for the others at a meeting point before the run ends with an error.

    Raises:
        ConfigError: For a kind of launch that shards parameters, which this trainer does not do.
        TrainingError: When the processes do not find each other.
    """

    def __init__(self, *, cpu: bool, deadline: float) -> None:
        self.deadline = deadline
        self.watch: Callable[[str], AbstractContextManager[None]] = lambda part: nullcontext()  # measures "sync"
        wait = datetime.timedelta(seconds=deadline)
        for kind in ("FSDP", "DEEPSPEED"):
            if os.environ.get(f"ACCELERATE_USE_{kind}", "false").lower() == "true":
                raise ConfigError(
                    f"The launch asks for {kind}, but this trainer keeps whole weights on every rank. Launch it as "
                    "MULTI_GPU or MULTI_CPU; LoRA (use_lora) and gradient_checkpointing save memory."
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
        # Objects travel over gloo, also beside GPUs: it alone can say who is missing.
        self._group = dist.new_group(backend="gloo", timeout=wait) if self.count > 1 else None

    @property
    def main(self) -> bool:
        """Whether this is the rank that prints and writes."""
        return self.rank == 0

    def mine(self, items: Sequence[T]) -> list[T]:
        """Return this rank's share: every ``count``-th item."""
        return list(items[self.rank :: self.count])

    def together(self, work: Callable[[], T]) -> list[T]:
        """Do something on every rank and return what it gave on each, in the order of ranks.

        An error of one is an error of all, so that nobody waits for a rank that will not come.

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
        found = self._gather((state, result))
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
        found = self._gather(numbers)
        return {name: sum(other[name] for other in found) for name in numbers}

    def _add(self, gradients: list[Tensor]) -> None:
        if not gradients:
            return
        flat = torch.cat([g.reshape(-1) for g in gradients])
        self._reached(lambda: dist.all_reduce(flat))
        for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def _gather(self, mine: T) -> list[T]:
        """Return what every rank brings."""
        found: list[Any] = [None] * self.count
        wait = datetime.timedelta(seconds=self.deadline)
        self._reached(lambda: dist.monitored_barrier(self._group, timeout=wait, wait_all_ranks=True))
        self._reached(lambda: dist.all_gather_object(found, mine, group=self._group))
        return found

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
