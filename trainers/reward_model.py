"""Reward models: learn from preference pairs to score texts, so that a policy can be trained on the scores.

The loss is Bradley and Terry's, −E log σ(r(x, y_w) − r(x, y_l)); TRL's trainer does the steps. The finished folder is a
reward (:func:`trajgym.rewards.learned.learned_reward`). It reads a question and the policy's own words in all turns, in
training as in use; what tools answered is not shown.
"""

from __future__ import annotations

import json
import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trajgym.errors import ConfigError, DataError
from trajgym.policies import tiny_path
from trajgym.rewards.learned import FACTS, LearnedReward, reward_tokens
from trajgym.trainers.interrupt import Interrupt
from trajgym.trainers.models import pick_device
from trajgym.trainers.preference_checks import PairReport, checked_pairs
from trajgym.trainers.preference_config import RewardModelConfig
from trajgym.trainers.preference_run import (
    RunWatch,
    check_same_pairs,
    finished_folder,
    keep_pairs,
    pairs_digest,
    whole_model,
)
from trajgym.trainers.preference_sources import load_pairs
from trajgym.trainers.preferences import PreferencePair, split_pairs, write_pairs
from trajgym.trainers.reward_report import RewardReport, reward_report
from trajgym.trainers.runfolder import RunFolder, storage_errors
from trajgym.trainers.trl_version import require_trl
from trajgym.trainers.writers import check_writers

__all__ = ["check_length", "measure_reward", "train_reward_model"]

_NAMES = {"mean_reward": "reward"}


def train_reward_model(
    config: RewardModelConfig, *, pairs: Sequence[PreferencePair] | None = None, name: str = "reward-model"
) -> Path:
    """Train a reward model and return the run's folder.

    The folder holds the finished model under ``model`` with adapters merged, ``report.json`` (the pairs, and how the
    scores fit pairs that were held out) and ``held_out.jsonl`` (those pairs).

    Args:
        config: All options.
        pairs: What to learn from, instead of what ``config.pairs`` names.
        name: Begins the name of the run folder when ``config.name`` is unset.

    Raises:
        ConfigError, DataError, CheckpointError: Before anything is computed or written.
        StorageError, TrainingError: During the run; checkpoints written so far are intact.
        Interrupted: After Ctrl-C; the last finished step was saved.
    """
    require_trl()
    check_writers(config.monitors)
    device = pick_device(config.device)
    if pairs is None:
        pairs = load_pairs(config.pairs, most_per_task=config.most_per_task, seed=config.seed)
    kept, found = checked_pairs(pairs)
    train, held_out = split_pairs(kept, config.held_out, seed=config.seed)
    model, tokenizer = _load(config, device)
    rows = _rows(config, tokenizer, train)

    folder = RunFolder(config, name)  # after everything that can be wrong with the options
    weights, state = folder.load() if config.resume else (None, {})
    check_same_pairs(state, kept)
    keep_pairs(folder, kept)
    print(f"{len(rows)} pairs to learn from, {len(held_out)} held out, of {found.given}.", flush=True)
    for warning in found.warnings:
        print(f"  ! Of the pairs, {warning}.", flush=True)
    from trajgym.trainers.preference_trainers import reward_trainer

    with Interrupt() as interrupt:
        watch = RunWatch(config, folder, interrupt, digest=pairs_digest(kept), names=_NAMES)
        trainer = reward_trainer(config, model, tokenizer, rows, device=device, folder=folder, watch=watch)
        watch.run(trainer, weights, state)
    _publish(config, trainer.model, tokenizer, folder, train, held_out, found)
    return folder.path


def measure_reward(model: LearnedReward, pairs: Sequence[PreferencePair]) -> RewardReport:
    """Return how a reward model's scores fit pairs.

    Args:
        model: The model; of two scores, the scale changes the distance, not the order.
        pairs: Pairs that it was not trained on.
    """
    chosen = model([(p.question, p.words("chosen")) for p in pairs])
    rejected = model([(p.question, p.words("rejected")) for p in pairs])
    return reward_report(pairs, chosen, rejected)


def check_length(config: RewardModelConfig, model: Any) -> None:
    """Refuse rows that are longer than what a model can read.

    Args:
        config: All options.
        model: The configuration of the model that they name.

    Raises:
        ConfigError: When ``max_length`` is more.
    """
    positions = getattr(model.get_text_config(), "max_position_embeddings", None)
    if positions is not None and config.max_length > positions:
        raise ConfigError(f"max_length ({config.max_length}) exceeds the {positions} positions of {config.model!r}.")


