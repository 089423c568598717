"""The run folder: everything a run leaves behind, written so that a crash never harms what was there.

``config.yaml`` (effective values) · ``metrics.jsonl`` · TensorBoard events · ``trajectories/`` · ``checkpoints/``
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError

from trajgym.errors import CheckpointError, ConfigError, StorageError
from trajgym.trainers.config import GRPOConfig

__all__ = ["CheckpointWarning", "RunFolder", "storage_errors"]

_MARKER = ".trajgym-run"  # what makes a folder ours to overwrite

# Options that may differ between a run and its continuation.
_FREE = {"resume", "overwrite", "output_dir", "name", "updates", "epochs", "save_every", "keep_checkpoints"}
_FREE |= {"log_trajectories", "monitors", "progress", "env_threads", "fault_alarm", "fault_limit", "protocol_mismatch"}
_FREE |= {"rank_deadline"}


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn a failure to write below ``path`` into one clear error."""
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
        raise StorageError(
            f"Cannot write to {path}: {reason}. What was saved before is intact; make room or choose another "
            "output_dir, then go on with --resume."
        ) from error


class CheckpointWarning(UserWarning):
    """A checkpoint can be used, but what follows may differ from an uninterrupted run."""


class RunFolder:
    """One run's folder.

    Args:
        config: The run's options; ``output_dir``, ``name``, ``resume`` and ``overwrite`` decide what happens.
        default_name: Name of the folder when the options give none.
        writes: Whether to make the folder and write to it; of several processes, one does, before the others look.

    Raises:
        ConfigError: When the folder holds a run and neither ``resume`` nor ``overwrite`` is set, or the options
            differ from those of the run that is to be resumed.
        CheckpointError: When there is nothing to resume.
        StorageError: When it cannot be written.
    """

    def __init__(self, config: GRPOConfig, default_name: str, *, writes: bool = True) -> None:
        name = config.name or f"{default_name}-seed{config.seed}"
        if name in (".", "..") or Path(name).name != name:
            raise ConfigError(f"name must be the name of one folder inside output_dir, got {name!r}.")
        self.path = config.output_dir.expanduser() / name
        self.checkpoints = self.path / "checkpoints"
        self.metrics_path = self.path / "metrics.jsonl"
        self._config = config
        self._writes = writes
        if not writes:
            return
        stored = self.path / "config.yaml"
        marker = self.path / _MARKER
        if not marker.exists() and self.path.is_dir() and any(self.path.iterdir()):
            raise ConfigError(f"{self.path} is not empty and not a run of ours; choose another --name.")
        if config.resume:
            if not stored.is_file():
                raise CheckpointError(f"There is no run to resume in {self.path}. Start it without resume.")
            self._same_options(stored)
        elif stored.exists() and not config.overwrite:
            raise ConfigError(
                f"{self.path} holds a run already. Go on with --resume, replace it with --overwrite, or "
                "choose another --name."
            )
        with storage_errors(self.path):
            if config.overwrite and marker.exists():
                shutil.rmtree(self.path)  # only ever a folder that this class has made and marked
            for folder in (self.checkpoints, self.path / "trajectories"):
                folder.mkdir(parents=True, exist_ok=True)
            marker.touch()
            for leftover in self.checkpoints.glob("*.partial"):
                shutil.rmtree(leftover, ignore_errors=True)
            fresh = stored.with_suffix(".partial")
            fresh.write_text(config.dump(), encoding="utf-8")
            fresh.replace(stored)

    def save(self, update: int, model: Any, tokenizer: Any, state: dict[str, Any]) -> Path:
        """Write a checkpoint after ``update`` updates; it appears under its name only when it is complete.

        Args:
            update: Number of finished updates.
            model: Saved in Hugging Face's format (the adapter alone for LoRA).
            tokenizer: Saved beside it.
            state: Everything else that is needed to go on.
        """
        final = self.checkpoints / f"update-{update:06d}"
        partial = final.with_suffix(".partial")
        with storage_errors(self.path):
            try:
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
                model.save_pretrained(partial / "model")
                tokenizer.save_pretrained(partial / "model")
                torch.save({**state, "versions": _versions()}, partial / "trainer.pt")
                _sync(partial)
                shutil.rmtree(final, ignore_errors=True)
                partial.rename(final)
                _sync(self.checkpoints)
            except (RuntimeError, SafetensorError) as error:  # how torch and safetensors report a failed write
                full = any(words in str(error).lower() for words in ("no space", "enough space"))
                raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            for old in self.complete()[: -self._config.keep_checkpoints]:
                shutil.rmtree(old, ignore_errors=True)
        return final

    def complete(self) -> list[Path]:
        """Return the finished checkpoints, oldest first."""
        found = (p for p in self.checkpoints.glob("update-*") if p.suffix != ".partial")
        return sorted(p for p in found if (p / "trainer.pt").is_file())

    def load(self) -> tuple[Path, dict[str, Any]]:
        """Return the newest checkpoint's model folder and state, and drop what was logged after it.

        Raises:
            CheckpointError: When there is none, or it cannot be read.
        """
        if not self.complete():
            raise CheckpointError(f"{self.checkpoints} holds no complete checkpoint. Start again with --overwrite.")
        newest = self.complete()[-1]
        try:
            state = torch.load(newest / "trainer.pt", map_location="cpu", weights_only=True)
        except Exception as error:
            raise CheckpointError(
                f"{newest}/trainer.pt is damaged ({type(error).__name__}). Remove that folder to use the one before."
            ) from error
        update = int(state["update"])
        before, now = state.get("versions", {}), _versions()
        changed = [f"{name} {old} → {now.get(name, 'none')}" for name, old in before.items() if now.get(name) != old]
        if changed:
            warnings.warn(
                f"{newest} was written with other versions ({', '.join(changed)}). The run goes on, but perhaps not "
                "with the very numbers it would have had.",
                CheckpointWarning,
                stacklevel=2,
            )
        if not self._writes:
            return newest / "model", state
        if self.metrics_path.exists():
            with storage_errors(self.path):
                lines = self.metrics_path.read_text(encoding="utf-8").split("\n")
                kept = [line for line in lines if _update_of(line) in range(1, update + 1)]
                self.metrics_path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        for file in (self.path / "trajectories").glob("update-*.jsonl"):
            if int(file.stem.removeprefix("update-")) > update:
                file.unlink()
        return newest / "model", state

    def log(self, metrics: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        with storage_errors(self.path), self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def history(self) -> list[dict[str, Any]]:
        """Return what was logged before, where the run is resumed."""
        if not self.metrics_path.exists():
            return []
        with storage_errors(self.path):
            lines = self.metrics_path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines if _update_of(line) >= 0]

    def _same_options(self, stored: Path) -> None:
        try:
            before = yaml.safe_load(stored.read_text(encoding="utf-8")) or {}
        except yaml.YAMLError as error:
            raise CheckpointError(f"{stored} is damaged: {error}") from error
        if not isinstance(before, dict) or not before:
            raise CheckpointError(f"{stored} holds no options; this is not a run that can be resumed.")
        now = self._config.plain()
        changed = [k for k, v in now.items() if k not in _FREE and k in before and before[k] != v]
        if changed:
            listed = ", ".join(f"{k}: {before[k]!r} before, {now[k]!r} now" for k in changed)
            raise ConfigError(
                f"Cannot resume {self.path} with other options ({listed}). Undo them, or start a new run."
            )


def _versions() -> dict[str, str]:
    """Return the versions that decide what numbers come out."""
    names = ("torch", "transformers", "peft", "accelerate", "trajgym")
    return {name: importlib.metadata.version(name) for name in names}


def _update_of(line: str) -> int:
    """Return the update a metrics line belongs to, or -1 for a line that a crash cut short."""
    try:
        return int(json.loads(line)["update"])
    except (ValueError, KeyError, TypeError):
        return -1


def _sync(folder: Path) -> None:
    """Make files durable before the rename that publishes them."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
