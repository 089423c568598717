"""The run folder: everything a run leaves behind, written so that a crash never harms what was there.

``config.yaml`` (effective values) · ``metrics.jsonl`` · TensorBoard events · ``trajectories/`` · ``checkpoints/``
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import itertools
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError

from trajgym.errors import CheckpointError, ConfigError, DataError, StorageError, TrajgymError
from trajgym.evaluation.records import read_trajectories, to_parquet
from trajgym.trainers.checksums import damage, write_checksums
from trajgym.trainers.folder_lock import lock_folder
from trajgym.trainers.options import RunOptions
from trajgym.trainers.resume_options import Changes, changes

__all__ = ["CheckpointWarning", "RunFolder", "finished_checkpoints", "fitting", "storage_errors"]

_MARKER = ".trajgym-run"  # what makes a folder ours to overwrite; locked by the process that writes
_NUMBERED = re.compile(r"update-(\d{6,})")  # checkpoints and files of trajectories; no other name is ours
_MOST_NAME = 200  # bytes; file systems take 255, and names of files are made from it
_WORDS = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up"}


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn a failure to write below ``path`` into one clear error."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOENT and not path.exists():
            raise StorageError(
                f"Cannot write to {path}: it was removed or unmounted. Bring it back and go on with --resume, or start "
                "a new run."
            ) from error
        reason = _WORDS.get(error.errno or 0) or error.strerror or str(error)
        if error.filename is not None and Path(str(error.filename)) != path:
            reason += f" ({error.filename})"
        raise StorageError(
            f"Cannot write to {path}: {reason}. What was saved before is intact; make room or choose another "
            "output_dir, then go on with --resume."
        ) from error


@contextlib.contextmanager
def fitting(checkpoint: Path) -> Iterator[None]:
    """Turn whatever a state raises that is not this run's, or lacks something, into one clear error."""
    try:
        yield
    except TrajgymError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{checkpoint / 'trainer.pt'} does not fit this run ({type(error).__name__}: {error}). Remove "
            f"{checkpoint.name} to go on from the one before, or start again with --overwrite."
        ) from error


def finished_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a run's folder ``checkpoints``, oldest first; other names than ours do not count."""
    found = [p for p in folder.glob("update-*") if _NUMBERED.fullmatch(p.name) and p.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("update-")))


class CheckpointWarning(UserWarning):
    """A checkpoint can be used, but what follows may differ from an uninterrupted run."""


