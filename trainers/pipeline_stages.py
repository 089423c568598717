"""The work of the stages, each a function of options and folders; :mod:`trajgym.trainers.pipeline` says in which order.

Each trainer goes on by itself from its newest checkpoint, and evaluations from the episodes that were played.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trajgym.envs.make import make
from trajgym.envs.tasks import FiniteTasks
from trajgym.errors import ConfigError, DataError
from trajgym.evaluation.plots import read_metrics
from trajgym.evaluation.selection import tasks_of
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.data_quality import check_quality
from trajgym.trainers.data_rows import fingerprint
from trajgym.trainers.data_sources import Loaded, load_rows
from trajgym.trainers.pipeline_config import PipelineConfig
from trajgym.trainers.pipeline_evaluation import model_fingerprint
from trajgym.trainers.runfolder import finished_checkpoints
from trajgym.trainers.sft_config import SFTConfig
from trajgym.types import Task

__all__ = ["Problems", "continued", "find_problems", "run_grpo", "run_sft", "significant", "weights_of"]

# Where it is written and what is told of it: nothing of a stage's outcome depends on these.
_TOLD_ONLY = {"output_dir", "name", "resume", "overwrite", "save_every", "keep_checkpoints", "monitors", "progress"}
_TOLD_ONLY |= {"log_every", "eval_every", "log_trajectories", "env_threads", "device", "rank_deadline", "model"}

Run = TypeVar("Run", SFTConfig, GRPOConfig)


@dataclass(frozen=True)
class Problems:
    """What a chain trains on and what it is measured on.

    Args:
        train: Problems to train on; of those that never end, the first that are drawn.
        test: Problems to measure on.
        available: How many there are to train on in all; ``None`` where they never end.
        arguments: The environment's arguments, to measure with.
        rows: Fingerprint of what SFT imitates, where that is no demonstration of the environment's own.
    """

    train: Sequence[Task]
    test: Sequence[Task]
    available: int | None
    arguments: Mapping[str, Any]
    rows: str | None

    @property
    def fingerprints(self) -> dict[str, str | None]:
        """What tells them from others."""
        return {"train": _hash(self.train), "test": _hash(self.test), "imitated": self.rows}

    def check(self) -> dict[str, Any]:
        """Look for what would spoil the chain, and return what is worth knowing of the problems.

        Raises:
            DataError: When problems are empty, or occur in both parts.
        """
        parts = {"train": self.train, "test": self.test}
        train, test = (
            Loaded(f"the {name} problems", [{"question": t.question, "answer": t.answer} for t in tasks])
            for name, tasks in parts.items()
        )
        quality = check_quality(train, splits=[test], numeric=False)
        quality.require()
        check_quality(test, numeric=False, near=None).require()
        steps: dict[str, int] = {}
        for task in self.train:
            level = "unknown" if task.difficulty is None else str(task.difficulty)
            steps[level] = steps.get(level, 0) + 1
        return {
            "train": len(self.train),
            "train_available": self.available,
            "test": len(self.test),
            "steps": dict(sorted(steps.items())),
            "findings": [finding.what for finding in quality.findings],
            "fingerprints": self.fingerprints,
        }


def find_problems(config: PipelineConfig) -> Problems:
    """Read or draw the problems that the options name.

    Raises:
        ConfigError: For an environment or an argument that does not exist.
        DataError: When there are no data, or they cannot be read.
    """
    data = config.data
    given = ({} if data.protocol == "auto" else {"protocol": data.protocol}) | data.env_kwargs
    env = make(data.env, **given)
    source: Any = getattr(env.unwrapped, "tasks", None)
    train = tasks_of(env, data.max_samples, seed=config.seed)
    available = len(source) if isinstance(source, FiniteTasks) else None
    weights = getattr(getattr(env.unwrapped, "rubric", None), "weights", {})
    env.close()
    # What is trained for may not say who was right; an evaluation has to.
    arguments = {**given, "split": config.eval.split, **({} if "accuracy" in weights else {"reward": "sparse"})}
    measured = make(data.env, **arguments)
    test = tasks_of(measured, config.eval.max_samples, seed=config.seed)
    measured.close()
    return Problems(train, test, available, arguments, _imitated(data.dataset))


def _imitated(dataset: str) -> str | None:
    """Return the fingerprint of rows that are fit to be imitated; ``None`` for the environment's demonstrations."""
    if dataset == "expert":
        return None
    loaded = load_rows(dataset)
    check_quality(loaded, near=None).require()
    return fingerprint(loaded.rows)


def run_sft(config: SFTConfig) -> dict[str, Any]:
    """Fine-tune, or go on with it; return what is worth knowing of it."""
    from trajgym.trainers.sft import train_sft

    folder = train_sft(config)
    record = json.loads((folder / "data.json").read_text(encoding="utf-8"))
    told = {key: record[key] for key in ("samples", "samples_available", "rows", "trained_tokens", "left_out")}
    curves = _curves(folder, ("loss", "eval_loss", "token_accuracy"))
    return {"folder": str(folder), "model": str(folder / "model"), **told, **curves}


def run_grpo(config: GRPOConfig) -> dict[str, Any]:
    """Train on trajectories, or go on with it; return what is worth knowing of it."""
    from trajgym.trainers.grpo import train

    folder = train(config)
    return {
        "folder": str(folder),
        "model": str(folder),
        **_curves(folder, ("reward", "success", "kl", "call_share", "format_share", "call_error_share")),
    }


def continued(config: Run, *, go_on: bool) -> Run:
    """Return a trainer's options, told to go on where it can and to begin anew where it cannot.

    Args:
        config: The options.
        go_on: Whether what the folder holds was begun under these very options.
    """
    checkpoints = config.output_dir.expanduser() / str(config.name) / "checkpoints"
    saved = go_on and bool(finished_checkpoints(checkpoints))
    return config.model_copy(update={"resume": saved, "overwrite": not saved})


def significant(config: SFTConfig | GRPOConfig) -> dict[str, Any]:
    """Return the options that the outcome of a run depends on; the model is told by its fingerprint instead."""
    return {key: value for key, value in config.plain().items() if key not in _TOLD_ONLY}


def weights_of(result: Mapping[str, Any]) -> str | None:
    """Return the fingerprint of a stage's model as it is on disk now, ``None`` when it is gone.

    Raises:
        CheckpointError: When it is there, but damaged.
    """
    folder = Path(str(result.get("model", "")))
    try:
        return model_fingerprint(folder) if "model" in result and folder.is_dir() else None
    except (ConfigError, DataError):
        return None


def _hash(tasks: Sequence[Task]) -> str:
    return fingerprint([{"id": t.id, "question": t.question, "answer": t.answer} for t in tasks])


def _curves(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the first and the last value of a run's figures, and how many steps it has taken."""
    lines = read_metrics(folder / "metrics.jsonl")
    curves = {}
    for name in names:
        values = [line[name] for line in lines if line.get(name) is not None]
        if values:
            curves[name] = {"first": values[0], "last": values[-1]}
    return {"steps": len(lines), "curves": curves}
