"""What a run tells of itself: lines on the screen, numbers for monitors, episodes in its folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from trajgym.evaluation.records import trajectory_row, write_jsonl
from trajgym.rollout import fault_summary
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.metrics import rollout_metrics
from trajgym.trainers.monitor import Monitor
from trajgym.trainers.player import Played
from trajgym.trainers.runfolder import RunFolder, storage_errors
from trajgym.trainers.telling import say
from trajgym.trainers.writers import make_writers
from trajgym.types import Trajectory

__all__ = ["Journal", "update_numbers"]


class Journal:
    """Tells what happens in a run. Of several processes one speaks, and the journals of the others are silent.

    Making it says what is about to happen.

    Args:
        folder: The run's.
        config: All options.
        speaks: Whether this process is the one.
        total: Number of updates of the whole run.
        first: Updates that were done before, when the run is resumed.
        epochs: Passes over the data in the whole run; at least 1.
        parameters: Of the model, for advice.
        lines: To say first; empty ones are left out.
        warning: To say after them, of what may go wrong; maybe empty.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: GRPOConfig,
        *,
        speaks: bool,
        total: int,
        first: int,
        epochs: int,
        parameters: int,
        lines: Sequence[str] = (),
        warning: str = "",
    ) -> None:
        self._folder, self._config = folder, config
        self._monitor: Monitor | None = None
        if not speaks:
            return
        for line in filter(None, lines):
            say(line)
        self._monitor = Monitor(
            folder,
            total=total,
            first=first,
            writers=make_writers(config.monitors, folder, first=first),
            epochs=epochs,
            options=config.plain() | {"model_parameters": parameters},
            print_every=config.log_every,
        )
        if warning:
            say(f"  ! {warning}")
        self._monitor.begin()

    def update(self, metrics: dict[str, Any], trajectories: Sequence[Trajectory], fruitless: Sequence[str]) -> None:
        """Report one finished update, and log some of its episodes.

        Args:
            metrics: Numbers by name; ``"update"`` counts from 1.
            trajectories: What was played.
            fruitless: Why there was nothing to learn from, for this update and the ones just before it.
        """
        if self._monitor is not None:
            self._monitor.update(metrics, faults=fault_summary(trajectories), skipped=fruitless)
            self._log(int(metrics["update"]), trajectories)

    def saved(self) -> None:
        """Tell of the newest checkpoint."""
        if self._monitor is not None:
            self._monitor.saved(self._folder.complete()[-1])

    def explain(self, error: BaseException) -> None:
        """Say what an error that ends the run means and what to change, where that is known."""
        if self._monitor is not None:
            self._monitor.explain(error)

    def close(self, *, finished: bool) -> None:
        """Let the monitors write what is left.

        Args:
            finished: Whether the run came to its end and its last update is saved.
        """
        if self._monitor is not None:
            self._monitor.close(self._folder.complete()[-1] if finished else None)

    def _log(self, update: int, trajectories: Sequence[Trajectory]) -> None:
        chosen = list(trajectories[: self._config.log_trajectories])
        if chosen and all(t.valid for t in chosen):  # a fault that was warned of can be looked up
            chosen[-1] = next((t for t in trajectories if not t.valid), chosen[-1])
        if chosen:
            path = self._folder.path / "trajectories" / f"update-{update:06d}.jsonl"
            with storage_errors(self._folder.path):
                write_jsonl(path, [trajectory_row(t, {"update": update}) for t in chosen])


def update_numbers(
    played: Played,
    learned: Mapping[str, float],
    weights: Mapping[str, float],
    *,
    gamma: float,
    start: float,
    rollout_seconds: float,
) -> dict[str, Any]:
    """Return what is logged of an update, but for what it cost.

    Args:
        played: The episodes.
        learned: What the optimiser steps gave.
        weights: Of reward terms, where they change over the run, as ``weight/NAME``.
        gamma: Discount per turn.
        start: When the update began, by ``time.perf_counter()``.
        rollout_seconds: What playing took of the update.
    """
    paid = weights.get("weight/accuracy", 1.0) > 0
    metrics: dict[str, Any] = rollout_metrics(played.trajectories, gamma, accuracy_paid=paid)
    metrics |= {**learned, **weights}
    if played.extra_faults:
        metrics["faults/ValueRollout"] = float(played.extra_faults)  # beside those in fault_share
    if played.lost_workers:
        metrics["faults/RolloutWorker"] = float(played.lost_workers)  # whose episodes were played again
    if played.extra_steps:
        metrics["env_steps"] = metrics.get("env_steps", 0.0) + played.extra_steps
    sampled = metrics.get("tokens_per_trajectory", 0.0) * len(played.trajectories)
    metrics["time/rollout"] = rollout_seconds
    if (beside := played.beside) is not None:
        metrics |= {"time/rollout": beside.seconds, "time/wait": beside.waited, "staleness": float(beside.staleness)}
    metrics["time/update"] = time.perf_counter() - start
    metrics["time/tokens_per_second"] = sampled / metrics["time/update"]
    return metrics
