"""Dealing an update's groups to rollout workers, and replacing workers that die.

A piece, some groups that are played as one batch, depends on the weights, the seeds and nothing else: neither on who
plays it, nor on what was played before, nor on how often it was begun. So it does not matter who gets it: whoever is
free takes the next one, and what a dead worker had begun is played again by another.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trajgym.errors import TrainingError
from trajgym.trainers.telling import say
from trajgym.trainers.worker import Piece, PlayedPiece
from trajgym.trainers.worker_answer import Answer
from trajgym.trainers.worker_weights import Packed

__all__ = ["Crew", "WorkerGone", "Workers", "WorkersLost", "cut"]

_LOOK_UP = 0.5  # seconds of waiting after which Ctrl-C is heard


class WorkerGone(Exception):
    """A worker will not answer any more; the text says what is known of the reason."""


class WorkersLost(TrainingError):
    """Workers die again and again, so that their work cannot be done."""


class Crew(Protocol):
    """Processes somewhere that each hold a :class:`trajgym.trainers.worker.RolloutWorker`.

    Tickets and workers are whatever the crew likes. What is sent to one worker is done in that order.
    """

    def hire(self) -> Any:
        """Start a worker and return it, without waiting for it."""

    def publish(self, packed: Packed) -> Any:
        """Put weights where every worker can read them; what is returned stands for them in :meth:`send`."""

    def send(self, worker: Any, method: str, *args: Any) -> Any:
        """Ask a worker to do something and return a ticket, without waiting."""

    def first(self, tickets: Sequence[Any], seconds: float) -> Any | None:
        """Return a ticket that is answered, or ``None`` if none is after so many seconds."""

    def answer(self, ticket: Any) -> Answer[Any]:
        """Return the answer to a ticket.

        Raises:
            WorkerGone: When there will be none.
        """

    def dismiss(self, worker: Any) -> None:
        """End a worker at once, dead or alive."""

    def close(self) -> None:
        """End all workers, and what this crew has started for them."""


@dataclass
class _Seat:
    """A worker's place; when one dies, another takes it."""

    worker: Any
    lost: int = 0  # workers in a row that died here
    piece: int | None = None  # what the worker is busy with
    ticket: Any = None
    since: float = 0.0


