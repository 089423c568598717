"""A trained model as a folder that anything can load: adapters merged, with tokenizer, template and a model card."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trajgym.errors import CheckpointError, ConfigError, UnknownNameError
from trajgym.policies.render import Renderer
from trajgym.trainers.export_card import model_card
from trajgym.trainers.placement import DeviceMap
from trajgym.trainers.runfolder import storage_errors
from trajgym.trainers.trained import find_source, open_source

__all__ = ["Exported", "export", "merge"]

DTYPES = ("float32", "bfloat16")
_TOLERANCE = 1e-4  # of the largest logit: what rounding in float32 makes of adding before or after multiplying
_PROBE = 32  # tokens on which a merged model is compared with what it was merged from


@dataclass(frozen=True)
class Exported:
    """What was written.

    Args:
        folder: Where.
        difference: Largest difference of the merged model's logits from the adapted one's, as a share of the largest
            logit; ``None`` where there was nothing to merge.
    """

    folder: Path
    difference: float | None = None


def export(
    source: str | Path,
    out: Path,
    *,
    checkpoint: str | None = None,
    dtype: str | None = None,
    device_map: DeviceMap | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write a model as a folder in Hugging Face's format that loads without PEFT and without this package.

    Args:
        source: As for :func:`trajgym.trainers.trained.find_source`.
        out: The folder to write; it appears when it is complete.
        checkpoint: Which of the run's checkpoints.
        dtype: ``"float32"`` or ``"bfloat16"``; the run's own when ``None``.
        device_map: Where the model lies meanwhile, see :mod:`trajgym.trainers.placement`; memory when ``None``.
        overwrite: Whether to replace what is in ``out``, if that is a model.

    Raises:
        ConfigError: When there is no such model, or ``out`` is taken.
        CheckpointError: When a checkpoint or an adapter cannot be used.
        TemplateError: When the tokenizer has no chat template that can be followed.
        StorageError: When it cannot be written.
    """
    found = find_source(source, checkpoint)
    kind = dtype or str(found.options.get("dtype", "float32"))
    if kind not in DTYPES:
        raise UnknownNameError("dtype", kind, DTYPES)
    out = out.expanduser()
    _require_free(out, overwrite)
    # Merged in float32, so that W + (α/r)·BA is rounded once.
    model, tokenizer = open_source(
        found, dtype="float32" if found.adapter else kind, device_map=device_map, sampled=False
    )
    difference = None
    if found.adapter is not None:
        model, difference = merge(model)
        model = model.to(getattr(torch, kind))
    stop_ids = _prepare_generation(model, tokenizer)
    partial = out.with_name(out.name + ".partial")
    with storage_errors(out):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
            card = model_card(
                found, name=out.name, folder=partial, dtype=kind, difference=difference, stop_ids=stop_ids
            )
            (partial / "README.md").write_text(card, encoding="utf-8")
            if out.exists():
                shutil.rmtree(out)
            partial.rename(out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return Exported(out, difference)


@torch.no_grad()
def merge(model: Any) -> tuple[Any, float]:
    """Add a model's adapters to its weights: ``W ← W + (α/r)·BA``.

    Args:
        model: A model of PEFT, in float32; not to be used afterwards.

    Returns:
        The model without PEFT around it, and the largest difference of its logits as a share of the largest logit.

    Raises:
        CheckpointError: When the merged model is another one.

    Source: LoRA, arXiv 2106.09685, section 4.1 (no additional latency).
    """
    device = next(model.parameters()).device
    size = int(model.get_input_embeddings().weight.shape[0])
    probe = (torch.arange(_PROBE, device=device) * 7919 % size)[None]
    before = model(input_ids=probe, use_cache=False).logits.float()
    merged = model.merge_and_unload(safe_merge=True)
    after = merged(input_ids=probe, use_cache=False).logits.float()
    difference = float((after - before).abs().max() / before.abs().max().clamp_min(1e-12))
    if not difference <= _TOLERANCE:
        raise CheckpointError(
            f"The merged model's logits differ from the adapted one's by {difference:.1e} of the largest logit; at "
            f"most {_TOLERANCE:.0e} is rounding. The adapter cannot be merged: serve it as it is."
        )
    return merged, difference


def _require_free(out: Path, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise ConfigError(f"{out} exists. Choose another folder, or replace it with --overwrite.")
    if not (out / "config.json").is_file():
        raise ConfigError(f"{out} is no exported model, so it is not replaced. Choose another folder.")


def _prepare_generation(model: Any, tokenizer: Any) -> list[int]:
    """Let ``model.generate`` stop where our own engine does, and sample as ``/generate`` does by default."""
    config = model.generation_config
    ends = config.eos_token_id
    renderer = Renderer(tokenizer, stop_ids=ends if isinstance(ends, list) else [] if ends is None else [ends])
    stop_ids = sorted(renderer.stop_ids)
    config.eos_token_id = stop_ids
    if config.pad_token_id is None:
        config.pad_token_id = stop_ids[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    config.do_sample, config.temperature, config.max_new_tokens = True, 0.7, 512
    return stop_ids