def _load(config: RewardModelConfig, device: torch.device) -> tuple[Any, Any]:
    """Return the model with one output on top, drawn from the seed unless it was trained already, and the tokenizer."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed
    from transformers.utils.logging import disable_progress_bar
    from trl.trainer.reward_trainer import suppress_seqcls_warning

    disable_progress_bar()
    name = config.model
    source = str(tiny_path()) if name == "tiny" else str(Path(name).expanduser()) if name.startswith("~") else name
    if source.startswith((".", "/")) and not Path(source).is_dir():
        raise ConfigError(f"model: there is no folder {source}. Give a folder, 'tiny', or a Hugging Face hub id.")
    # Weights that are trained stay in float32: steps are smaller than bfloat16 can tell apart.
    dtype = getattr(torch, config.dtype if config.use_lora else "float32")
    set_seed(config.seed)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        with suppress_seqcls_warning():
            model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1, dtype=dtype)
    except Exception as error:  # the libraries below raise a dozen types; the user needs one
        raise ConfigError(
            f"Cannot load model {config.model!r} to score texts: {str(error).splitlines()[0]} Allowed: 'tiny', a "
            "folder with config.json, weights and tokenizer, or a Hugging Face hub id that this machine can reach."
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    check_length(config, model.config)
    return (_with_adapters(config, model) if config.use_lora else model).to(device), tokenizer


def _with_adapters(config: RewardModelConfig, model: Any) -> Any:
    """Return the model with trainable adapters; the output on top is trained as a whole."""
    from peft import LoraConfig, get_peft_model

    names = {n.rsplit(".", 1)[-1] for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    missing = [target for target in config.lora_targets if target not in names]
    if missing:
        raise ConfigError(f"lora_targets {missing} are not layers of this model. It has: {', '.join(sorted(names))}.")
    adapter = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=list(config.lora_targets),
        lora_dropout=0.0,
        task_type="SEQ_CLS",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name that v6 will drop
        return get_peft_model(model, adapter)


def _rows(config: RewardModelConfig, tokenizer: Any, pairs: Sequence[PreferencePair]) -> list[dict[str, Any]]:
    rows = []
    for pair in pairs:
        chosen, rejected = (
            reward_tokens(tokenizer, pair.question, words, most=config.max_length)
            for words in (pair.words("chosen"), pair.words("rejected"))
        )
        if chosen == rejected:
            continue  # they differ only in what max_length leaves out
        if config.use_margin and pair.margin is None:
            raise DataError(f"use_margin needs a margin in every pair; the one about {pair.question!r:.60} has none.")
        margin = {"margin": float(pair.margin or 0.0)} if config.use_margin else {}
        rows.append({"chosen_ids": chosen, "rejected_ids": rejected, **margin})
    if not rows:
        raise DataError(f"All {len(pairs)} pairs are equal within max_length ({config.max_length}) tokens. Raise it.")
    return rows


def _publish(
    config: RewardModelConfig,
    model: Any,
    tokenizer: Any,
    folder: RunFolder,
    train: Sequence[PreferencePair],
    held_out: Sequence[PreferencePair],
    found: PairReport,
) -> None:
    """Write the finished model, and measure it as it will be used: read back from its folder."""
    reports: dict[str, Any] = {"pairs": found.to_json()}

    def fill(target: Path) -> None:
        whole_model(model, config.dtype).save_pretrained(target)
        tokenizer.save_pretrained(target)
        facts: dict[str, float] = {"max_length": config.max_length}
        (target / FACTS).write_text(json.dumps(facts), encoding="utf-8")
        scorer = LearnedReward(target, device=config.device, batch_size=config.batch_size, scale="raw")
        sides = [(p.question, p.words(side)) for p in train for side in ("chosen", "rejected")]
        facts["mean_score"] = statistics.fmean(scorer(sides))
        (target / FACTS).write_text(json.dumps(facts), encoding="utf-8")
        reports["trained"] = measure_reward(scorer, train).to_json()
        if held_out:
            measured = measure_reward(scorer, held_out)
            reports["held_out"] = measured.to_json()
            low, high = measured.accuracy.interval
            print(f"Held out: {measured.accuracy.value:.1%} of {len(held_out)} pairs right ({low:.0%} … {high:.0%}).")
            for warning in measured.warnings:
                print(f"  ! {warning[0].upper()}{warning[1:]}.", flush=True)

    finished_folder(folder, fill)
    with storage_errors(folder.path):
        write_pairs(folder.path / "held_out.jsonl", held_out)
        (folder.path / "report.json").write_text(json.dumps(reports, indent=1) + "\n", encoding="utf-8")
