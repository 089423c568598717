"""What a call can be told of runs and models before anything is loaded: where they come from, and what fits them."""

from __future__ import annotations

import os
from pathlib import Path

from trajgym.errors import ConfigError
from trajgym.policies import tiny_path
from trajgym.trainers.trained import run_options

__all__ = ["fine_tuned", "finished_model", "positions_of", "require_free", "run_of", "small_share"]

_SMALL = 0.2  # share of the data below which an accuracy says little


def finished_model(name: str) -> str | Path:
    """Return the folder of a run's finished model; what is no run's folder is the model itself."""
    inside = _folder(name) / "model"
    return inside if (inside / "config.json").is_file() else name


def run_of(model: str | Path) -> Path | None:
    """Return the folder of the run that made a model, given by itself or by its ``model`` folder."""
    folder = _folder(model)
    for run in (folder, folder.parent):
        if (
            (run / "config.yaml").is_file()
            and (run / "checkpoints").is_dir()
            and (run == folder or folder.name == "model")
        ):
            return run
    return None


def fine_tuned(model: str | Path) -> bool:
    """Whether it is known that a model went through supervised fine-tuning, itself or what it was trained from.

    Raises:
        CheckpointError: When a run's options cannot be read.
    """
    name, seen = str(model), set[Path]()
    while name != "tiny":
        run = run_of(name)
        if run is None or run in seen:
            return False
        seen.add(run)
        options = run_options(run)
        if options.get("algorithm") == "sft":
            return True
        name = str(options.get("model"))
    return True


def positions_of(model: str) -> int | None:
    """Return how many tokens a model can read at once; ``None`` where that is not known before it is fetched."""
    from transformers import AutoConfig

    folder = str(tiny_path()) if model == "tiny" else str(_folder(model))
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    except Exception:  # the library raises a dozen types; whoever loads the model next says what is wrong with it
        return None
    limits = (getattr(config, name, None) for name in ("max_position_embeddings", "sliding_window"))
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


def require_free(folder: Path) -> None:
    """Do nothing where a new run may begin.

    Raises:
        ConfigError: When the folder holds a run, or something else.
    """
    if (folder / "config.yaml").is_file():
        raise ConfigError(
            f"output_dir: {folder} holds a run already. Give another output_dir, resume=True to go on with the run, or "
            "overwrite=True to replace it."
        )
    ours = (folder / "checkpoints").is_dir()  # of a run that ended before it had written its options
    if folder.is_dir() and not ours and any(not entry.name.startswith(".") for entry in folder.iterdir()):
        raise ConfigError(f"output_dir: {folder} is not empty and no run of ours. Give another output_dir.")


def small_share(used: int, available: int | None) -> str | None:
    """Say what a run on little of the data can be expected to do; ``None`` where it has seen enough.

    >>> small_share(100, 7473)
    'Trained on 100 of 7,473 problems (1.3 %): a low accuracy is to be expected. More of them, or all, will tell.'
    """
    if not available or used / available >= _SMALL:
        return None
    return (
        f"Trained on {used:,} of {available:,} problems ({used / available:.1%}): a low accuracy is to be expected. "
        "More of them, or all, will tell."
    ).replace("%)", " %)")


def _folder(name: str | Path) -> Path:
    return Path(os.path.expanduser(name))
