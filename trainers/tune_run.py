"""One run of a trial: train, prove the parameters, evaluate on the held-out tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.evaluation.evaluate import succeeded
from trajgym.evaluation.plots import read_metrics
from trajgym.evaluation.store import folder_fingerprint
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.grpo import GRPOTrainer
from trajgym.trainers.held_out import HeldOut
from trajgym.trainers.interrupt import Interrupt
from trajgym.trainers.player import Played
from trajgym.trainers.ppo import PPOTrainer
from trajgym.trainers.sft import train_sft
from trajgym.trainers.sft_config import SFTConfig
from trajgym.trainers.trained import find_source
from trajgym.trainers.tune_config import TuneConfig
from trajgym.trainers.tune_study import SeedRun, prove

if TYPE_CHECKING:
    from trajgym.trainers.sft_watch import HeldOutLoss

__all__ = ["Hopeless", "Pruned", "held_out", "run_seed"]

Hopeless = Callable[[int, float], bool]
"""Told of finished updates and the curve there; says whether to stop."""

_CURVES = ("success", "return", "reward")  # the first one that a run measures


class Pruned(BaseException):
    """A run was stopped since its curve is hopeless; not an error, and no update is to be rescued."""


def held_out(config: TuneConfig) -> HeldOut:
    """Return the tasks that all trials are judged by; they do not depend on what is tuned.

    Raises:
        ConfigError: When the environment does not have such tasks, or its reward does not pay for right answers.
    """
    base = config.base_options()
    split = {"split": config.eval_split} if config.eval_split else {}
    arguments = {**base.env_arguments, **split, **config.eval_env_kwargs}
    return HeldOut(base.env, arguments, limit=config.eval_tasks, seed=config.seed, turn_tokens=config.eval_turn_tokens)


def run_seed(
    options: GRPOConfig | SFTConfig, exam: HeldOut, parameters: Mapping[str, Any], hopeless: Hopeless | None
) -> SeedRun:
    """Train and evaluate once.

    Args:
        options: Of the run; ``name`` and ``output_dir`` say where it goes.
        exam: What it is judged by.
        parameters: The trial's, to be proved.
        hopeless: Asked after each update, or after each look at the held-out rows of an SFT run.

    Raises:
        TrajgymError: Whatever the run or the evaluation raises.
        Pruned: When ``hopeless`` said so.
    """
    if isinstance(options, SFTConfig):
        folder = train_sft(options, on_held_out=None if hopeless is None else _watching(hopeless))
    else:
        trainer = (_WatchedPPO if options.algorithm == "ppo" else _Watched)(options)
        trainer.hopeless = hopeless
        folder = trainer.run()
    proof = prove(folder, parameters)
    found = exam.play(folder, options)
    right = {t.task.id: t.valid and succeeded(t) for t in found.trajectories}
    training = _curve(read_metrics(folder / "metrics.jsonl"))
    return SeedRun(options.seed, "", folder_fingerprint(_weights(folder)), proof, right, found.faults, training)


def _watching(hopeless: Hopeless) -> HeldOutLoss:
    """Return what stops an SFT run whose loss on the held-out rows is hopeless; at its end there is nothing to save."""

    def look(step: int, total: int, loss: float) -> None:
        if step < total and hopeless(step, -loss):
            raise Pruned(f"after {step} of {total} steps, at a held-out loss of {loss:.3g}")

    return look


class _Watched(GRPOTrainer):
    """Lets somebody look at the curve between two updates."""

    hopeless: Hopeless | None = None

    def gather(self, interrupt: Interrupt) -> Played:
        """Play the update's episodes, unless the run is to be stopped before it."""
        if self.hopeless is not None and self.update:
            value = _curve(self.folder.history())
            if value is not None and self.hopeless(self.update, value):
                raise Pruned(f"after {self.update} of {self.schedule.total} updates, at {value:.3g}")
        return super().gather(interrupt)


class _WatchedPPO(_Watched, PPOTrainer):
    """The same for PPO."""


def _curve(history: list[dict[str, Any]], last: int = 5) -> float | None:
    """Return the mean of the curve over its last updates; one alone says little."""
    for name in _CURVES:
        values = [float(row[name]) for row in history if name in row][-last:]
        if values:
            return sum(values) / len(values)
    return None


def _weights(folder: Path) -> Path:
    source = find_source(folder)
    return source.adapter or Path(source.base)
