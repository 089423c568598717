"""Playing the next update's episodes while this one is learned.

The episodes of update k + 1 are played with the weights that update k began with: by a copy of the policy, in a thread
of its own. So a run depends on its seed and not on who was faster, and what is learned from is one update old, never
more. A checkpoint holds the weights that play the next update's episodes; who resumes plays the same ones again.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from trajgym.errors import ConfigError, TrainingError
from trajgym.trainers.interrupt import Interrupt
from trajgym.trainers.player import Beside, Played, Player
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.stopwatch import Stopwatch

__all__ = ["Ahead", "check_alone", "twin"]

_LOOK_UP = 0.2  # seconds of waiting after which Ctrl-C is heard


def twin(model: Any) -> Any:
    """Return a copy of a policy that can sample while the policy is trained.

    It has trained weights of its own and shares the frozen ones: with adapters it costs no more than they do.
    """
    frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
    return copy.deepcopy(model, frozen).eval().requires_grad_(False)


def check_alone(ranks: Ranks) -> None:
    """Refuse several processes.

    Raises:
        ConfigError: When there are.
    """
    if ranks.count > 1:
        raise ConfigError(
            f"rollout_ahead: 1 needs one process, and this launch has {ranks.count}. They would exchange episodes and "
            "gradients at the same time, in an order that differs between them. Set it to 0."
        )


class Ahead:
    """A rollout that runs beside the learning, one update ahead of it.

    Args:
        model: What is trained.
        sampled: Its :func:`twin`, with which the episodes are played.
        player: Who plays with it.
        play: Plays the episodes of the update with that number, and asks the interrupt between turns.
        watch: Measures the parts of playing, and of nothing else.

    Updates count from 0, and weights are named by how many updates they have seen.

    Attributes:
        computed_tokens: Tokens that were computed for the episodes that :meth:`take` has returned.
    """

    def __init__(
        self,
        model: Any,
        sampled: Any,
        player: Player,
        play: Callable[[int, Interrupt], Played],
        watch: Stopwatch,
    ) -> None:
        self._model, self._sampled, self._player = model, sampled, player
        self._play, self._watch = play, watch
        self.computed_tokens = 0
        self._plays, self._seen = 0, 0  # the update that `sampled` plays, and how many its weights have seen
        self._before: dict[str, Any] = {}  # the same of the update under way, once the next is being played
        self._rollout: Future[Played] | None = None
        self._thread = threading.Thread()
        self._stop = Interrupt()
        self._copy_weights()

    def take(self, update: int, interrupt: Interrupt) -> Played:
        """Return an update's episodes, after waiting for them.

        Args:
            update: The one that was begun; the first one of a run, or after a checkpoint, is begun here.
            interrupt: Asked while waiting.

        Raises:
            StopRequested: When asked to stop.
            Exception: What playing has raised.
        """
        began = time.perf_counter()
        if self._rollout is None:
            self._start()
        assert self._rollout is not None
        while not wait([self._rollout], timeout=_LOOK_UP).done:
            interrupt.check()
        rollout, self._rollout = self._rollout, None
        self._thread.join()
        played = rollout.result()
        assert played.beside is not None
        self.computed_tokens += played.beside.computed_tokens
        waited = time.perf_counter() - began
        return replace(played, beside=replace(played.beside, waited=waited, staleness=update - self._seen))

    def begin(self, update: int, *, last: bool) -> None:
        """Begin to play an update's episodes, with the weights that the update before it begins with now.

        Args:
            update: The one after the update whose episodes were taken.
            last: Whether the run ends before it. Then nothing is played, but a checkpoint can still tell with which
                weights it would be.
        """
        self._before = self._weights()
        self._copy_weights()
        self._plays, self._seen = update, update - 1
        if not last:
            self._start()

    def stop(self) -> None:
        """End what is being played, and wait for that."""
        self._stop.requested = True
        if self._rollout is not None:
            wait([self._rollout])
            self._thread.join()
            self._rollout = None

    def state_dict(self, update: int) -> dict[str, Any]:
        """Return what is needed to play an update's episodes again.

        Args:
            update: The next one to be learned from, or again.
        """
        return self._weights() if update == self._plays else self._before

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._plays, self._seen = int(state["plays"]), int(state["seen"])
        self._assign(state["weights"])

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is KeyboardInterrupt:  # the second Ctrl-C, which waits for nobody; the first is an Interrupted
            self._stop.requested = True
        else:
            self.stop()

    def _start(self) -> None:
        self._rollout = Future()
        # A thread that the end of the process does not wait for: the second Ctrl-C stops at once.
        self._thread = threading.Thread(target=self._run, args=(self._rollout,), name="trajgym-rollout", daemon=True)
        self._thread.start()

    def _run(self, rollout: Future[Played]) -> None:
        try:
            self._watch.reset()
            began, before = time.perf_counter(), self._player.computed_tokens
            played = self._play(self._plays, self._stop)
            computed = self._player.computed_tokens - before
            beside = Beside(time.perf_counter() - began, self._watch.seconds(), computed)
        except BaseException as error:  # whoever takes the episodes is told, StopRequested too
            rollout.set_exception(error)
        else:
            rollout.set_result(replace(played, beside=beside))

    def _weights(self) -> dict[str, Any]:
        """Return the weights that play now, off the device, which has no room to spare."""
        names = self._names
        trained = {n: p.to("cpu", copy=True) for n, p in self._sampled.named_parameters() if n in names}
        return {"plays": self._plays, "seen": self._seen, "weights": trained}

    @property
    def _names(self) -> set[str]:
        return {name for name, p in self._model.named_parameters() if p.requires_grad}

    def _copy_weights(self) -> None:
        self._assign({name: p.detach() for name, p in self._model.named_parameters() if p.requires_grad})

    @torch.no_grad()
    def _assign(self, weights: Mapping[str, Tensor]) -> None:
        own = dict(self._sampled.named_parameters())
        if missing := self._names ^ weights.keys():
            raise TrainingError(f"The weights that play ahead are not those of this model: {sorted(missing)[:3]}.")
        for name, value in weights.items():
            own[name].copy_(value)
