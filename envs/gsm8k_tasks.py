"""The GSM8K problems as tasks, from a file or from the Hugging Face hub."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trajgym.envs.gsm8k_solution import annotated, demonstration
from trajgym.envs.tasks import FiniteTasks
from trajgym.errors import ConfigError, DataError, UnknownNameError
from trajgym.types import Task

__all__ = ["GSM8KTasks"]

_SPLITS = ("train", "test")
_HUB_NAME = "openai/gsm8k"
_PROBE_SECONDS = 5.0


class GSM8KTasks(FiniteTasks):
    """Grade-school word problems: 7,473 for training, 1,319 for testing.

    Nothing is read before the first problem is asked for; a file is read once per process, until it changes.
    Source: Cobbe et al. 2021, arXiv 2110.14168.

    Args:
        split: ``"train"`` or ``"test"``.
        path: A ``.jsonl`` file of rows with ``question`` and ``answer``, or a folder that holds ``{split}.jsonl``.
            Without it: ``$TRAJGYM_DATA/gsm8k/{split}.jsonl``, else ``openai/gsm8k`` on the Hugging Face hub.
        limit: Only the first so many rows.

    Raises:
        UnknownNameError: For another split.
        ConfigError: When ``limit`` is not a whole number from 1, or ``path`` not a path.
        DataError: Now, when ``path`` does not exist; on first use, when no data are found or a row cannot be read.
    """

    def __init__(self, split: str = "train", path: str | Path | None = None, limit: int | None = None) -> None:
        if split not in _SPLITS:
            raise UnknownNameError("split", split, _SPLITS, "Set it with split=.")
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
            raise ConfigError(f"limit= must be a whole number from 1, or None for all rows, got {limit!r}.")
        if path is not None and not isinstance(path, (str, os.PathLike)):
            raise ConfigError(f"path= must be a file or a folder, got {type(path).__name__}.")
        self.split = split
        self.path = None if path is None else _given(Path(path).expanduser().absolute(), split)
        self.limit = limit
        self._tasks: tuple[Task, ...] | None = None

    def __repr__(self) -> str:
        path = None if self.path is None else str(self.path)
        return f"GSM8KTasks({self.split!r}, path={path!r}, limit={self.limit})"

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The problems in the order of their rows."""
        if self._tasks is None:
            self._tasks = self._load()[: self.limit]
        return self._tasks

    def _load(self) -> tuple[Task, ...]:
        path = self.path
        if path is None and os.environ.get("TRAJGYM_DATA"):
            path = Path(os.environ["TRAJGYM_DATA"]).expanduser() / "gsm8k" / f"{self.split}.jsonl"
            if not path.is_file():
                path = None
        if path is None:
            return _from_hub(self.split)
        try:
            stat = path.stat()
        except OSError as error:
            raise DataError(_missing(self.split, f"{path} cannot be read: {error}")) from error
        return _from_file(path, self.split, stat.st_mtime_ns, stat.st_size)


def _given(path: Path, split: str) -> Path:
    file = path / f"{split}.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise DataError(_missing(split, f"path= leads to {file}, which is not a file"))
    return file


def _missing(split: str, why: str) -> str:
    return (
        f"No GSM8K data for split {split!r}: {why}. There are three ways to give them: (1) path=, a .jsonl file or a "
        f"folder with {split}.jsonl; (2) the environment variable TRAJGYM_DATA, a folder with gsm8k/{split}.jsonl; "
        f"(3) {_HUB_NAME} on the Hugging Face hub, with a connection and the package datasets "
        "(pip install 'trajgym[train]'). The environment ArithmeticTool-v0 needs no data."
    )


@functools.lru_cache(maxsize=8)
def _from_file(path: Path, split: str, mtime_ns: int, size: int) -> tuple[Task, ...]:
    """Read a file; its time (nanoseconds) and size (bytes) are there so that a changed file is read again."""
    return _tasks(_lines(path), split, str(path))


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield where each row stands and what it holds; rows end in a line feed and nothing else."""
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}, line {number}", json.loads(line)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: not JSON: {error}") from error


@functools.lru_cache(maxsize=2)
def _from_hub(split: str) -> tuple[Task, ...]:
    try:
        from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

        if not constants.HF_HUB_OFFLINE:  # offline, load_dataset looks for an earlier download only
            # One request without retries: load_dataset alone would try for half a minute when there is no network.
            get_hf_file_metadata(hf_hub_url(_HUB_NAME, "README.md", repo_type="dataset"), timeout=_PROBE_SECONDS)
        import datasets

        rows = datasets.load_dataset(_HUB_NAME, "main", split=split)
        return _tasks(((f"{_HUB_NAME}, row {i}", row) for i, row in enumerate(rows)), split, _HUB_NAME)
    except DataError:
        raise
    except Exception as error:  # the two libraries raise errors of many kinds, not all of them their own
        reason = f"path= and TRAJGYM_DATA give no file, and the hub failed with {type(error).__name__}: {error}"
        raise DataError(_missing(split, reason.rstrip(". "))) from error


def _tasks(rows: Iterable[tuple[str, Any]], split: str, source: str) -> tuple[Task, ...]:
    tasks = tuple(_task(row, where, f"gsm8k/{split}/{i}") for i, (where, row) in enumerate(rows))
    if not tasks:
        raise DataError(f"{source} holds no rows; expected one JSON object with question and answer on each line.")
    return tasks


def _task(row: Any, where: str, task_id: str) -> Task:
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object with question and answer, got {type(row).__name__}.")
    texts = []
    for key in ("question", "answer"):
        text = row.get(key)
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{where}: {key!r} must be a text that is not blank, got {text!r:.60}.")
        if re.search("[\ud800-\udfff]", text):
            raise DataError(f"{where}: {key!r} holds half a surrogate pair, which no UTF-8 text can.")
        texts.append(text)
    question, full = texts
    _, marker, final = full.rpartition("####")
    answer = final.replace(",", "").strip()
    if not marker or not re.fullmatch(r"-?[0-9]+", answer):
        raise DataError(f"{where}: 'answer' must end in '#### ' and a whole number, got {full[-40:]!r}.")
    return Task(
        id=task_id,
        question=question,
        answer=answer,
        solution=demonstration(full, answer),
        difficulty=len(annotated(full)),
        metadata={"full_answer": full},
    )
