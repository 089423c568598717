"""The folders of a chain's trainings: apart from one another, and cleared only of what the chain itself has made there.

A training stands in the chain's own folder, where nothing else is, or wherever ``output_dir`` says; there another run
may lie. What the chain has begun in a folder is remembered by the options it was begun with, which lie in the folder
too, so a run that somebody has put in its place is not taken for it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trajgym.errors import CheckpointError, ConfigError
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.sft_config import SFTConfig
from trajgym.trainers.trained import run_options

__all__ = ["attempt", "check_apart", "require_own", "run_folder"]


def run_folder(config: SFTConfig | GRPOConfig) -> Path:
    """Return where a training of a chain writes."""
    return config.output_dir.expanduser().absolute() / str(config.name)


def check_apart(pipeline: Path, stages: Mapping[str, SFTConfig | GRPOConfig]) -> None:
    """Refuse folders of which one would be cleared with another.

    Args:
        pipeline: The chain's run folder.
        stages: The trainings' options by their section.

    Raises:
        ConfigError: Naming the two.
    """
    whole = pipeline.expanduser().resolve()
    own = {"the deployed model": whole / "model", "the evaluations": whole / "evaluation"}
    places = {f"{section}.output_dir": run_folder(config).resolve() for section, config in stages.items()}
    for name, place in places.items():
        if whole.is_relative_to(place):
            raise ConfigError(f"{name} ({place}) holds the pipeline's own folder, {whole}. Choose another {name}.")
    for (name, place), (other, taken) in [
        *itertools.combinations(places.items(), 2),
        *itertools.product(places.items(), own.items()),
    ]:
        if place.is_relative_to(taken) or taken.is_relative_to(place):
            raise ConfigError(
                f"{name} ({place}) and {other} ({taken}) must be two folders, none inside of the other: each is "
                f"cleared when its stage begins anew. Choose another {name}."
            )


def attempt(options: Mapping[str, Any]) -> str:
    """Return what tells an attempt at a training from others: a hash of its options.

    Args:
        options: As JSON values, those that were given or those that the run has written down.
    """
    told = {key: value for key, value in options.items() if key != "protocol"}  # a run writes down which one it found
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def require_own(folder: Path, made: Mapping[str, Collection[str]], *, section: str, overwrite: bool) -> None:
    """Do nothing when a folder may be cleared for a training.

    Args:
        folder: An absolute path.
        made: What the chain has begun, by folder.
        section: The training's.
        overwrite: Whether another run in it may be replaced.

    Raises:
        ConfigError: When something else is in it.
    """
    known = made.get(str(folder))
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    elsewhere = f"choose another {section}.output_dir"
    if not (folder / "config.yaml").is_file():
        if known is None:
            raise ConfigError(f"{folder} holds something that is no run, so {section} cannot write there; {elsewhere}.")
        return
    if not overwrite and _stored_attempt(folder) not in (known or ()):
        raise ConfigError(
            f"{folder} holds a run that this pipeline has not made, so {section} does not replace it. Replace it with "
            f"--overwrite (it begins the whole pipeline again), or {elsewhere}."
        )


def _stored_attempt(run: Path) -> str | None:
    try:
        return attempt(run_options(run))
    except CheckpointError:
        return None
