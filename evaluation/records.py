"""Trajectories on disk: JSON lines and Parquet that load with ``datasets``.

Each row has flat columns to filter and plot by, and the whole trajectory as a JSON string, from which
:func:`read_trajectories` rebuilds it exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trajgym.errors import DataError
from trajgym.types import Message, Trajectory, from_json, to_json

__all__ = ["read_trajectories", "to_parquet", "trajectory_row", "write_jsonl"]


def trajectory_row(trajectory: Trajectory, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the columns of one trajectory.

    Args:
        trajectory: What to write.
        extra: More columns, the same in each row, such as the update's number.
    """
    steps = trajectory.steps
    messages = trajectory.messages or (Message("fault", trajectory.fault or ""),)
    terms: dict[str, float] = {}
    for step in steps:
        for name, value in step.reward_terms.items():
            terms[name] = terms.get(name, 0.0) + value
    return {
        **(extra or {}),
        "task_id": _clean(trajectory.task.id),
        "difficulty": -1 if trajectory.task.difficulty is None else trajectory.task.difficulty,
        "answer": _clean(trajectory.task.answer),
        # Neither is ever empty: a file of nothing but failed resets would have another type than the next one.
        "messages": [{"role": _clean(m.role), "content": _clean(m.content)} for m in messages],
        "rewards": [float(s.reward) for s in steps] or [0.0],
        "total_reward": trajectory.total_reward,
        # As JSON: a file in which nothing was paid would otherwise have another type than the next one.
        "reward_terms": json.dumps(terms),
        "stop_reason": trajectory.stop_reason.value,
        "turns": len(steps),
        "calls": sum(len(s.action.calls) for s in steps),
        "fault": _clean(trajectory.fault or ""),
        "trajectory": json.dumps(to_json(trajectory), ensure_ascii=True, default=str),
    }


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines; the file appears only when it is complete."""
    partial = path.with_suffix(path.suffix + ".partial")
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=True, default=str) + "\n")
    partial.replace(path)


def to_parquet(sources: Iterable[Path], target: Path) -> int:
    """Gather JSON-lines files of trajectories in one Parquet file.

    Returns:
        The number of rows; no file is written for none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [json.loads(line) for path in sources for line in path.read_text(encoding="utf-8").split("\n") if line]
    if rows:
        partial = target.with_suffix(".partial")
        pq.write_table(pa.Table.from_pylist(rows), partial)
        partial.replace(target)
    return len(rows)


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read what :func:`write_jsonl` or :func:`to_parquet` wrote.

    Raises:
        DataError: When the file holds something else.
    """
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            texts = pq.read_table(path, columns=["trajectory"])["trajectory"].to_pylist()
        else:
            lines = path.read_text(encoding="utf-8").split("\n")
            texts = [json.loads(line)["trajectory"] for line in lines if line]
        return [from_json(Trajectory, json.loads(text)) for text in texts]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} does not hold trajectories: {type(error).__name__}: {error}") from error


def _clean(text: str) -> str:
    """Spell out half surrogates, which a policy may write and Arrow refuses; the trajectory column keeps them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
