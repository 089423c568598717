"""From what training left behind to a model in memory: a run, a checkpoint, an adapter, or any other model."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from trajgym.errors import CheckpointError, ConfigError
from trajgym.trainers.checksums import damage
from trajgym.trainers.models import load_model
from trajgym.trainers.placement import DeviceMap
from trajgym.trainers.runfolder import finished_checkpoints

__all__ = ["Source", "find_source", "open_source", "run_options"]


@dataclass(frozen=True)
class Source:
    """Where a model's weights are.

    Args:
        name: What to call the model.
        base: The model, or what the adapter belongs to: ``"tiny"``, a folder, or a hub id.
        adapter: The adapter's folder, if there is one.
        run: The run's folder, if there is one.
        options: The run's options.
    """

    name: str
    base: str
    adapter: Path | None = None
    run: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def find_source(name: str | Path, checkpoint: str | None = None) -> Source:
    """Find the weights that a name stands for.

    Args:
        name: A run's folder, a folder with a model or with an adapter, ``"tiny"``, or a hub id.
        checkpoint: Which of the run's checkpoints, such as ``update-000040``; by default the finished model, or the
            newest checkpoint where there is none.

    Raises:
        ConfigError: When the folder holds no model.
        CheckpointError: When the run has no such checkpoint, or it is damaged.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if checkpoint is not None:
            raise ConfigError(f"checkpoint {checkpoint!r} needs a run's folder, and {name} is none.")
        return Source(Path(name).name or str(name), str(name))
    if not (folder / "checkpoints").is_dir():
        if checkpoint is not None:
            raise ConfigError(f"{folder} is no run, so it has no checkpoint {checkpoint!r}.")
        return _in_folder(folder, folder.resolve().name)
    options = run_options(folder)
    weights = _weights(folder, checkpoint)
    return _in_folder(weights, folder.resolve().name, run=folder, options=options)


def open_source(
    source: Source,
    *,
    dtype: str = "float32",
    device: torch.device | None = None,
    quantization: str = "none",
    device_map: DeviceMap | None = None,
    sampled: bool = True,
) -> tuple[Any, Any]:
    """Load a model, with its adapter around it if it has one.

    Args:
        source: Where the weights are.
        dtype: ``"float32"`` or ``"bfloat16"``.
        device: Where to put them; the CPU when ``None``.
        quantization: ``"none"``, ``"8bit"`` or ``"4bit"``; acts on the base, never on the adapter.
        device_map: As for :func:`trajgym.trainers.models.load_model`.
        sampled: Likewise.

    Returns:
        ``(model, tokenizer)``, the model in evaluation mode.

    Raises:
        ConfigError: When the model cannot be loaded, or a device map has no room for its adapter.
        CheckpointError: When the adapter cannot be.
    """
    model, tokenizer = load_model(
        source.base, dtype=dtype, device=device, quantization=quantization, device_map=device_map, sampled=sampled
    )
    if source.adapter is None:
        return model, tokenizer
    from peft import PeftModel

    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        raise ConfigError(
            f"The device map leaves layers of {source.base} in memory or on disk, so the adapter in {source.adapter} "
            "cannot be put beside them. Merge it first with `trajgym export`, and load what that writes."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name that v6 will drop
            adapted = PeftModel.from_pretrained(model, source.adapter)
    except Exception as error:  # peft, safetensors and torch raise a dozen types
        raise CheckpointError(
            f"The adapter in {source.adapter} does not fit {source.base}: {str(error).splitlines()[0]}"
        ) from error
    if (source.adapter / "tokenizer.json").is_file():  # saved beside the adapter, as it was in training
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(source.adapter)
    return adapted.eval(), tokenizer


def run_options(run: Path) -> dict[str, Any]:
    """Return the options that a run has written into its folder.

    Raises:
        CheckpointError: When they are not there or cannot be read.
    """
    path = run / "config.yaml"
    try:
        options = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(options, dict):
        raise CheckpointError(f"{path} holds no options.")
    return options


def _in_folder(
    weights: Path, name: str, *, run: Path | None = None, options: Mapping[str, Any] | None = None
) -> Source:
    options = options or {}
    adapter = weights / "adapter_config.json"
    if adapter.is_file():
        try:
            base = options.get("model") or json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"]
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{adapter} does not say which model the adapter belongs to: {error!r}") from error
        return Source(name, str(base), weights, run, options)
    if not (weights / "config.json").is_file():
        raise ConfigError(
            f"{weights} holds no model: neither config.json nor adapter_config.json. Give a run's folder, a folder in "
            "Hugging Face's format, 'tiny', or a hub id."
        )
    return Source(name, str(weights), None, run, options)


def _weights(run: Path, checkpoint: str | None) -> Path:
    known = finished_checkpoints(run / "checkpoints")
    if checkpoint is None and (run / "model").is_dir():
        return run / "model"
    names = [path.name for path in known]
    if not known or (checkpoint is not None and checkpoint not in names):
        raise CheckpointError(f"{run} has no checkpoint{f' {checkpoint}' if checkpoint else ''}. It has: {names}.")
    chosen = known[-1] if checkpoint is None else known[names.index(checkpoint)]
    wrong = damage(chosen)
    if wrong:
        raise CheckpointError(f"{chosen} is damaged: {wrong}. Choose another checkpoint of {names}.")
    return chosen / "model"
