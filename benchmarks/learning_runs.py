"""Runs cells of the learning benchmark, each of which leaves one JSON file.

A run is trained through the same configuration and trainer that a user has, part by part: each part ends with a
checkpoint, so that a benchmark that was killed goes on where it was, and the run ends when its turns are used up.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from learning_cells import SETTINGS, Cell, options

__all__ = ["load_results", "prepare_models", "publish", "restore", "result_path", "run_all", "run_cell"]

_PART = 40  # updates of a run's first part
_NICENESS = 10


def result_path(cell: Cell, output: Path) -> Path:
    """Return where a cell's result lies once it is done."""
    return output / "cells" / f"{cell.name}.json"


def run_cell(cell: Cell, output: Path, *, budget: int | None = None, part: int = _PART) -> Path:
    """Train one cell to the end, or what is left of it, and return its result's path.

    Args:
        cell: What to train.
        output: The benchmark's folder; its model must lie in ``models``.
        budget: Turns to play; the cell's own when left out.
        part: Updates of the first part.
    """
    from trajgym.trainers.config import load_config
    from trajgym.trainers.grpo import train

    target = result_path(cell, output)
    budget = cell.budget if budget is None else budget
    if _is_done(cell, target, budget):
        return target
    model = output / "models" / SETTINGS[cell.setting].model
    folder = output / "runs" / cell.name
    curve = _curve(folder)
    began = time.monotonic()
    with _quiet(output / "logs" / f"{cell.name}.txt"):
        while not curve or curve[-1]["env_steps"] < budget:
            updates = len(curve) + (part if not curve else _left(curve, budget))
            resume = any((folder / "checkpoints").glob("update-*/trainer.pt"))
            train(
                load_config(options(cell, model, updates=updates, output_dir=output / "runs", resume=resume)),
                name=cell.name,
            )
            curve = _curve(folder)
    result = {
        "model": _fingerprint(model),
        "setting": cell.setting,
        "method": cell.method,
        "reward": cell.reward,
        "gamma": cell.gamma,
        "seed": cell.seed,
        "rate": cell.rate,
        "budget": budget,
        "seconds": time.monotonic() - began,
        "curve": curve,
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.replace(target)
    shutil.rmtree(folder)
    return target


def prepare_models(names: Iterable[str], output: Path) -> None:
    """Make the models that are not there yet, each in a process of its own settings.

    Args:
        names: Keys of :data:`learning_models.STUDENTS`.
        output: The benchmark's folder.
    """
    with _workers(1) as pool:
        for name in names:
            pool.submit(_prepare, name, output / "models").result()


def run_all(cells: Sequence[Cell], output: Path, jobs: int) -> list[str]:
    """Train cells in processes of their own and say how it goes.

    Args:
        cells: Those that are done already are passed over.
        output: The benchmark's folder.
        jobs: How many at a time.

    Returns:
        What went wrong, one line per cell that failed; the others go on.
    """
    waiting = [cell for cell in cells if not _is_done(cell, result_path(cell, output), cell.budget)]
    print(f"{len(cells) - len(waiting)} of {len(cells)} runs are done; {jobs} at a time", flush=True)
    failed: list[str] = []
    began = time.monotonic()
    with _workers(jobs) as pool:
        futures = {pool.submit(run_cell, cell, output): cell for cell in waiting}
        for done, future in enumerate(as_completed(futures), 1):
            cell = futures[future]
            seconds = time.monotonic() - began
            state = "done"
            if (error := future.exception()) is not None:
                state = f"failed: {type(error).__name__}: {error}"
                failed.append(f"{cell.name} {state}")
            left = seconds / done * (len(waiting) - done)
            print(f"{done:4d}/{len(waiting)}  {cell.name}  {state}, {left / 60:.0f} min left", flush=True)
    return failed


def _is_done(cell: Cell, result: Path, budget: int) -> bool:
    """Whether there is a result that played the whole budget at the cell's learning rate."""
    return _played(result) >= budget and json.loads(result.read_text(encoding="utf-8"))["rate"] == cell.rate


def _played(result: Path) -> int:
    """Return the budget of a result that is there, 0 where there is none."""
    return int(json.loads(result.read_text(encoding="utf-8"))["budget"]) if result.is_file() else 0


def _left(curve: Sequence[dict[str, float]], budget: int) -> int:
    """Return how many updates the rest of the turns will take, judged by the latest ones."""
    recent = curve[-10:]
    before = curve[-len(recent) - 1]["env_steps"] if len(curve) > len(recent) else 0.0
    pace = (curve[-1]["env_steps"] - before) / len(recent)
    return max(1, math.ceil((budget - curve[-1]["env_steps"]) / max(1.0, pace)))


def _curve(folder: Path) -> list[dict[str, float]]:
    """Read what each update of a run has measured, up to its last checkpoint, with the turns played until then."""
    kept = [int(p.parent.name.removeprefix("update-")) for p in (folder / "checkpoints").glob("update-*/trainer.pt")]
    path = folder / "metrics.jsonl"
    if not kept or not path.is_file():
        return []
    rows: list[dict[str, float]] = []
    turns = 0.0
    for metrics in map(json.loads, path.read_text(encoding="utf-8").splitlines()[: max(kept)]):
        turns += metrics["env_steps"]
        row = {name: metrics[name] for name in ("success", "return", "turns", "time/rollout", "time/update")}
        rows.append({"env_steps": turns, **row})
    return rows


@contextlib.contextmanager
def _quiet(log: Path) -> Iterator[None]:
    """Write what a run prints to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


@contextlib.contextmanager
def _workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Give processes that compute with one thread each."""
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ.update(dict.fromkeys(before, "1"))
    # A fresh interpreter each, since torch does not survive a fork with its threads.
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(count, mp_context=context, initializer=_settle, initargs=(os.getpid(),)) as pool:
            yield pool
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _settle(parent: int) -> None:
    """Make a worker polite, and let it end when the benchmark is killed: nobody would collect its results."""
    os.nice(_NICENESS)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    import trajgym  # noqa: F401  (registers the environments)


def _prepare(name: str, models: Path) -> Path:
    from learning_models import prepare

    return prepare(name, models)


def load_results(output: Path) -> list[dict[str, Any]]:
    """Return the results that are there, in the order of their names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((output / "cells").glob("*.json"))]


def restore(published: Path, output: Path) -> None:
    """Lay models and results that were published where a benchmark keeps those that it has, unless it has them.

    Args:
        published: A folder of :func:`publish`; nothing happens where it is missing.
        output: The benchmark's folder.
    """
    for model in (published / "models").glob("*"):
        if not (output / "models" / model.name).exists():
            shutil.copytree(model, output / "models" / model.name)
    table = published / "runs.jsonl"
    for line in table.read_text(encoding="utf-8").splitlines() if table.is_file() else []:
        row = json.loads(line)
        target = output / "cells" / f"{row.pop('name')}.json"
        if _played(target) < row["budget"]:
            columns = row.pop("curve")
            row["curve"] = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(row), encoding="utf-8")


def publish(output: Path, published: Path) -> None:
    """Write the models and what the report is made of into a folder.

    Args:
        output: The benchmark's folder.
        published: Filled with ``models/`` and ``runs.jsonl``, a line per run: a cell's fields, its name, and its curve
            column by column.
    """
    lines = []
    for path in sorted((output / "cells").glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        curve = {name: [round(point[name], 4) for point in row["curve"]] for name in ("env_steps", "success", "return")}
        lines.append(json.dumps({"name": path.stem, **row, "seconds": round(row["seconds"]), "curve": curve}))
    shutil.copytree(output / "models", published / "models", dirs_exist_ok=True)
    (published / "runs.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _fingerprint(model: Path) -> str:
    """Return a few digits that say which weights these are."""
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()[:12]
