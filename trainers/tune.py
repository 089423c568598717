"""Tuning: train and evaluate with one set of parameters after another, and say which is best, if that can be said.

Trials are judged by right answers on held-out tasks, never by their own training reward. Each trial carries the proof
of its parameters; those that fail are kept with their reason. A study that was stopped goes on with the same call.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajgym.errors import CheckpointError, StorageError, TrainingError
from trajgym.trainers.held_out import HeldOut
from trajgym.trainers.interrupt import Interrupted
from trajgym.trainers.runfolder import finished_checkpoints
from trajgym.trainers.tune_config import TuneConfig
from trajgym.trainers.tune_report import as_table, write_tune_report
from trajgym.trainers.tune_run import Pruned, held_out, run_seed
from trajgym.trainers.tune_search import Search, make_search
from trajgym.trainers.tune_study import StudyFolder, Trial, finished

__all__ = ["Tuned", "tune"]


@dataclass(frozen=True)
class Tuned:
    """A finished study.

    Args:
        folder: Everything it left behind.
        trials: All trials in their order.
    """

    folder: Path
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The trial with the most right answers; the earlier of equal ones."""
        return finished(self.trials)[0]


def tune(config: TuneConfig) -> Tuned:
    """Run all trials that are missing, and write the report.

    Args:
        config: All options.

    Raises:
        ConfigError, CheckpointError: Before anything is computed.
        StorageError: When the disk is full; finished trials are kept.
        TrainingError: When all trials have failed.
        Interrupted: After Ctrl-C; the same call goes on.
    """
    exam = held_out(config)
    name = config.name or f"tune-{Path(config.recipe).stem}-seed{config.seed}"
    folder = StudyFolder(config.output_dir.expanduser() / name, _settings(config), overwrite=config.overwrite)
    search = make_search(config, folder.path, folder.trials)
    try:
        for number in range(config.count):
            if number == len(folder.trials):
                folder.trials.append(Trial(number, search.propose(number)))
                folder.save()
            trial = folder.trials[number]
            if trial.status == "running":
                _run(config, trial, folder, search, exam)
                print(f"Trial {number + 1}/{config.count}: {_said(trial)}", flush=True)
    except Interrupted as stop:
        raise Interrupted(f"Stopped in trial {number + 1} of {config.count}. The same command goes on.") from stop
    if not finished(folder.trials):
        reasons = [trial.reason for trial in folder.trials]
        raise TrainingError(
            f"All {len(reasons)} trials have failed. The first: {reasons[0]} Every reason is in "
            f"{folder.path / 'study.json'}; change the space or the options, and begin again with --overwrite."
        )
    write_tune_report(folder.path, folder.trials, list(config.dimensions), seed=config.seed)
    print("\n" + as_table(folder.trials, seed=config.seed), flush=True)
    return Tuned(folder.path, tuple(folder.trials))


def _run(config: TuneConfig, trial: Trial, folder: StudyFolder, search: Search, exam: HeldOut) -> None:
    """Bring a trial to its end, whatever that is, and write it down."""
    began = time.monotonic()
    try:
        for seed in range(config.seed + len(trial.runs), config.seed + config.seeds):
            place = folder.run_folder(trial, seed)
            resume = bool(finished_checkpoints(place / "checkpoints"))  # a kill came after its first checkpoint
            options = config.trial(trial.parameters, seed=seed, folder=place, resume=resume, overwrite=not resume)
            watched = config.search == "optuna" and seed == config.seed

            def hopeless(step: int, value: float) -> bool:
                return search.hopeless(trial.number, step, value)

            run = run_seed(options, exam, trial.parameters, hopeless if watched else None)
            run.folder = str(place.relative_to(folder.path))
            trial.runs.append(run)
            folder.save()
        trial.status = "done"
    except Pruned as stop:
        trial.status, trial.reason = "pruned", f"Worse than the median of earlier trials {stop}."
    except StorageError:
        raise  # of the disk, not of the trial: the next one would fail just so
    except Exception as error:  # whatever a combination of options can break
        trial.status, trial.reason = "failed", f"{type(error).__name__}: {error}"
        if isinstance(error, CheckpointError):
            trial.reason += f" Its folder is {folder.run_folder(trial, config.seed).parent}."
    trial.seconds += time.monotonic() - began
    folder.save()
    search.tell(trial)


def _settings(config: TuneConfig) -> Mapping[str, Any]:
    """Return what decides the trials, the recipe's own values among it."""
    plain = config.plain()
    settings = {k: v for k, v in plain.items() if k not in ("output_dir", "name", "overwrite", "preset", "options")}
    base = config.base_options().plain()
    space = {name: repr(dimension) for name, dimension in config.dimensions.items()}
    return {**settings, "trials": config.count, "method": config.search, "space": space, "base": base}


def _said(trial: Trial) -> str:
    values = ", ".join(f"{name} {_short(value)}" for name, value in trial.parameters.items())
    if trial.status != "done":
        return f"{values}: {trial.status}. {trial.reason}"
    low, high = trial.interval
    return f"{values}: {trial.value:.1%} ({low:.1%} … {high:.1%})"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
