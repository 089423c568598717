"""Checkpoints of a run: who makes the folder, which weights may be saved, and what is kept where an error ends it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from trajgym.errors import StorageError, TrainingError
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.learner import Learner
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.runfolder import RunFolder
from trajgym.trainers.sharding import Shards

__all__ = ["check_weights", "open_folder", "rescue"]


def open_folder(config: GRPOConfig, name: str, ranks: Ranks) -> RunFolder:
    """Let the main rank make the run folder before the others look at it."""
    made: list[RunFolder] = []
    ranks.together(lambda: made.append(RunFolder(config, name)) if ranks.main else None)
    return made[0] if made else RunFolder(config, name, writes=False)


def check_weights(model: Any, update: int, ranks: Ranks, shards: Shards) -> None:
    """Look at all weights before they are saved; every rank calls this.

    Args:
        model: The policy.
        update: Finished updates.
        ranks: Who shares the work.
        shards: Whether they share the parameters too; each rank looks at its own then.

    Raises:
        TrainingError: When some are not finite.
    """

    def check() -> None:
        if not _finite(model):
            raise TrainingError(
                f"After update {update} some weights are not finite numbers, so they are not saved. Lower "
                "learning_rate and go on from the last checkpoint with --resume."
            )

    if shards.active:
        ranks.together(check)
    else:
        check()


def rescue(learner: Learner, save: Callable[[], None], ranks: Ranks, shards: Shards) -> None:
    """Save the last finished update before an error ends the run, where its weights are whole.

    Args:
        learner: Knows whether they are.
        save: Writes the checkpoint.
        ranks: Who shares the work.
        shards: Whether they share the parameters too.
    """
    if not learner.clean or (shards.active and not ranks.all_stop):
        return
    if all(ranks.together(lambda: _finite(learner.model))) if shards.active else _finite(learner.model):
        with contextlib.suppress(StorageError):  # the error under way is the one to show
            save()


def _finite(model: Any) -> bool:
    """Return whether all weights are finite; of divided ones, this rank's."""
    return all(bool(torch.isfinite(p).all()) for p in model.parameters())
