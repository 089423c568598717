"""One thread that owns the model and writes the answers of many clients together.

Requests join the batch between two tokens and leave it when their answer ends, so nobody waits for anybody else's
answer. A finished sequence keeps its place in the cache until somebody needs the slot: the next request of the same
dialogue begins with the very same tokens, and only what is new goes through the model.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trajgym.errors import EnvironmentFault, TrajgymError
from trajgym.policies.base import SampledTurn
from trajgym.serving.sampler import Sampling, ServedSampler, Token

__all__ = ["Busy", "Deliver", "Engine", "EngineFault", "Finished", "Order", "Ticket"]


class Busy(EnvironmentFault):
    """All slots are taken and the queue is full, or the engine is closing.

    Args:
        message: What was refused.
        retry_after: Seconds after which it is worth another try.
    """

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineFault(EnvironmentFault):
    """The model failed in the middle of an answer, or the engine was closed."""


@dataclass(frozen=True)
class Order:
    """One sequence to write.

    Args:
        ids: Prompt token ids.
        max_new_tokens: Most new ones.
        how: How to draw them.
    """

    ids: tuple[int, ...]
    max_new_tokens: int
    how: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class Finished:
    """The end of an answer.

    Args:
        ids: The sampled token ids; the stop token is the last one if ``finish == "stop"``.
        logprobs: log-probability (nats) of each under the model at temperature 1.
        finish: ``"stop"`` or ``"length"``.
        reused: Prompt tokens that did not go through the model again.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    reused: int = 0


Deliver = Callable[["Token | Finished | TrajgymError"], None]


@dataclass(eq=False)
class Ticket:
    """A sequence on its way; hand it to :meth:`Engine.cancel`.

    Args:
        order: What was asked for.
        deliver: Is given, in the engine's thread, each token of a watched sequence, and at last how it ended.
        stream: In the sampler, once it has a slot.
        reused: Prompt tokens found in the cache.
        placed: Whether it has a slot.
        over: Whether it has ended or was given up.
    """

    order: Order
    deliver: Deliver
    stream: int | None = None
    reused: int = 0
    placed: bool = False
    over: bool = False


@dataclass
class Load:
    """How busy an engine is, and what it has done since it was made."""

    running: int = 0
    waiting: int = 0
    sequences: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    sampled_tokens: int = 0
    faults: int = 0
    seconds_each: float = field(default=1.0)  # of a sequence, a running mean


