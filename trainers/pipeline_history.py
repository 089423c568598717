"""The improvement loop as a history across runs: train → evaluate → analyse → decide → retrain, a line for each turn.

``history.jsonl`` lies beside the run folders. A line holds what was changed since the line before, what came of it, and
what was decided then; :func:`as_table` shows them one below the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trajgym.errors import DataError
from trajgym.trainers.pipeline_state import differences
from trajgym.trainers.runfolder import storage_errors

__all__ = ["as_table", "read_history", "remember"]

# Where it was written says nothing about what was done.
_PLACES = ("output_dir", "name", "overwrite")


def remember(results: Mapping[str, Any], path: Path) -> None:
    """Append what a run has found out, unless the last line of this run says the same.

    Args:
        results: From :func:`trajgym.trainers.pipeline_results.collect_results`.
        path: The history; made if it is not there.

    Raises:
        DataError: When the history cannot be read.
        StorageError: When it cannot be written.
    """
    earlier = read_history(path) if path.exists() else []
    config = {key: value for key, value in results["config"].items() if key not in _PLACES}
    changed = differences(earlier[-1]["config"], config) if earlier else []
    line = {
        "run": results["run"],
        "status": results["status"],
        "changed": changed,
        "accuracy": {name: _measure(model, "accuracy") for name, model in results["models"].items()},
        "tool_use": {name: _measure(model, "tool_use") for name, model in results["models"].items()},
        "comparisons": results["comparisons"],
        "analysis": results["analysis"],
        "decision": results["decision"],
        "hashes": results["hashes"],
        "seconds": round(sum(stage["seconds"] for stage in results["stages"].values()), 1),
        "config": config,
    }
    if earlier and _same(earlier[-1], line):
        return
    text = json.dumps({"time": datetime.now(UTC).isoformat(timespec="seconds"), **line}, default=str) + "\n"
    with storage_errors(path.parent), path.open("a+", encoding="utf-8") as file:
        file.seek(0)
        if file.read()[-1:] not in ("", "\n"):  # a crash has cut the last line short
            text = "\n" + text
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a history, oldest first; those that a crash has cut short are left out.

    Raises:
        DataError: When there is none, or it holds something else.
    """
    try:
        written = path.read_text(encoding="utf-8").split("\n")
        lines = [json.loads(line) for line in written if not _cut(line)]
        if not all(isinstance(line, dict) and {"run", "accuracy", "decision", "config"} <= set(line) for line in lines):
            raise ValueError("each line must be an object with run, accuracy, decision and config")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} does not hold a history: {error}") from error
    return lines


def as_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return a history as text: for each turn what was changed, what came of it, what was decided.

    Args:
        lines: From :func:`read_history`.
    """
    parts = []
    for number, line in enumerate(lines, start=1):
        accuracy = [
            f"{name} {100 * m['value']:.1f} % ({100 * m['low']:.1f} … {100 * m['high']:.1f})"
            for name, m in line["accuracy"].items()
            if m
        ]
        changed = "; ".join(line["changed"]) or ("the first run" if number == 1 else "nothing")
        parts += [
            f"{number}. {line['run']}, {line['time']}, {line['status']}, {line['seconds']:.0f} s",
            f"   changed:  {changed}",
            f"   accuracy: {', '.join(accuracy) or 'not measured'}",
            *(f"   found:    {sentence}" for sentence in line["analysis"]),
            f"   next:     {line['decision']['next']}",
        ]
    return "\n".join(parts)


def _measure(model: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    found = model["measures"].get(name)
    return None if found is None or found["value"] is None else {key: found[key] for key in ("value", "low", "high")}


def _same(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    told = json.loads(json.dumps(now, default=str))
    return all(before.get(key) == told[key] for key in ("run", "status", "accuracy", "hashes", "config"))


def _cut(line: str) -> bool:
    """Whether a line is empty, the beginning of one of ours and no more, or the zeros that a file system left of it."""
    if line.strip("\0") and not line.startswith("{"):
        return False
    try:
        json.loads(line)
    except ValueError:
        return True
    return False
