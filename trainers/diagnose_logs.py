"""Reading what a run has logged: one of ours, or one of a trainer of Hugging Face's (TRL) with its own names.

Runs crash, and are read while they write. What can be read is read, and what cannot is said in ``remarks``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trajgym.errors import ConfigError, DataError
from trajgym.trainers.diagnose_history import is_metric

__all__ = ["TRL_OPTIONS", "RunLog", "read_run"]

TRL_OPTIONS: Mapping[str, str] = {
    "clip_range": "epsilon",
    "clip_range_high": "epsilon_high",
    "dtype": "bf16",
    "epochs": "num_train_epochs",
    "groups_per_update": "per_device_train_batch_size",
    "inner_epochs": "num_iterations",
    "kl_coef": "beta",
    "max_turn_tokens": "max_completion_length",
    "microbatch_tokens": "per_device_train_batch_size",
    "normalizer": "loss_type",
    "sampler_correction": "vllm_importance_sampling_correction",
}
"""Our options → what TRL calls them."""

_TRL_METRICS = {
    "step": "update",
    "clip_ratio/region_mean": "clip_share",
    "completions/clipped_ratio": "cut_turn_share",
    "completions/mean_length": "tokens_per_trajectory",
    "frac_reward_zero_std": "no_signal_share",
    "sampling/sampling_logp_difference/mean": "sampler_gap",
    "tools/call_frequency": "calls",
    "tools/failure_frequency": "tool_error_share",
}
_STATE = "trainer_state.json"


@dataclass(frozen=True)
class RunLog:
    """The metrics of a run.

    Args:
        path: What was read.
        kind: ``"trajgym"`` or ``"trl"``.
        rows: Numbers by name, one mapping for each update (or step), ``"update"`` among them, in order.
        options: The run's options by name, as far as they are known.
        remarks: What could not be read, in sentences.
        names: Our options → what this trainer calls them.
    """

    path: Path
    kind: str
    rows: tuple[dict[str, Any], ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def read_run(path: Path) -> RunLog:
    """Read a run folder of ours or its ``metrics.jsonl``; or TRL's output folder, checkpoint or ``trainer_state.json``.

    Raises:
        ConfigError: When there is no such thing.
        DataError: When nothing of it can be read.
    """
    path = path.expanduser()
    if path.is_dir():
        if (path / "metrics.jsonl").is_file():
            return _ours(path / "metrics.jsonl")
        states = [path / _STATE, *(folder / _STATE for folder in _newest_first(path.glob("checkpoint-*")))]
        states = [state for state in states if state.is_file()]
        if states:
            return _trl(states)
        if (path / "config.yaml").is_file():  # a run of ours before its first update
            options, remarks = _options(path / "config.yaml")
            return RunLog(path, "trajgym", (), options, (*remarks, "No update has been finished yet."))
    elif path.is_file():
        return _trl([path]) if path.suffix == ".json" else _ours(path)
    raise ConfigError(
        f"There is no run in {path}. Give a run folder (with metrics.jsonl), or TRL's output folder or one of its "
        f"checkpoints (with {_STATE})."
    )


def _ours(path: Path) -> RunLog:
    rows: dict[int, dict[str, Any]] = {}
    bad = count = 0
    for line in _text(path).split("\n"):
        if line.strip():
            count += 1
            row = _row(_json(line), {})
            if row is None:
                bad += 1
            else:
                rows[row["update"]] = row  # of an update that was done twice, the later one holds
    if bad and not rows:
        raise DataError(f"{path} holds no line that is a JSON object with an update.")
    options, remarks = _options(path.parent / "config.yaml")
    if bad:
        remarks += (f"{bad} of {count} lines of {path.name} could not be read: cut short, or no JSON with an update.",)
    if not rows:
        remarks += ("No update has been finished yet.",)
    return RunLog(path.parent, "trajgym", tuple(rows[update] for update in sorted(rows)), options, remarks)


def _trl(paths: Iterable[Path]) -> RunLog:
    """Read the first of these files that is whole."""
    remarks: tuple[str, ...] = ()
    for path in paths:
        state = _json(_text(path))
        log = state.get("log_history") if isinstance(state, dict) else None
        if not isinstance(log, list):
            remarks += (f"{path} could not be read: cut short, or without a log_history.",)
            continue
        rows: dict[int, dict[str, Any]] = {}
        bad = 0
        for entry in log:
            row = _row(entry, _TRL_METRICS)
            if row is None:
                bad += 1
            else:  # one step may have an entry for training and another for evaluation
                rows[row["update"]] = rows.get(row["update"], {}) | row
        if bad:
            remarks += (f"{bad} of {len(log)} entries of {path.name} could not be read: no JSON object with a step.",)
        if not rows:
            remarks += ("No step has been logged yet.",)
        return RunLog(path.parent, "trl", tuple(rows[step] for step in sorted(rows)), {}, remarks, TRL_OPTIONS)
    raise DataError(" ".join(remarks))


def _row(entry: Any, names: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the numbers of an entry under our names, or ``None`` where there is no update to count them for."""
    if not isinstance(entry, dict):
        return None
    row: dict[str, Any] = {}
    for name, value in entry.items():
        if is_metric(value) and name.isprintable():  # other names would spoil the terminal
            row[_renamed(name) if names and name not in names else names.get(name, name)] = value
    update = row.get("update")
    if update is None or not 0 <= update < 1e15:
        return None
    return row | {"update": int(update)}


def _renamed(name: str) -> str:
    """Return our name for the mean of one of TRL's reward functions; one that grades answers is the share of success.

    >>> _renamed("rewards/format_reward/mean"), _renamed("rewards/accuracy_reward/mean"), _renamed("kl")
    ('reward/format_reward', 'success', 'kl')
    """
    if name.startswith("rewards/") and name.endswith("/mean"):
        term = name.removeprefix("rewards/").removesuffix("/mean")
        return "success" if "accuracy" in term.lower() else f"reward/{term}"
    return name


def _options(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    if not path.is_file():
        return {}, (f"There is no {path.name}, so options are not judged.",)
    try:
        options = yaml.safe_load(_text(path))
    except yaml.YAMLError:
        options = None
    if not isinstance(options, dict):
        return {}, (f"{path.name} could not be read, so options are not judged.",)
    return {str(name): value for name, value in options.items()}, ()


def _newest_first(folders: Iterable[Path]) -> list[Path]:
    def step(folder: Path) -> int:
        tail = folder.name.rpartition("-")[2]
        return int(tail) if tail.isascii() and tail.isdigit() else -1

    return sorted(folders, key=step, reverse=True)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
