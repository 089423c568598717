"""What runs of TRL's trainers on preference pairs have in common: options, checkpoints, numbers, the final folder."""

from __future__ import annotations

import contextlib
import hashlib
import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trajgym.errors import ConfigError, TrainingError
from trajgym.trainers.data_kept import keep_data
from trajgym.trainers.data_rows import record
from trajgym.trainers.interrupt import Interrupt, Interrupted
from trajgym.trainers.preference_config import PreferenceOptions
from trajgym.trainers.preferences import PreferencePair
from trajgym.trainers.runfolder import RunFolder, storage_errors
from trajgym.trainers.step_watch import StepWatch
from trajgym.trainers.writers import Writer, make_writers
from trajgym.types import to_json

__all__ = [
    "RunWatch",
    "check_same_pairs",
    "finished_folder",
    "keep_pairs",
    "pairs_digest",
    "quiet_libraries",
    "trl_options",
    "whole_model",
]

_SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
_DROPPED = ("num_tokens", "total_flos", "train_loss", "train_runtime")
_PRINTED = {"loss": "loss", "accuracy": "accuracy", "margin": "margin", "grad_norm": "grad"}


def trl_options(config: PreferenceOptions, folder: RunFolder, device: torch.device) -> dict[str, Any]:
    """Return the arguments that both of TRL's configurations take.

    Args:
        config: All options.
        folder: The run's folder; nothing is written there by TRL itself.
        device: Where to train.
    """
    return {
        "output_dir": str(folder.path),
        "per_device_train_batch_size": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation,
        "num_train_epochs": config.epochs,
        "learning_rate": config.learning_rate,
        "warmup_steps": config.warmup_ratio,
        "lr_scheduler_type": _SCHEDULES[config.lr_schedule],
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "gradient_checkpointing": config.gradient_checkpointing,
        "bf16": config.dtype == "bfloat16",
        "seed": config.seed,
        "max_length": None,  # our rows have their length already
        "use_cpu": device.type == "cpu",
        "dataloader_pin_memory": device.type != "cpu",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",  # RunWatch says when
        "report_to": "none",
        "disable_tqdm": True,
    }


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep to themselves what TRL, transformers and peft tell one another about names that will go."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


class RunWatch(StepWatch):
    """Follows a run of transformers' trainer: numbers, checkpoints, Ctrl-C, steps that are none.

    Args:
        config: All options.
        folder: The run's folder.
        interrupt: Asked between steps.
        digest: Of the pairs, from :func:`pairs_digest`.
        names: TRL's names of metrics to ours; those that are missing keep theirs.
    """

    def __init__(
        self,
        config: PreferenceOptions,
        folder: RunFolder,
        interrupt: Interrupt,
        *,
        digest: str,
        names: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__("Look at the pairs, lower learning_rate, or take float32 as dtype.")
        self._config, self._folder, self._interrupt, self._names = config, folder, interrupt, names or {}
        self._digest = digest
        self._writers: Sequence[Writer] = ()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know."""
        return {"skipped": self.guard.in_a_row, "pairs": self._digest}

    def saved(self, checkpoint: Path) -> None:
        """Tell the writers of a finished checkpoint."""
        for writer in self._writers:
            writer.saved(checkpoint)

    def run(self, trainer: Any, weights: Path | None, state: Mapping[str, Any]) -> None:
        """Let a trainer take its steps, from a checkpoint on if there is one.

        Args:
            trainer: One of :mod:`trajgym.trainers.preference_trainers`.
            weights: Model folder of the checkpoint to go on from; ``None`` to begin.
            state: What was saved with it.

        Raises:
            TrainingError: When an update cannot go on.
            Interrupted: After Ctrl-C; the last finished step was saved.
        """
        if state:
            self.guard.in_a_row = int(state["watch"]["skipped"])
        done = False
        try:
            with quiet_libraries():
                trainer.go(weights, state)
            done = self.step == self.total
        finally:
            for writer in self._writers:
                writer.close(self._folder.complete()[-1] if done else None)
        if not done:
            raise Interrupted(
                f"Stopped after {self.step} of {self.total} steps; saved in {self._folder.path}. Go on with the same "
                "command and --resume."
            )

    def begin(self) -> None:
        """Open the writers."""
        self._writers = make_writers(self._config.monitors, self._folder, first=self.step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say what is to be done after this step."""
        self.step = step = state.global_step
        stop = self._interrupt.requested
        control.should_training_stop = control.should_training_stop or stop
        control.should_save = stop or step == self.total or step % self._config.save_every == 0

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        """Write a step's numbers."""
        if "loss" not in logs:
            return
        row: dict[str, Any] = {"update": state.global_step}
        row |= {self._names.get(k, k): v for k, v in logs.items() if k not in _DROPPED}
        row |= {"skipped_steps": self.guard.skipped, "time/update": time.perf_counter() - self.start}
        self._folder.log(row)
        for writer in self._writers:
            writer.log(row, state.global_step)
        if not math.isfinite(row["loss"]) and not self.guard.skipped:
            raise TrainingError(f"The loss of step {state.global_step} is {row['loss']}. Lower learning_rate.")
        if state.global_step % self._config.log_every == 0 or state.global_step in (1, self.total):
            shown = " | ".join(f"{_PRINTED[k]} {row[k]:.3f}" for k in _PRINTED if k in row)
            print(f"  step {state.global_step}/{self.total} | {shown}", flush=True)


def pairs_digest(pairs: Sequence[PreferencePair]) -> str:
    """Return a text that is the same for the same pairs in the same order."""
    return hashlib.blake2b(repr(list(pairs)).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def check_same_pairs(state: Mapping[str, Any], pairs: Sequence[PreferencePair]) -> None:
    """Refuse to go on with other pairs than those that a run began with.

    Args:
        state: Of the checkpoint to go on from; empty for a run that begins.
        pairs: What it would go on with.

    Raises:
        ConfigError: When they are not the same.
    """
    if state and state["watch"]["pairs"] != pairs_digest(pairs):
        raise ConfigError(
            f"Cannot resume with other pairs than the run began with: these are {len(pairs)}, and not all of them the "
            "same. Bring back the file, or start a new run."
        )


def keep_pairs(run: RunFolder, pairs: Sequence[PreferencePair]) -> None:
    """Write down which pairs a run learns from and is measured on, in ``data.json``.

    Raises:
        StorageError: When it cannot be written.
    """
    keep_data(run.path, record("preference pairs", [to_json(pair) for pair in pairs]))


def whole_model(model: Any, dtype: str) -> Any:
    """Return a trained model without adapters, which are merged, in its final format."""
    merged = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
    return merged.to(getattr(torch, dtype))


def finished_folder(run: RunFolder, fill: Callable[[Path], None]) -> Path:
    """Return the run's ``model/``, which appears only when ``fill(folder)`` has written it."""
    final, partial = run.path / "model", run.path / "model.partial"
    with storage_errors(run.path), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of tied weights, which are saved once
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            fill(partial)
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return final
