"""Where a run's numbers go besides the run folder: TensorBoard, Weights & Biases, trackio.

    tensorboard  event files in the run folder; ``tensorboard --logdir runs`` shows them on port 6006
    wandb        ``WANDB_PROJECT`` names the project, ``WANDB_MODE=offline`` writes to the run folder for a later
                 ``wandb sync``, ``WANDB_LOG_MODEL=end`` uploads the last checkpoint, ``=checkpoint`` each one
    trackio      ``TRACKIO_PROJECT`` names the project; kept on this machine

Each metric NAME is written as ``train/NAME``. A service that fails in the middle of a run is warned of once and left
alone from then on: a run does not end because nobody can watch.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.runfolder import RunFolder, storage_errors

__all__ = ["WRITERS", "Writer", "check_writers", "make_writers", "offline_line", "prefixed"]

_PROJECT = "trajgym"
_LOG_MODEL = ("false", "end", "checkpoint")


class Writer(Protocol):
    """Takes in the numbers of a run."""

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write the metrics of the update ``step``, which counts from 1."""

    def saved(self, checkpoint: Path) -> None:
        """Take notice of a finished checkpoint."""

    def close(self, checkpoint: Path | None = None) -> None:
        """Write what is left.

        Args:
            checkpoint: The newest checkpoint of a run that came to its end; ``None`` of one that did not.
        """


def make_writers(names: Sequence[str], run: RunFolder, *, first: int = 0) -> list[Writer]:
    """Open the writers of these names.

    Args:
        names: Some of :data:`WRITERS`.
        run: The run's folder.
        first: Updates that were done before, when the run is resumed: what was written after them is replaced.

    Raises:
        UnknownNameError: For another name.
        ConfigError: When a package is missing, naming the command that installs it, or a service cannot be used.
        StorageError: When the run folder cannot be written.
    """
    check_writers(names)
    return [WRITERS[name](run, first) for name in dict.fromkeys(names)]


def check_writers(names: Sequence[str]) -> None:
    """Refuse names that mean nothing or whose package is missing, before a run has written anything.

    Raises:
        UnknownNameError, ConfigError: As :func:`make_writers`.
    """
    for name in names:
        if name not in WRITERS:
            raise UnknownNameError("monitor", name, WRITERS)
        _load("torch.utils.tensorboard" if name == "tensorboard" else name, name, name)


