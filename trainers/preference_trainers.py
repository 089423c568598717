"""TRL's trainers of reward models and of DPO as this project uses them: our rows, our checkpoints.

Both take rows that are tokens already, so that nothing a policy wrote can become a control token, and DPO counts what
the policy wrote alone: TRL's own rows would count what tools answered as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from torch.nn.utils.rnn import pad_sequence
from transformers import PrinterCallback
from trl import DPOConfig as TRLDPOConfig
from trl import DPOTrainer, RewardConfig, RewardTrainer

from trajgym.trainers.preference_config import DPOConfig, RewardModelConfig
from trajgym.trainers.preference_run import RunWatch, quiet_libraries, trl_options
from trajgym.trainers.runfolder import RunFolder
from trajgym.trainers.sft_trainer import RunSFTTrainer

__all__ = ["MaskedPairs", "RunDPOTrainer", "RunRewardTrainer", "dpo_trainer", "reward_trainer"]

Rows = Sequence[Mapping[str, Any]]


class RunRewardTrainer(RewardTrainer):  # type: ignore[misc]  # TRL carries no types
    """Writes checkpoints into the run folder and goes on from them, like supervised training."""

    folder: RunFolder
    watch: RunWatch
    go = RunSFTTrainer.go
    _save_checkpoint = RunSFTTrainer._save_checkpoint


class RunDPOTrainer(DPOTrainer):  # type: ignore[misc]
    """Takes rows of tokens with a mask, and writes checkpoints like :class:`RunRewardTrainer`."""

    folder: RunFolder
    watch: RunWatch
    go = RunSFTTrainer.go
    _save_checkpoint = RunSFTTrainer._save_checkpoint

    def _prepare_dataset(self, dataset: Dataset, *args: Any) -> Dataset:
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = [f"{side}_{what}" for side in ("chosen", "rejected") for what in ("ids", "mask")]


@dataclass(frozen=True)
class MaskedPairs:
    """Makes a batch of rows ``{chosen_ids, chosen_mask, rejected_ids, rejected_mask}``, all chosen ones first.

    Args:
        pad_id: Fills up rows, on the right, where causal attention keeps every real token from seeing it.
    """

    pad_id: int

    def __call__(self, rows: Rows) -> dict[str, torch.Tensor]:
        """Return ``input_ids``, ``attention_mask`` and ``completion_mask``. Shape: (2N, longest) each."""
        sides = [(row[f"{side}_ids"], row[f"{side}_mask"]) for side in ("chosen", "rejected") for row in rows]
        ids = [torch.tensor(ids) for ids, _ in sides]
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.pad_id),
            "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
            "completion_mask": pad_sequence([torch.tensor(mask) for _, mask in sides], batch_first=True),
        }


def reward_trainer(
    config: RewardModelConfig,
    model: Any,
    tokenizer: Any,
    rows: Rows,
    *,
    device: torch.device,
    folder: RunFolder,
    watch: RunWatch,
) -> RunRewardTrainer:
    """Return TRL's trainer of reward models with the run's options.

    Args:
        config: All options.
        model: Scores sequences, with its adapters where it has some.
        tokenizer: Saved with the model.
        rows: ``{chosen_ids, rejected_ids}``, with ``margin`` if it is used.
        device: Where to train.
        folder: Takes the checkpoints.
        watch: Takes the numbers.
    """
    with quiet_libraries():
        arguments = RewardConfig(
            **trl_options(config, folder, device),
            center_rewards_coefficient=config.center or None,
            disable_dropout=True,
        )
        trainer = RunRewardTrainer(
            model=model,
            args=_on(device, arguments),
            train_dataset=_dataset(rows),
            processing_class=tokenizer,
            callbacks=[watch],
        )
    return _ready(trainer, folder, watch)  # type: ignore[no-any-return]


def dpo_trainer(
    config: DPOConfig,
    model: Any,
    tokenizer: Any,
    rows: Rows,
    *,
    reference: Any,
    device: torch.device,
    folder: RunFolder,
    watch: RunWatch,
) -> RunDPOTrainer:
    """Return TRL's DPO trainer with the run's options.

    Args:
        config: All options.
        model: The policy, with its adapters where it has some.
        tokenizer: Saved with the model.
        rows: ``{chosen_ids, chosen_mask, rejected_ids, rejected_mask}``; a mask is 1 where the policy wrote.
        reference: The frozen model to compare with; ``None`` where the policy without its adapters is.
        device: Where to train.
        folder: Takes the checkpoints.
        watch: Takes the numbers.
    """
    pad = tokenizer.pad_token_id
    with quiet_libraries():
        arguments = TRLDPOConfig(
            **trl_options(config, folder, device), beta=config.beta, loss_type=[config.loss], disable_dropout=True
        )
        trainer = RunDPOTrainer(
            model=model,
            ref_model=reference,
            args=_on(device, arguments),
            data_collator=MaskedPairs(tokenizer.eos_token_id if pad is None else pad),
            train_dataset=_dataset(rows),
            processing_class=tokenizer,
            callbacks=[watch],
        )
    return _ready(trainer, folder, watch)  # type: ignore[no-any-return]


def _dataset(rows: Rows) -> Dataset:
    disable_progress_bars()
    return Dataset.from_list([dict(row) for row in rows])


def _on(device: torch.device, arguments: Any) -> Any:
    if device.type == "cuda":  # transformers takes the first one, and all of them for nn.DataParallel
        arguments._n_gpu = 1
        torch.cuda.set_device(device)
    return arguments


def _ready(trainer: Any, folder: RunFolder, watch: RunWatch) -> Any:
    trainer.remove_callback(PrinterCallback)
    trainer.folder, trainer.watch = folder, watch
    return trainer
