"""Supervised fine-tuning: imitate demonstrations, token by token, before anything is left to chance.

The loss is −Σ log π(y | x) / N over the N tokens that the assistant wrote, the end of each turn among them; what it was
given, prompts and observations, carries none. TRL's trainer does the steps; this file reads top to bottom what happens
before and after them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trajgym.errors import ConfigError
from trajgym.policies.hf import HFSampler
from trajgym.policies.llm import LLMPolicy
from trajgym.policies.render import Renderer
from trajgym.trainers.data_kept import keep_data
from trajgym.trainers.interrupt import Interrupt, Interrupted
from trajgym.trainers.models import add_lora, load_model, load_weights, pick_device
from trajgym.trainers.monitor import Monitor
from trajgym.trainers.runfolder import RunFolder, storage_errors
from trajgym.trainers.sft_config import SFTConfig, load_sft_config, sft_recipe_names
from trajgym.trainers.sft_rows import Rows, Sample, find_samples, make_rows, split_samples
from trajgym.trainers.trl_version import require_trl
from trajgym.trainers.writers import check_writers, make_writers

if TYPE_CHECKING:  # it needs the trainer of transformers, which takes seconds to import
    from trajgym.trainers.sft_watch import HeldOutLoss

__all__ = ["SFTConfig", "load_sft_config", "policy_of", "sft_recipe_names", "train_sft"]


def train_sft(
    config: SFTConfig,
    *,
    samples: Iterable[Sample] | None = None,
    name: str = "sft",
    on_held_out: HeldOutLoss | None = None,
) -> Path:
    """Fine-tune a model and return the run's folder.

    The folder holds the finished model under ``model``, whole and with adapters merged, which can be trained on with
    ``trajgym train --model FOLDER/model``; the checkpoints hold adapters alone.

    Args:
        config: All options.
        samples: What to imitate, instead of what ``config.dataset`` names; see
            :func:`trajgym.trainers.data.tokenized`.
        name: Begins the name of the run folder when ``config.name`` is unset; usually the recipe's.
        on_held_out: Told of each ``eval_loss``.

    Raises:
        ConfigError, DataError, TemplateError, CheckpointError: Before anything is computed or written.
        StorageError, TrainingError: During the run; checkpoints written so far are intact.
        Interrupted: After Ctrl-C; the last finished step was saved.
    """
    require_trl()
    check_writers(config.monitors)
    _require_alone()
    device = pick_device(config.device)
    # Weights that are trained stay in float32: steps are smaller than bfloat16 can tell apart.
    frozen_base = config.dtype if config.use_lora else "float32"
    model, tokenizer = load_model(config.model, dtype=frozen_base, device=device)
    policy = policy_of(config, model, tokenizer)
    found = find_samples(config, policy, tokenizer) if samples is None else split_samples(config, samples)
    rows = make_rows(config, policy.renderer, found)
    if config.packing:
        from trajgym.trainers.sft_packing import require_apart

        require_apart(model, rows.train, pad_id=policy.renderer.end_id)
    if config.use_lora:
        model = add_lora(
            model, rank=config.lora_rank, alpha=config.lora_alpha, targets=config.lora_targets, seed=config.seed
        )

    record = rows.record
    folder = RunFolder(config, name)  # after everything that can be wrong with the options
    weights: Path | None = None
    state: dict[str, Any] = {}
    if config.resume:
        weights, state = folder.load()
        _require_same(record, state)
        load_weights(model, weights, lora=config.use_lora)
    keep_data(folder.path, record)
    _run(
        config,
        model,
        tokenizer,
        rows,
        record,
        device=device,
        folder=folder,
        weights=weights,
        state=state,
        on_held_out=on_held_out,
    )
    _publish(config, model, tokenizer, folder.path)
    return folder.path


def _run(
    config: SFTConfig,
    model: Any,
    tokenizer: Any,
    rows: Rows,
    record: Mapping[str, Any],
    *,
    device: torch.device,
    folder: RunFolder,
    weights: Path | None,
    state: dict[str, Any],
    on_held_out: HeldOutLoss | None,
) -> None:
    """Take the steps."""
    from trajgym.trainers.sft_trainer import make_trainer
    from trajgym.trainers.sft_watch import Watch

    parameters = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)

    def open_monitor(total: int, first: int) -> Monitor:
        print(_said(record), f"Trains {trained:,} of {parameters:,} weights ({trained / parameters:.2%}).", flush=True)
        facts = {"model_parameters": parameters, **{k: record[k] for k in ("samples", "samples_available")}}
        return Monitor(
            folder,
            total=total,
            first=first,
            writers=make_writers(config.monitors, folder, first=first),
            epochs=max(1, round(config.epochs + 0.4999)),
            options=config.plain() | facts | {"device_memory": _memory(device), "progress": "line"},
            print_every=config.log_every,
        )

    with Interrupt() as interrupt:
        watch = Watch(
            config,
            open_monitor,
            interrupt,
            held_out=bool(rows.held_out),
            data=record["fingerprint"],
            on_held_out=on_held_out,
        )
        if state:
            watch.load_state_dict(state["watch"])
        trainer = make_trainer(
            config, model, tokenizer, rows.train, rows.held_out, device=device, folder=folder, watch=watch
        )
        done = False
        try:
            trainer.go(weights, state)
            done = watch.step == watch.total
        except Exception as error:
            if watch.monitor is not None:
                watch.monitor.explain(error)
            raise
        finally:
            if watch.monitor is not None:
                watch.monitor.close(folder.complete()[-1] if done else None)
    if not done:
        raise Interrupted(
            f"Stopped after {watch.step} of {watch.total} steps; saved in {folder.path}. "
            "Go on with the same command and --resume."
        )


def _said(record: Mapping[str, Any]) -> str:
    left_out = "".join(f"; left out: {count:,} {reason}" for reason, count in record["left_out"].items())
    return (
        f"{record['rows']:,} rows of {record['tokens']:,} tokens, {record['trained_tokens']:,} of them trained; "
        f"{record['held_out']:,} rows held out{left_out}."
    )


def _require_same(record: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    before, now = state["watch"]["data"], record["fingerprint"]
    if before != now:
        raise ConfigError(
            f"Cannot resume with other rows than the run began with: their fingerprint was {before} and is {now}. "
            "Bring back the data, or start a new run."
        )


def _publish(config: SFTConfig, model: Any, tokenizer: Any, folder: Path) -> None:
    """Write the finished model; it appears under its name only when it is complete."""
    if config.use_lora:
        model = model.float().merge_and_unload()  # in float32, so that W + (α/r)·BA is rounded once
    model = model.to(getattr(torch, config.dtype))
    partial, final = folder / "model.partial", folder / "model"
    with storage_errors(folder):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def policy_of(config: SFTConfig, model: Any, tokenizer: Any) -> LLMPolicy:
    """Return the policy that the model will be; nothing is sampled, but it knows in which form calls are written."""
    ends = model.generation_config.eos_token_id
    stop_ids = ends if isinstance(ends, list) else [] if ends is None else [ends]
    renderer = Renderer(tokenizer, thinking=config.thinking, stop_ids=stop_ids)
    limit = config.max_length
    return LLMPolicy(
        HFSampler(model, slots=1, max_length=limit, stop_ids=renderer.stop_ids),
        renderer,
        max_turn_tokens=limit,
        max_episode_tokens=limit,
        protocol_mismatch=config.protocol_mismatch,
    )


def _require_alone() -> None:
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count > 1:
        raise ConfigError(
            f"trajgym sft was launched as {count} processes; it runs as one, since its checkpoints and logs have one "
            "writer. Start it without accelerate or torchrun; gradient_accumulation gives larger batches."
        )


def _memory(device: torch.device) -> float | None:
    """Return the memory of a GPU (GiB); ``None`` for the CPU."""
    return torch.cuda.get_device_properties(device).total_memory / 2**30 if device.type == "cuda" else None
