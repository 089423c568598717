"""TRL's SFTTrainer as this project uses it: checkpoints of the run folder, numbers of the monitor, safe steps.

TRL gives the loss, packing, the optimiser and the loop. Its own checkpoints are written file by file under their final
name, so that a kill can leave half of one; ours appear under their name when they are complete.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from transformers import PrinterCallback
from trl import SFTConfig as TRLConfig
from trl import SFTTrainer

from trajgym.trainers.runfolder import RunFolder
from trajgym.trainers.sft_config import SFTConfig
from trajgym.trainers.sft_head import add_chosen_head
from trajgym.trainers.sft_watch import Watch

__all__ = ["RunSFTTrainer", "make_trainer"]

Rows = Sequence[Mapping[str, Sequence[int]]]

_SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
_RNG, _STATE = "rng_state.pth", "trainer_state.json"  # as transformers calls them in a checkpoint


def make_trainer(
    config: SFTConfig,
    model: Any,
    tokenizer: Any,
    train: Rows,
    held_out: Rows,
    *,
    device: torch.device,
    folder: RunFolder,
    watch: Watch,
) -> RunSFTTrainer:
    """Return TRL's trainer with the run's options.

    Args:
        config: All options.
        model: In the format in which it is trained, with its adapters where it has some.
        tokenizer: Saved with the model.
        train: Rows ``{input_ids, completion_mask}``.
        held_out: Such rows for ``eval_loss``, or none.
        device: Where to train.
        folder: Takes the checkpoints.
        watch: Takes the numbers, and says when to save, to evaluate and to stop.
    """
    disable_progress_bars()
    arguments = TRLConfig(
        output_dir=str(folder.path),
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=config.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation,
        num_train_epochs=config.epochs,
        learning_rate=config.learning_rate,
        warmup_steps=config.warmup_ratio,
        lr_scheduler_type=_SCHEDULES[config.lr_schedule],
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        activation_checkpointing=config.gradient_checkpointing,
        bf16=config.dtype == "bfloat16",
        seed=config.seed,
        packing=config.packing,
        max_length=config.max_length if config.packing else None,
        completion_only_loss=True,
        use_cpu=device.type == "cpu",
        dataloader_pin_memory=device.type != "cpu",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",  # Watch says when
        report_to="none",
        disable_tqdm=True,
    )
    if device.type == "cuda":  # transformers takes the first one, and all of them for nn.DataParallel
        arguments._n_gpu = 1
        torch.cuda.set_device(device)
    trainer = RunSFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list([dict(row) for row in train]),
        eval_dataset=Dataset.from_list([dict(row) for row in held_out]) if held_out else None,
        processing_class=tokenizer,
        callbacks=[watch],
    )
    if device.type != "cuda":
        add_chosen_head(trainer.model)
    trainer.remove_callback(PrinterCallback)
    trainer.folder, trainer.watch = folder, watch
    return trainer


class RunSFTTrainer(SFTTrainer):  # type: ignore[misc]  # TRL carries no types
    """Writes checkpoints into the run folder, and goes on from them."""

    folder: RunFolder
    watch: Watch

    def go(self, weights: Path | None, state: Mapping[str, Any]) -> None:
        """Train to the end, or until the watch says stop.

        Args:
            weights: Model folder of the checkpoint to go on from; ``None`` to begin.
            state: What was saved with it.
        """
        if weights is None:
            self.train()
            return
        with _unpacked(weights, state) as checkpoint:
            self.train(resume_from_checkpoint=str(checkpoint))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.state.log_history.clear()  # metrics.jsonl has it
        with tempfile.TemporaryDirectory() as scratch:
            self._save_rng_state(scratch)
            self.state.save_to_json(str(Path(scratch, _STATE)))
            files = {name: Path(scratch, name).read_bytes() for name in (_RNG, _STATE)}
        state = {
            "update": self.state.global_step,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.lr_scheduler.state_dict(),
            "watch": self.watch.state_dict(),
            "files": {name: torch.frombuffer(bytearray(text), dtype=torch.uint8) for name, text in files.items()},
        }
        self.folder.save(self.state.global_step, self.model, self.processing_class, state)
        self.watch.saved(self.folder.complete()[-1])


@contextmanager
def _unpacked(weights: Path, state: Mapping[str, Any]) -> Iterator[Path]:
    """Give a checkpoint as transformers reads one."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for file in weights.iterdir():
            (folder / file.name).symlink_to(file.resolve())
        for name, text in state["files"].items():
            (folder / name).write_bytes(text.numpy().tobytes())
        torch.save(state["optimizer"], folder / "optimizer.pt")
        torch.save(state["scheduler"], folder / "scheduler.pt")
        yield folder
