"""The work of the stages, each a function of options and folders; :mod:`trajgym.trainers.pipeline` says in which order.

Each trainer goes on by itself from its newest checkpoint, and evaluations from the episodes that were played.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trajgym.errors import ConfigError, DataError
from trajgym.evaluation.plots import read_metrics
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.pipeline_evaluation import model_fingerprint
from trajgym.trainers.pipeline_folders import run_folder
from trajgym.trainers.runfolder import finished_checkpoints
from trajgym.trainers.sft_config import SFTConfig

__all__ = ["continued", "run_grpo", "run_sft", "significant", "weights_of"]

# Where it is written and what is told of it: nothing of a stage's outcome depends on these.
_TOLD_ONLY = {"output_dir", "name", "resume", "overwrite", "save_every", "keep_checkpoints", "monitors", "progress"}
_TOLD_ONLY |= {"log_every", "eval_every", "log_trajectories", "env_threads", "device", "rank_deadline", "model"}

Run = TypeVar("Run", SFTConfig, GRPOConfig)


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
        config: The options; their folder may be cleared, see :func:`trajgym.trainers.pipeline_folders.require_own`.
        go_on: Whether what the folder holds was begun under these very options.
    """
    saved = go_on and bool(finished_checkpoints(run_folder(config) / "checkpoints"))
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


def _curves(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the first and the last value of a run's figures, and how many steps it has taken."""
    lines = read_metrics(folder / "metrics.jsonl")
    curves = {}
    for name in names:
        values = [line[name] for line in lines if line.get(name) is not None]
        if values:
            curves[name] = {"first": values[0], "last": values[-1]}
    return {"steps": len(lines), "curves": curves}