def prefixed(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among ``metrics`` under the names that monitors show.

    >>> prefixed({"reward": 0.5, "kl": 0.01, "note": "no number"})
    {'train/reward': 0.5, 'train/kl': 0.01}
    """
    return {f"train/{name}": value for name, value in metrics.items() if isinstance(value, (int, float))}


def offline_line(metrics: Mapping[str, Any], *, epochs: int, total: int) -> str:
    """Return an update as one line, for logs that nobody draws.

    Args:
        metrics: Of the update: ``epoch`` (passes over the data that are done, with fractions), ``update``, ``reward``,
            ``kl``, ``loss``. What was not measured is shown as ``n/a``.
        epochs: Of the whole run; at least 1.
        total: Updates of the whole run.

    >>> offline_line({"epoch": 0.4, "update": 100, "reward": 0.45, "kl": 0.023, "loss": 1.234}, epochs=2, total=500)
    'Epoch 1/2 | Step 100/500 | Reward: 0.45 | KL: 0.023 | Loss: 1.234'
    """
    done = float(metrics.get("epoch", 0.0))
    # The update that completes an epoch belongs to it; rounding may put it a hair beyond.
    epoch = min(max(1, epochs), max(1, math.ceil(done - 1e-9)))
    cells = [f"Epoch {epoch}/{max(1, epochs)}", f"Step {int(metrics['update'])}/{total}"]
    for title, name, form in (("Reward", "reward", ".2f"), ("KL", "kl", ".3f"), ("Loss", "loss", ".3f")):
        value = metrics.get(name)
        cells.append(f"{title}: {'n/a' if value is None else format(value, form)}")
    return " | ".join(cells)


class _TensorBoard:
    def __init__(self, run: RunFolder, first: int) -> None:
        self._path = run.path
        module = _load("torch.utils.tensorboard", "tensorboard", "tensorboard")
        with storage_errors(self._path):
            self._writer = module.SummaryWriter(str(self._path), purge_step=first + 1)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        with storage_errors(self._path):
            for name, value in prefixed(metrics).items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()

    def saved(self, checkpoint: Path) -> None:
        pass  # it shows curves only

    def close(self, checkpoint: Path | None = None) -> None:
        self._writer.close()


class _Service:
    """A service beyond this process, which may fail without harm to the run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._works = True

    def _try(self, action: Callable[[], object]) -> None:
        if not self._works:
            return
        try:
            action()
        except Exception as error:  # of any kind: these packages talk to servers
            self._works = False
            print(
                f"  ! {self._name} failed and is left alone from here on: {type(error).__name__}: {error}. "
                "metrics.jsonl has everything.",
                file=sys.stderr,
                flush=True,
            )


class _WandB(_Service):
    def __init__(self, run: RunFolder, first: int) -> None:
        super().__init__("wandb")
        self._upload = os.environ.get("WANDB_LOG_MODEL", "").strip().lower() or "false"
        if self._upload not in _LOG_MODEL:
            raise ConfigError(f"WANDB_LOG_MODEL={self._upload!r} is not allowed. Allowed: {', '.join(_LOG_MODEL)}.")
        self._module = _load("wandb", "wandb", "wandb")
        self._run = _started(
            "wandb",
            "Log in with `wandb login`, or write to the run folder with WANDB_MODE=offline.",
            lambda: self._module.init(
                project=os.environ.get("WANDB_PROJECT") or _PROJECT,
                name=run.path.name,
                dir=str(run.path),
                config=_options(run),
                id=_run_id(run, first),
                resume="allow" if first else None,
            ),
        )

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self._try(lambda: self._run.log(prefixed(metrics), step=step))

    def saved(self, checkpoint: Path) -> None:
        if self._upload == "checkpoint":
            self._try(lambda: self._send(checkpoint))

    def close(self, checkpoint: Path | None = None) -> None:
        if checkpoint is not None and self._upload == "end":
            self._try(lambda: self._send(checkpoint))
        self._try(lambda: self._run.finish(exit_code=0 if checkpoint is not None else 1))

    def _send(self, checkpoint: Path) -> None:
        artifact = self._module.Artifact(f"model-{self._run.id}", "model", metadata={"checkpoint": checkpoint.name})
        model = checkpoint / "model"  # the optimiser's state is of no use to others
        artifact.add_dir(str(model if model.is_dir() else checkpoint))
        self._run.log_artifact(artifact)


class _Trackio(_Service):
    def __init__(self, run: RunFolder, first: int) -> None:
        super().__init__("trackio")
        module = _load("trackio", "trackio", "trackio")
        self._run = _started(
            "trackio",
            "Unset TRACKIO_SPACE_ID and TRACKIO_SERVER_URL to keep the numbers on this machine.",
            lambda: module.init(
                project=os.environ.get("TRACKIO_PROJECT") or _PROJECT,
                name=run.path.name,
                config=_options(run),
                resume="allow" if first else "never",
                embed=False,
            ),
        )

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self._try(lambda: self._run.log(metrics=prefixed(metrics), step=step))

    def saved(self, checkpoint: Path) -> None:
        pass  # it keeps numbers only

    def close(self, checkpoint: Path | None = None) -> None:
        self._try(self._run.finish)


WRITERS: Mapping[str, Callable[[RunFolder, int], Writer]] = {
    "tensorboard": _TensorBoard,
    "trackio": _Trackio,
    "wandb": _WandB,
}
"""What can be named in the options, and what opens it."""


def _load(module: str, name: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"The monitor {name!r} needs the package {package!r}: pip install {package}. Or take it from the monitors."
        ) from error


def _started(name: str, advice: str, start: Callable[[], Any]) -> Any:
    try:
        return start()
    except Exception as error:  # of any kind: these packages talk to servers
        text = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ConfigError(f"The monitor {name!r} does not start: {text}. {advice}") from error


def _options(run: RunFolder) -> dict[str, Any]:
    values = yaml.safe_load((run.path / "config.yaml").read_text(encoding="utf-8"))
    return values if isinstance(values, dict) else {}


def _run_id(run: RunFolder, first: int) -> str | None:
    """Return the name under which the service knows this run; a resumed run goes on under its own.

    It is kept in the run folder, so that a run of the same name elsewhere is another one.
    """
    path = run.path / "wandb-id"
    with storage_errors(run.path):
        if first and path.is_file() and (known := path.read_text(encoding="ascii").strip()):
            return known
        fresh = os.urandom(4).hex()
        path.write_text(fresh, encoding="ascii")
    return fresh