@dataclass
class Workers:
    """Some workers, and what they are told.

    Args:
        crew: Who they are.
        count: How many.
        limit: Workers that one place, or one piece, may cost in a row before the run ends.
        deadline: Seconds that a worker may take to get ready, and for a piece, before it counts as dead.
        clock: Tells the time in seconds.

    Attributes:
        replaced: Workers that were replaced so far.
    """

    crew: Crew
    count: int
    limit: int
    deadline: float
    clock: Callable[[], float] = time.monotonic
    replaced: int = 0
    _seats: list[_Seat] = field(default_factory=list)
    _weights: tuple[Any, float] | None = None  # what stands for them, and the progress they belong to

    def open(self, check: Callable[[], None] = lambda: None) -> None:
        """Start all workers and wait until they are ready.

        Args:
            check: Called again and again; may raise to stop.

        Raises:
            ConfigError: When a worker cannot make what the options say, or computes with other versions or tasks.
            Exception: Whatever else goes wrong while it gets ready.
            WorkersLost: When some do not get ready.
        """
        self._seats = [_Seat(self.crew.hire()) for _ in range(self.count)]
        for seat in self._seats:
            self._prepare(seat)
        while self._busy():
            done = self.crew.first([seat.ticket for seat in self._busy()], _LOOK_UP)
            check()
            for seat in self._busy():
                if seat.ticket is done:
                    self._welcome(seat)
                elif self.clock() - seat.since > self.deadline:
                    raise WorkersLost(
                        f"{len(self._busy())} of {self.count} rollout workers were not ready within "
                        f"{self.deadline:g} s. Are there as many free CPUs or GPUs as rollout_workers × worker_cpus or "
                        "worker_gpus say? Where loading the model takes that long, raise rank_deadline."
                    )

    def begin(self, packed: Packed, progress: float) -> None:
        """Send the weights of an update to everybody.

        Args:
            packed: From :func:`trajgym.trainers.worker_weights.pack_weights`.
            progress: How much of the run is done, 0 … 1.
        """
        self._weights = (self.crew.publish(packed), progress)
        for seat in self._seats:
            self.crew.send(seat.worker, "load", *self._weights)  # what goes wrong there is told with the next piece

    def play(self, pieces: Sequence[Piece], check: Callable[[], None] = lambda: None) -> list[PlayedPiece]:
        """Play pieces with the weights that came last, and return them in their order.

        Args:
            pieces: What to play.
            check: Called again and again; may raise to stop. Then what is under way is of no use any more.

        Raises:
            WorkersLost: When workers die again and again.
            Exception: What a worker has raised: the mistakes that :func:`trajgym.rollout.collect` names.
        """
        waiting = deque(range(len(pieces)))
        tries = [0] * len(pieces)
        done: dict[int, PlayedPiece] = {}
        while len(done) < len(pieces):
            for seat in self._seats:
                if seat.ticket is None and waiting:
                    seat.piece = waiting.popleft()
                    seat.ticket = self.crew.send(seat.worker, "play", pieces[seat.piece])
                    seat.since = self.clock()
            ready = self.crew.first([seat.ticket for seat in self._busy()], _LOOK_UP)
            check()
            for seat in self._busy():
                number = seat.piece
                if number is None:  # in the place of one that died, and not ready yet
                    if seat.ticket is ready:
                        self._welcome(seat)
                    elif self.clock() - seat.since > self.deadline:
                        self._replace(seat, f"it was not ready within {self.deadline:g} s", 0)
                    continue
                try:
                    if seat.ticket is ready:
                        done[number] = self.crew.answer(seat.ticket).open()
                        seat.ticket, seat.piece, seat.lost = None, None, 0
                    elif self.clock() - seat.since > self.deadline:
                        raise WorkerGone(f"it has not answered for {self.deadline:g} s; rank_deadline is the limit")
                except WorkerGone as gone:
                    tries[number] += 1
                    waiting.appendleft(number)
                    self._replace(seat, str(gone), tries[number])
        return [done[i] for i in range(len(pieces))]

    def close(self) -> None:
        """End all workers."""
        self._seats, self._weights = [], None
        self.crew.close()

    def _busy(self) -> list[_Seat]:
        return [seat for seat in self._seats if seat.ticket is not None]

    def _welcome(self, seat: _Seat) -> None:
        """Hear from a worker that is ready, or is not; who is gets the weights, where there are some."""
        try:
            self.crew.answer(seat.ticket).open()
        except WorkerGone as gone:
            self._replace(seat, str(gone), 0)
            return
        seat.ticket = None
        if self._weights is not None:
            self.crew.send(seat.worker, "load", *self._weights)

    def _replace(self, seat: _Seat, reason: str, tries: int) -> None:
        """Put a new worker in the place of a dead one; it gets nothing to play until it is ready."""
        seat.lost += 1
        self.replaced += 1
        place = f"Rollout worker {self._seats.index(seat) + 1} of {self.count}"
        gone = f"{place} is gone: {reason.rstrip('.')}."
        if max(seat.lost, tries) >= self.limit:
            what = "with the same episodes" if tries >= self.limit else "here"
            raise WorkersLost(
                f"{gone} {max(seat.lost, tries)} in a row died {what}, so fault_limit ends the run. Look at the "
                "memory of the machines and at what tools do; then go on with --resume."
            )
        say(f"  ! {gone} A new one takes its place; what it had begun is played again.")
        self.crew.dismiss(seat.worker)
        seat.worker, seat.piece = self.crew.hire(), None
        self._prepare(seat)

    def _prepare(self, seat: _Seat) -> None:
        seat.ticket, seat.since = self.crew.send(seat.worker, "prepare"), self.clock()


def cut(groups: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Cut groups into pieces of ``size``, the last one maybe smaller.

    >>> cut([1, 2, 3, 4, 5], 2)
    [[1, 2], [3, 4], [5]]
    """
    return [groups[i : i + size] for i in range(0, len(groups), size)]
