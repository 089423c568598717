"""Which data a run learns from, written down in its folder as ``data.json``: name, number, fingerprint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium

from trajgym.envs.tasks import FiniteTasks
from trajgym.errors import ConfigError
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.data_rows import record
from trajgym.trainers.runfolder import storage_errors

__all__ = ["keep_data", "keep_problems"]


def keep_data(folder: Path, told: Mapping[str, Any]) -> None:
    """Write down what a run learns from.

    Args:
        folder: The run's folder.
        told: JSON values, such as :func:`trajgym.trainers.data_rows.record` gives.

    Raises:
        StorageError: When it cannot be written.
    """
    with storage_errors(folder):
        (folder / "data.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def keep_problems(folder: Path, env: gymnasium.Env[str, str], config: GRPOConfig) -> None:
    """Write down which problems a run learns from; nothing where an environment makes them up.

    Args:
        folder: The run's folder.
        env: One environment of the run.
        config: All options.

    Raises:
        ConfigError: When a run is resumed with other problems than it began with.
        StorageError: When it cannot be written.
    """
    source: Any = getattr(env.unwrapped, "tasks", None)
    if not isinstance(source, FiniteTasks):
        return
    tasks = list(source)[: config.max_samples]
    rows = [{"id": task.id, "question": task.question, "answer": task.answer} for task in tasks]
    told = record(config.env, rows, max_samples=config.max_samples)
    before = _fingerprint(folder) if config.resume else None
    if before not in (None, told["fingerprint"]):
        raise ConfigError(
            f"Cannot resume with other problems than the run began with: their fingerprint was {before} and is "
            f"{told['fingerprint']}. Bring back the data, or start a new run."
        )
    keep_data(folder, told)


def _fingerprint(folder: Path) -> str | None:
    """Return the fingerprint of the data that a run began with, where it is known."""
    try:
        return str(json.loads((folder / "data.json").read_text(encoding="utf-8"))["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
