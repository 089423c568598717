"""What can be done with any list of rows: choose some of them, and tell two lists apart.

>>> rows = [{"question": f"{n}?", "answer": "<<1+1=2>>" * (n % 3) + "#### 2"} for n in range(9)]
>>> [steps_of(row) for row in subset(rows, 3)]
[0, 1, 2]
>>> fingerprint(rows) == fingerprint(list(rows)) != fingerprint(rows[::-1])
True
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from trajgym.envs.gsm8k_solution import annotated
from trajgym.errors import ConfigError, DataError
from trajgym.rollout import derive_seed

__all__ = ["fingerprint", "record", "solution_of", "steps_of", "subset"]

R = TypeVar("R", bound=Mapping[str, Any])

_SOLUTIONS = ("full_answer", "completion", "answer")


def solution_of(row: Mapping[str, Any]) -> str:
    """Return the text of a row that holds its worked solution, in whatever format the row is; empty without one."""
    texts = (row.get(name) for name in _SOLUTIONS)
    return next((text for text in texts if isinstance(text, str)), "")


def steps_of(row: Mapping[str, Any]) -> int:
    """Return how many steps a row's solution has.

    These are its annotated calculations, or else its lines before the answer; of a dialogue, the assistant's turns
    before the last one.
    """
    messages = row.get("messages")
    if isinstance(messages, (list, tuple)):
        turns = [m for m in messages if isinstance(m, Mapping) and m.get("role") == "assistant"]
        return max(0, len(turns) - 1)
    solution = solution_of(row)
    lines = [line for line in solution.split("\n") if line.strip() and not line.lstrip().startswith("####")]
    return len(annotated(solution)) or (len(lines) if "####" in solution else 0)


def subset(rows: Sequence[R], max_samples: int | None, *, seed: int = 0, stratified: bool = True) -> list[R]:
    """Return ``max_samples`` of the rows, in their order.

    The same seed gives the same rows, and fewer of them are among more of them: a run on 100 samples sees nothing that
    one on 1,000 does not.

    Args:
        rows: The rows.
        max_samples: How many; all of them when ``None`` or when there are not as many.
        seed: Decides which.
        stratified: Take the same share of the rows of each number of steps (:func:`steps_of`).

    Raises:
        ConfigError: When ``max_samples`` is not a whole number from 1.
    """
    if max_samples is None:
        return list(rows)
    if isinstance(max_samples, bool) or not isinstance(max_samples, int) or max_samples < 1:
        raise ConfigError(f"max_samples must be a whole number from 1, or None for all rows, got {max_samples!r}.")
    strata: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        strata.setdefault(steps_of(row) if stratified else 0, []).append(i)
    places: list[tuple[float, int, int]] = []
    for steps, members in strata.items():
        shuffled = sorted(members, key=lambda i: derive_seed(seed, "subset", i))
        # Each stratum is spread evenly over the whole queue, so that every beginning of the queue has all shares.
        places += [((rank + 0.5) / len(members), steps, i) for rank, i in enumerate(shuffled)]
    return [rows[i] for i in sorted(i for *_, i in sorted(places)[:max_samples])]


def fingerprint(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return ``"sha256:…"`` over all columns of the rows, in order.

    Raises:
        DataError: When a value is nothing that JSON can hold.
    """
    digest = hashlib.sha256()
    for i, row in enumerate(rows):
        try:
            text = json.dumps(dict(row), sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"Row {i + 1} cannot be fingerprinted: {error}.") from error
        digest.update(text.encode() + b"\n")
    return f"sha256:{digest.hexdigest()}"


def record(name: str, rows: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
    """Return what a run folder should keep of its data: name, size, columns, fingerprint, and how they were chosen.

    Args:
        name: What the data are called.
        rows: The rows that are used.
        **options: JSON values, such as ``split``, ``max_samples`` and ``seed``.

    Raises:
        DataError: As :func:`fingerprint`.
    """
    columns = sorted({str(column) for row in rows for column in row})
    return {"name": name, "rows": len(rows), "columns": columns, "fingerprint": fingerprint(rows), **options}