class Engine:
    """Runs a sampler in a thread of its own.

    Args:
        sampler: Used by nobody else from now on.
        queue: Most sequences that wait for a slot.

    Attributes:
        load: How busy it is.
    """

    def __init__(self, sampler: ServedSampler, *, queue: int) -> None:
        self.load = Load()
        self._sampler, self._queue = sampler, queue
        self._lock = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._dropped: list[Ticket] = []
        self._placed = 0  # sequences that have a slot, or are about to
        self._running: dict[int, tuple[Ticket, float]] = {}  # by stream, with the time it began
        self._idle: OrderedDict[int, tuple[int, ...]] = OrderedDict()  # finished streams with their tokens
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="trajgym-engine", daemon=True)
        self._thread.start()

    @property
    def slots(self) -> int:
        """How many sequences are written at the same time."""
        return self._sampler.slots

    @property
    def max_length(self) -> int:
        """Most tokens of a sequence, prompt and answer together."""
        return self._sampler.max_length

    @property
    def alive(self) -> bool:
        """Whether the thread is at work."""
        return self._thread.is_alive() and not self._closing

    def submit(self, orders: Sequence[Order], deliver: Sequence[Deliver]) -> list[Ticket]:
        """Ask for sequences, all of them or none.

        Raises:
            Busy: When the queue has no room for them.
        """
        tickets = [Ticket(order, to) for order, to in zip(orders, deliver, strict=True)]
        with self._lock:
            free = self.slots - self._placed + self._queue - len(self._waiting)
            if self._closing or len(tickets) > free:
                what = "The server is stopping." if self._closing else f"{len(self._waiting)} requests wait already."
                raise Busy(f"{what} Try again later.", self._retry_after())
            self._waiting.extend(tickets)
            self._count()
            self._lock.notify()
        return tickets

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Give sequences up: their slots are free before the next token. Those that are over are left alone."""
        with self._lock:
            self._dropped += [ticket for ticket in tickets if not ticket.over]
            self._lock.notify()

    def close(self, timeout: float = 10.0) -> None:
        """Stop the thread; whoever still waits gets an :class:`EngineFault`. May be called again."""
        with self._lock:
            self._closing = True
            self._lock.notify()
        self._thread.join(timeout)

    def _work(self) -> None:
        while self._prepare():
            try:
                turns = self._sampler.step()
                tokens = self._sampler.fresh()
            except Exception as error:  # of any kind, e.g. no memory on the device: the next requests may fit
                self._fail_all(error)
                continue
            for token in tokens:
                self._deliver(self._running[token.stream][0], token)
            for turn in turns:
                self._finish(turn)
        self._fail_all(EngineFault("The server was stopped."))

    def _prepare(self) -> bool:
        """Wait until there is work, drop what was given up and fill the free slots; false when it is time to stop."""
        with self._lock:
            self._count()
            while not (self._waiting or self._dropped or self._running or self._closing):
                self._lock.wait()
            dropped, self._dropped = self._dropped, []
            for ticket in dropped:
                self._drop(ticket)
            started: list[Ticket] = []
            while self._waiting and self._placed < self.slots:
                started.append(self._waiting.popleft())
                started[-1].placed = True
                self._placed += 1
            closing = self._closing
        for ticket in started:
            self._start(ticket)
        with self._lock:
            self._count()
        return not closing

    def _drop(self, ticket: Ticket) -> None:
        self._leave(ticket)
        if ticket.stream is not None and self._running.pop(ticket.stream, None) is not None:
            self._sampler.close(ticket.stream)
        elif ticket in self._waiting:
            self._waiting.remove(ticket)

    def _start(self, ticket: Ticket) -> None:
        ids, how = ticket.order.ids, ticket.order.how
        stream = self._take_over(ids)
        try:
            if stream is None:
                if len(self._running) + len(self._idle) == self.slots:
                    self._sampler.close(self._idle.popitem(last=False)[0])
                stream = self._sampler.open(ids, seed=how.seed)
            else:
                ticket.reused = len(self._idle.pop(stream)) - 1
                self._sampler.extend(stream, ids[ticket.reused + 1 :])
            self._sampler.answer(stream, how, max_new_tokens=ticket.order.max_new_tokens)
        except Exception as error:  # of any kind, or the thread would end and with it every later answer
            if stream is not None:
                self._idle.pop(stream, None)
                with contextlib.suppress(Exception):
                    self._sampler.close(stream)
            self.load.faults += not isinstance(error, TrajgymError)
            self._over(ticket, error if isinstance(error, TrajgymError) else _fault(error))
            return
        ticket.stream = stream
        self._running[stream] = (ticket, time.monotonic())
        self.load.prompt_tokens += len(ids)
        self.load.reused_tokens += ticket.reused

    def _take_over(self, ids: tuple[int, ...]) -> int | None:
        """Return the finished stream whose tokens are the longest true beginning of ``ids``."""
        fits = [(len(held), s) for s, held in self._idle.items() if len(held) < len(ids) and held == ids[: len(held)]]
        return max(fits)[1] if fits else None

    def _finish(self, turn: SampledTurn) -> None:
        ticket, began = self._running.pop(turn.stream)
        self._idle[turn.stream] = (*ticket.order.ids, *turn.ids)
        self.load.sampled_tokens += len(turn.ids)
        self.load.seconds_each += 0.1 * (time.monotonic() - began - self.load.seconds_each)
        if not all(map(math.isfinite, turn.logprobs)):
            self._sampler.close(turn.stream)
            del self._idle[turn.stream]
            self.load.faults += 1
            self._over(ticket, EngineFault("The model's probabilities for this prompt are not numbers."))
            return
        self._over(ticket, Finished(turn.ids, turn.logprobs, turn.finish, ticket.reused))

    def _fail_all(self, error: Exception) -> None:
        with self._lock:
            lost = [ticket for ticket, _ in self._running.values()]
            if self._closing:
                lost += self._waiting
                self._waiting.clear()
            self._running.clear()
            self._count()
        self._idle.clear()
        self.load.faults += len(lost)
        with contextlib.suppress(Exception):  # where the device is gone, every later request fails by itself
            self._sampler.reset()
        fault = error if isinstance(error, EngineFault) else _fault(error)
        for ticket in lost:
            self._over(ticket, fault)

    def _over(self, ticket: Ticket, how: Finished | TrajgymError) -> None:
        with self._lock:
            self._leave(ticket)
        self.load.sequences += 1
        self._deliver(ticket, how)

    def _leave(self, ticket: Ticket) -> None:
        ticket.over = True
        self._placed -= ticket.placed
        ticket.placed = False

    @staticmethod
    def _deliver(ticket: Ticket, what: Token | Finished | TrajgymError) -> None:
        # Whoever is to be told may be gone with its event loop.
        with contextlib.suppress(RuntimeError):
            ticket.deliver(what)

    def _count(self) -> None:
        self.load.running, self.load.waiting = self._placed, len(self._waiting)

    def _retry_after(self) -> int:
        rounds = (len(self._waiting) + 1) / self.slots
        return max(1, min(60, math.ceil(rounds * self.load.seconds_each)))


def _fault(error: Exception) -> EngineFault:
    return EngineFault(f"{type(error).__name__}: {error}")