class RunFolder:
    """One run's folder.

    Args:
        config: The run's options; ``output_dir``, ``name``, ``resume`` and ``overwrite`` decide what happens.
        default_name: Name of the folder when the options give none.
        writes: Whether to make the folder and write to it; of several processes, one does, before the others look.
        compare: Tells which options may differ when a run is resumed.

    Raises:
        ConfigError: When the folder holds a run and neither ``resume`` nor ``overwrite`` is set, another process
            writes to it, or the options do not fit those of the run that is to be resumed.
        CheckpointError: When there is nothing to resume.
        StorageError: When it cannot be written.
    """

    def __init__(
        self,
        config: RunOptions,
        default_name: str,
        *,
        writes: bool = True,
        compare: Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], Changes] = changes,
    ) -> None:
        name = config.name or f"{default_name}-seed{config.seed}"
        if name in (".", "..") or Path(name).name != name or not name.isprintable() or len(name.encode()) > _MOST_NAME:
            raise ConfigError(
                f"name must be the name of one folder inside output_dir, of at most {_MOST_NAME} bytes and without "
                f"control characters, got {name!r}."
            )
        # Absolute: a tool that changes the working directory must not move the run.
        self.path = config.output_dir.expanduser().absolute() / name
        self.checkpoints = self.path / "checkpoints"
        self.metrics_path = self.path / "metrics.jsonl"
        self._config = config
        self._writes = writes
        self._told = 0  # lines that were meant for metrics.jsonl, whether or not there was room
        if not writes:
            return
        self._stored = stored = self.path / "config.yaml"
        self._marker = marker = self.path / _MARKER
        if not marker.exists() and self.path.is_dir() and any(self.path.iterdir()):
            raise ConfigError(f"{self.path} is not empty and not a run of ours; choose another --name.")
        if config.resume:
            if not stored.is_file():
                raise CheckpointError(f"There is no run to resume in {self.path}. Start it without resume.")
            self._same_options(stored, compare)
        elif stored.exists() and not config.overwrite:
            raise ConfigError(
                f"{self.path} holds a run already. Go on with --resume, replace it with --overwrite, or "
                "choose another --name."
            )
        with storage_errors(self.path):
            self._claim()
            if config.overwrite:
                self._clear()
            self._furnish()

    def _claim(self) -> None:
        """Mark the folder as ours, and let no other process write to it."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock_folder(self._marker, self)

    def _clear(self) -> None:
        """Remove everything but the mark: only ever from a folder that this class has made."""
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != self._marker:
                entry.unlink()

    def _furnish(self) -> None:
        """Make what belongs in the folder, and remove what a crash has left half done."""
        for folder in (self.checkpoints, self.path / "trajectories"):
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob("*.partial"):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        _replace(self._stored, self._config.dump())

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
                self._make_again_if_gone(update)
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
                model.save_pretrained(partial / "model")
                tokenizer.save_pretrained(partial / "model")
                torch.save({**state, "versions": _versions(), "told": self._told}, partial / "trainer.pt")
                write_checksums(partial)
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
        return finished_checkpoints(self.checkpoints)

    def load(self) -> tuple[Path, dict[str, Any]]:
        """Return the newest checkpoint's model folder and state, and drop what was logged after it.

        Warns:
            CheckpointWarning: When the run goes on, but not as if nothing had happened.

        Raises:
            CheckpointError: When there is none, or it is not as it was written; names the newest one that is.
        """
        if not self.complete():
            raise CheckpointError(f"{self.checkpoints} holds no complete checkpoint. Start again with --overwrite.")
        newest = self.complete()[-1]
        wrong = damage(newest)
        if wrong:
            raise CheckpointError(f"{newest} is damaged: {wrong}. {self._way_out()}")
        try:
            state = torch.load(newest / "trainer.pt", map_location="cpu", weights_only=True)
            update = int(state["update"])
        except Exception as error:
            raise CheckpointError(
                f"{newest} is damaged: trainer.pt cannot be read ({type(error).__name__}). {self._way_out()}"
            ) from error
        if wrong is not None:
            _warn(f"{newest} has no checksums; whether it is as it was written cannot be known.")
        before, now = state.get("versions", {}), _versions()
        changed = [f"{name} {old} → {now.get(name, 'none')}" for name, old in before.items() if now.get(name) != old]
        if changed:
            _warn(
                f"{newest} was written with other versions ({', '.join(changed)}). The run goes on, but perhaps not "
                "with the very numbers it would have had."
            )
        if self._writes:
            with storage_errors(self.path):
                self._go_back_to(update, int(state.get("told", 0)))
        return newest / "model", state

    def log(self, metrics: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``, all of it or nothing."""
        self._told += 1
        line = (json.dumps(metrics) + "\n").encode()
        with storage_errors(self.path), self.metrics_path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                written = file.write(line)
                if written != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(size)
                raise

    def history(self) -> list[dict[str, Any]]:
        """Return what was logged before, where the run is resumed."""
        with storage_errors(self.path):
            lines = self._lines()
        return [json.loads(line) for line in lines if _update_of(line) >= 0]

    def gather_trajectories(self) -> None:
        """Put what was played in one table, ``trajectories/all.parquet``.

        Warns:
            CheckpointWarning: Of files that cannot be read, which are left out: the run itself is over and saved.
        """
        folder = self.path / "trajectories"
        files = sorted(path for path in folder.glob("update-*.jsonl") if _NUMBERED.fullmatch(path.stem))
        with storage_errors(self.path):
            try:
                to_parquet(files, folder / "all.parquet")
            except (TypeError, ValueError):
                bad = [path for path in files if not _holds_trajectories(path)]
                _warn(f"all.parquet lacks {', '.join(path.name for path in bad)} in {folder}: they cannot be read.")
                to_parquet([path for path in files if path not in bad], folder / "all.parquet")

    def _same_options(self, stored: Path, compare: Callable[..., Changes]) -> None:
        try:
            before = yaml.safe_load(stored.read_text(encoding="utf-8")) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise CheckpointError(f"{stored} is damaged: {error}") from error
        if not isinstance(before, dict) or not before:
            raise CheckpointError(f"{stored} holds no options; this is not a run that can be resumed.")
        kind: Any = type(self._config)
        found = compare(before, self._config.plain(), kind.model_construct().plain())
        if found.refused:
            raise ConfigError(
                f"Cannot resume {self.path} with other options ({', '.join(found.refused)}). Undo them, or start a new "
                f"run, such as --name {self._next_name()}."
            )
        if found.noted:
            _warn(
                f"{self.path} goes on with other options ({', '.join(found.noted)}): from here on it is not the run it "
                "would have been."
            )

    def _next_name(self) -> str:
        """Return a name that no folder beside this one has."""
        stem = re.sub(r"-\d+$", "", self.path.name)
        return next(n for i in itertools.count(2) if not self.path.with_name(n := f"{stem}-{i}").exists())

    def _way_out(self) -> str:
        """Say what to do about a newest checkpoint that cannot be used."""
        older = self.complete()[:-1]
        whole = [path for path in older if not damage(path)]
        if not whole:
            return f"No other one of {len(older)} is whole; start again with --overwrite, or under another --name."
        bad = [path.name for path in self.complete()[self.complete().index(whole[-1]) + 1 :]]
        return f"Remove {', '.join(bad)} from {self.checkpoints} to go on from {whole[-1].name}, which is whole."

    def _make_again_if_gone(self, update: int) -> None:
        """Make a run folder anew that somebody removed in mid-run, so that what has been learned is kept."""
        if self._stored.exists():
            return
        self._claim()
        self._furnish()
        _warn(
            f"{self.path} was removed during the run. It was made again for the checkpoint after update {update}; what "
            "was told of earlier updates is gone."
        )

    def _go_back_to(self, update: int, told: int) -> None:
        """Drop what was logged of later updates, and say where not all of the ``told`` lines before are there."""
        self._told = told
        lines = self._lines()
        kept = {_update_of(line): line for line in lines if _update_of(line) in range(1, update + 1)}
        _replace(self.metrics_path, "".join(line + "\n" for line in kept.values()))
        if len(kept) < told:
            _warn(f"{self.metrics_path} lacks {told - len(kept)} of {told} lines: they were cut, or there was no room.")
        for file in (self.path / "trajectories").glob("update-*.jsonl"):
            number = _NUMBERED.fullmatch(file.stem)
            if number and int(number[1]) > update:
                file.unlink()

    def _lines(self) -> list[str]:
        """Return the lines of ``metrics.jsonl``; what is no text in them is replaced, and no JSON then."""
        if not self.metrics_path.exists():
            return []
        return self.metrics_path.read_text(encoding="utf-8", errors="replace").split("\n")


def _versions() -> dict[str, str]:
    """Return the versions that decide what numbers come out."""
    names = ("torch", "transformers", "peft", "accelerate", "trajgym")
    return {name: importlib.metadata.version(name) for name in names}


def _update_of(line: str) -> int:
    """Return the update a metrics line belongs to, or -1 for a line that a crash cut short."""
    try:
        return int(json.loads(line)["update"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return -1


def _holds_trajectories(path: Path) -> bool:
    try:
        read_trajectories(path)
    except DataError:
        return False
    return True


def _warn(text: str) -> None:
    warnings.warn(text, CheckpointWarning, stacklevel=4)


def _replace(path: Path, text: str) -> None:
    """Write a file that is never seen half written."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _sync(folder: Path) -> None:
    """Make files durable before the rename that publishes them."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
