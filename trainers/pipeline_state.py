"""What a pipeline remembers of its stages, so that it goes on where it was: ``pipeline.json`` in the run folder.

A stage is done again when what went into it is no longer what it was; the differences are told by name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trajgym.errors import CheckpointError, ConfigError
from trajgym.trainers.folder_lock import lock_folder
from trajgym.trainers.runfolder import storage_errors

__all__ = ["PipelineFolder", "StageRecord", "differences", "stage_records", "write_text"]

_MARKER = ".trajgym-pipeline"
_SHOWN = 4  # differences that are told


@dataclass
class StageRecord:
    """One stage's past.

    Args:
        status: Whether it came to its end.
        inputs: What went into it, by name, as JSON values.
        result: What came of it, as JSON values.
        seconds: What it took, over all attempts that were not killed.
        made: What it has begun in which folders, see :mod:`trajgym.trainers.pipeline_folders`.
    """

    status: Literal["running", "done"]
    inputs: dict[str, Any]
    result: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    made: dict[str, list[str]] = field(default_factory=dict)


class PipelineFolder:
    """The run folder of a pipeline; one process at a time writes to it.

    Args:
        path: The folder; made if it is not there.
        overwrite: Whether to remove what an earlier pipeline has left in it.

    Raises:
        ConfigError: When it holds something else, or another process writes to it.
        CheckpointError: When ``pipeline.json`` is damaged.
        StorageError: When it cannot be written.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.path = path
        marker = path / _MARKER
        if not marker.exists() and path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path} is not empty and holds no pipeline; choose another --name.")
        with storage_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            lock_folder(marker, self)
            if overwrite:
                self._clear(marker)
        self.records = stage_records(path)

    def record(self, stage: str) -> StageRecord | None:
        """Return what is known of a stage."""
        return self.records.get(stage)

    def save(self) -> None:
        """Write down what is known of all stages."""
        whole = {"stages": {name: asdict(record) for name, record in self.records.items()}}
        write_text(self.path / "pipeline.json", json.dumps(whole, indent=1) + "\n")

    def _clear(self, marker: Path) -> None:
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != marker:
                entry.unlink()


def stage_records(folder: Path) -> dict[str, StageRecord]:
    """Return what is known of the stages of the pipeline in a folder; nothing where there is none.

    Raises:
        CheckpointError: When ``pipeline.json`` is damaged.
    """
    file = folder / "pipeline.json"
    if not file.exists():
        return {}
    try:
        stages = json.loads(file.read_text(encoding="utf-8"))["stages"]
        return {name: StageRecord(**record) for name, record in stages.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{file} is damaged ({type(error).__name__}: {error}), so it is not known which stages are done. Begin "
            "again with --overwrite, or under another --name."
        ) from error


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say what has changed between two sets of inputs, each a text.

    >>> differences({"sft": {"epochs": 3}, "data": "a"}, {"sft": {"epochs": 4}, "data": "a"})
    ['sft.epochs: 3 before, 4 now']
    """
    found = _changed(before, now, "")
    hidden = len(found) - _SHOWN
    return [*found[:_SHOWN], f"and {hidden} more"] if hidden > 0 else found


def _changed(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str) -> list[str]:
    found = []
    for key in dict.fromkeys((*before, *now)):
        old, new = before.get(key), now.get(key)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += _changed(old, new, f"{prefix}{key}.")
        else:
            found.append(f"{prefix}{key}: {_short(old)} before, {_short(new)} now")
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:59] + "…"


def write_text(path: Path, text: str) -> None:
    """Write a file that is never seen half written.

    Raises:
        StorageError: When it cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    with storage_errors(path.parent):
        with partial.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
