"""What a tuning run remembers: each trial with its parameters, their proof, what came of it, or why it failed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from trajgym.errors import CheckpointError, ConfigError, TrainingError
from trajgym.evaluation.measures import share_interval, wilson
from trajgym.trainers.folder_lock import lock_folder
from trajgym.trainers.pipeline_state import differences, write_text
from trajgym.trainers.runfolder import storage_errors

__all__ = ["SeedRun", "StudyFolder", "Trial", "finished", "prove"]

_MARKER = ".trajgym-study"
_MISSING = object()


@dataclass
class SeedRun:
    """One training run of a trial.

    Args:
        seed: Of the run.
        folder: Of the run, within the study's.
        weights: Fingerprint of the trained weights; trials that differ in effect differ here.
        proof: The trial's parameters as the run itself has written them down.
        right: Whether each held-out task was solved, by its id.
        faults: Episodes of the evaluation that our machinery lost; they count as wrong.
        training: Last value of what the training curve shows; never what trials are judged by.
    """

    seed: int
    folder: str
    weights: str
    proof: dict[str, Any]
    right: dict[str, bool]
    faults: int = 0
    training: float | None = None


@dataclass
class Trial:
    """One combination of parameters.

    Args:
        number: From 0.
        parameters: By option.
        status: How it stands.
        reason: Why it failed or was pruned.
        runs: Finished runs, one for each seed.
        seconds: What it took, over all attempts that were not killed.
    """

    number: int
    parameters: dict[str, Any]
    status: Literal["running", "done", "pruned", "failed"] = "running"
    reason: str = ""
    runs: list[SeedRun] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rates(self) -> dict[str, float]:
        """Share of the runs that solve each held-out task."""
        tasks = self.runs[0].right if self.runs else {}
        return {task: sum(run.right[task] for run in self.runs) / len(self.runs) for task in tasks}

    @property
    def value(self) -> float:
        """Accuracy on the held-out tasks, in [0, 1]: the objective."""
        rates = self.rates
        return sum(rates.values()) / max(1, len(rates))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the objective over tasks: Wilson's for one run, the bootstrap's over tasks for several."""
        rates = list(self.rates.values())
        if len(self.runs) == 1:
            return wilson(round(sum(rates)), len(rates))
        return share_interval(rates)


def prove(folder: Path, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters as a run has used them, read from the ``config.yaml`` that it wrote itself.

    Raises:
        TrainingError: When one of them is not what it was meant to be.
        CheckpointError: When the file cannot be read.
    """
    path = folder / "config.yaml"
    try:
        used = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CheckpointError(f"{path}, which proves the parameters of a trial, cannot be read: {error}") from error
    proof = {}
    for name, wanted in parameters.items():
        option, dot, key = name.partition(".")
        found: Any = used.get(option, _MISSING) if isinstance(used, dict) else _MISSING
        if dot:
            found = found.get(key, _MISSING) if isinstance(found, dict) else _MISSING
        if found is _MISSING or found != json.loads(json.dumps(wanted)):
            shown = "nothing" if found is _MISSING else repr(found)
            raise TrainingError(f"The trial was to run with {name} = {wanted!r}, but {path} says {shown}.")
        proof[name] = found
    return proof


class StudyFolder:
    """The folder of a tuning run; one process at a time writes to it.

    Args:
        path: The folder; made if it is not there.
        settings: What decides the trials, as JSON values; a study goes on only under the same ones.
        overwrite: Whether to remove what an earlier study has left in it.

    Raises:
        ConfigError: When it holds something else or a study with other settings, or another process writes to it.
        CheckpointError: When ``study.json`` is damaged.
        StorageError: When it cannot be written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.path, self._settings = path, json.loads(json.dumps(settings))
        marker = path / _MARKER
        if not marker.exists() and path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path} is not empty and holds no study; choose another --name.")
        with storage_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            lock_folder(marker, self)
            if overwrite:
                self._clear(marker)
        self.trials = self._read()

    def save(self) -> None:
        """Write down all trials."""
        whole = {"settings": self._settings, "trials": [asdict(trial) for trial in self.trials]}
        write_text(self.path / "study.json", json.dumps(whole, indent=1) + "\n")

    def run_folder(self, trial: Trial, seed: int) -> Path:
        """Return where a run of a trial goes."""
        return self.path / "trials" / f"{trial.number:04d}" / f"seed{seed}"

    def _read(self) -> list[Trial]:
        file = self.path / "study.json"
        if not file.exists():
            return []
        try:
            whole = json.loads(file.read_text(encoding="utf-8"))
            before = dict(whole["settings"])
            trials = [Trial(**{**t, "runs": [SeedRun(**run) for run in t["runs"]]}) for t in whole["trials"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{file} is damaged ({type(error).__name__}: {error}), so it is not known which trials are done. Begin "
                "again with --overwrite, or under another --name."
            ) from error
        # More trials of the same search may be asked for later.
        changed = differences({**before, "trials": 0}, {**self._settings, "trials": 0})
        if changed:
            raise ConfigError(
                f"{self.path} holds a study with other settings ({'; '.join(changed)}). Undo them, begin again with "
                "--overwrite, or choose another --name."
            )
        return trials

    def _clear(self, marker: Path) -> None:
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != marker:
                entry.unlink()


def finished(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that came to their end, best first; of equal ones the earlier first."""
    return sorted((t for t in trials if t.status == "done"), key=lambda t: (-t.value, t.number))
