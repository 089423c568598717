"""Where the rows of a data set come from: a name, a file, or an object that holds them."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from trajgym.envs.gsm8k_tasks import GSM8KTasks
from trajgym.errors import ConfigError, DataError, UnknownNameError, did_you_mean
from trajgym.registry import Registry
from trajgym.rewards.catalogue import REWARDS

__all__ = ["DATASETS", "DatasetLike", "Loaded", "Row", "load_rows", "paired_reward", "register_dataset"]

Row: TypeAlias = Mapping[str, Any]

DatasetLike: TypeAlias = str | Path | Iterable[Row] | Mapping[str, Iterable[Row]] | Callable[[str], Iterable[Row]]
"""See :func:`load_rows`."""

DATASETS: Registry[Any] = Registry(
    "data set",
    entry_points="trajgym.datasets",
    hint="Give a .jsonl or .json file, the rows themselves, or add a name with register_dataset(...).",
)

_SUFFIXES = (".jsonl", ".json")


@dataclass(frozen=True)
class Loaded:
    """The rows of a data set in their order.

    Args:
        name: What they are called in messages: a registered name with its split, or a file.
        rows: The rows.
    """

    name: str
    rows: Sequence[Row]

    def place(self, index: int) -> str:
        """Return where a row stands, for messages; rows count from 1 there."""
        return f"{self.name}, row {index + 1}"


def register_dataset(name: str, dataset: DatasetLike, *, replace: bool = False) -> DatasetLike:
    """Make a data set known, so that ``dataset=name`` finds it wherever a data set can be named.

    A reward function that is registered under the same name belongs to it; see :func:`paired_reward`.

    Args:
        name: The name.
        dataset: What :func:`load_rows` takes, but no name. An iterator is read to its end now.
        replace: Take the name from whoever has it.

    Returns:
        ``dataset``.

    Raises:
        ConfigError: When the name is taken or no name, or ``dataset`` is no data set.
        DataError: When it holds no rows.
    """
    if not isinstance(name, str) or not name.strip() or name.endswith(_SUFFIXES) or os.sep in name:
        raise ConfigError(f"A data set's name must be a text that does not look like a file, got {name!r}.")
    if isinstance(dataset, str):
        dataset = Path(dataset)
    if isinstance(dataset, Iterator):
        dataset = list(dataset)
    if not (isinstance(dataset, (Path, Mapping)) or callable(dataset)):
        _checked(dataset, name)
    DATASETS.register(name, dataset, replace=replace)
    return dataset


def load_rows(dataset: DatasetLike, *, split: str = "train") -> Loaded:
    """Return the rows of a data set.

    Args:
        dataset: One of

            - a registered name such as ``"gsm8k"``,
            - a ``.jsonl`` or ``.json`` file, or a folder that holds ``{split}.jsonl``,
            - the rows: a ``datasets.Dataset``, a list of mappings,
            - a mapping from splits to rows, such as a ``datasets.DatasetDict``,
            - a function from a split to rows.
        split: Which part; a file and a list are one part, ``"train"``.

    Raises:
        UnknownNameError: When there is no data set of this name, or no such split.
        ConfigError: When it is none of these.
        DataError: When there are no data, or they cannot be read.
    """
    if isinstance(dataset, str):
        path = Path(dataset).expanduser()
        if dataset in DATASETS or not (path.suffix or path.is_dir()):
            return _loaded(DATASETS[dataset], split, dataset)
    return _loaded(Path(dataset) if isinstance(dataset, str) else dataset, split, "")


def paired_reward(dataset: str, reward: str | None = None) -> str | None:
    """Return the name of the reward for a registered data set: the one asked for, or else its namesake.

    Warns where names look as if they were meant to be the same, and where a reward belongs to another data set.

    Args:
        dataset: Name of a data set.
        reward: Name of a reward; ``None`` looks for one that was registered under the data set's name.

    Returns:
        The name; ``None`` when nothing is said and there is no namesake, so that the environment's own reward holds.

    Raises:
        UnknownNameError: When the data set or the reward does not exist.
    """
    if dataset not in DATASETS:
        raise UnknownNameError(DATASETS.kind, dataset, DATASETS, DATASETS.hint)
    if reward is None:
        if dataset in REWARDS:
            return dataset
        close = did_you_mean(dataset, REWARDS)
        if close:
            warnings.warn(
                f"No reward is registered under the data set's name {dataset!r}, so the environment's own holds."
                f"{close} Name it with reward=.",
                stacklevel=2,
            )
        return None
    if reward not in REWARDS:
        raise UnknownNameError(REWARDS.kind, reward, REWARDS, REWARDS.hint)
    if reward != dataset and reward in DATASETS:
        warnings.warn(
            f"The reward {reward!r} was registered for the data set {reward!r}, but is to pay {dataset!r}.",
            stacklevel=2,
        )
    return reward


def _loaded(dataset: Any, split: str, name: str) -> Loaded:
    if isinstance(dataset, Path):
        path = dataset.expanduser()
        file = path / f"{split}.jsonl" if path.is_dir() else path
        return Loaded(str(file), _checked(_read(file), str(file)))
    label = name or "the data set"
    if isinstance(dataset, Mapping):
        if split not in dataset:
            raise UnknownNameError(f"split of {label}", split, map(str, dataset), "Set it with split=.")
        return Loaded(f"{label}/{split}", _checked(dataset[split], label))
    if callable(dataset):
        return Loaded(f"{label}/{split}", _checked(dataset(split), label))
    if split != "train":
        raise UnknownNameError(f"split of {label}", split, ["train"], "It is one list of rows, with no other parts.")
    return Loaded(label, _checked(dataset, label))


def _checked(rows: Any, name: str) -> Sequence[Row]:
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise ConfigError(
            f"{name}: a data set must be a name, a file, rows, a mapping of splits or a function, got {rows!r:.80}."
        )
    listed: list[Any] = list(rows)
    if not listed:
        raise DataError(f"{name} holds no rows.")
    for i, row in enumerate(listed):
        if not isinstance(row, Mapping):
            raise DataError(f"{name}, row {i + 1}: expected a mapping from columns to values, got {row!r:.80}.")
    return listed


def _read(path: Path) -> list[Any]:
    if path.suffix not in _SUFFIXES:
        raise DataError(f"{path}: a data file must end in {' or '.join(_SUFFIXES)}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if path.suffix == ".json":
        rows = _json(text, str(path))
        if not isinstance(rows, list):
            raise DataError(f"{path}: expected one array of rows, got {type(rows).__name__}.")
        return rows
    lines = enumerate(text.split("\n"), start=1)
    return [_json(line, f"{path}, line {number}") for number, line in lines if line.strip()]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from error


def _gsm8k(split: str) -> list[Row]:
    return [{"question": t.question, "answer": t.metadata["full_answer"]} for t in GSM8KTasks(split)]


register_dataset("gsm8k", _gsm8k)
