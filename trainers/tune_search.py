"""Which parameters a trial gets: every combination, random ones, or what Optuna makes of the trials before.

A search is asked for trials by number. What it answers depends on the seed, the number and the trials before alone, so
that a study which was killed goes on as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from trajgym.errors import CheckpointError, ConfigError
from trajgym.rollout import derive_seed
from trajgym.trainers.tune_config import TuneConfig
from trajgym.trainers.tune_space import Choice, Range, Space, draw, grid
from trajgym.trainers.tune_study import Trial

__all__ = ["Search", "make_search"]


class Search(Protocol):
    """A way through a space."""

    def propose(self, number: int) -> dict[str, Any]:
        """Return the parameters of the trial with this number."""

    def hopeless(self, number: int, step: int, value: float) -> bool:
        """Take note of a trial's training curve, and say whether the trial is to be stopped.

        Args:
            number: Of the trial.
            step: Finished updates.
            value: The curve there; higher is better.
        """

    def tell(self, trial: Trial) -> None:
        """Take note of what came of a trial; again does no harm."""


def make_search(config: TuneConfig, folder: Path, trials: Sequence[Trial]) -> Search:
    """Return the search that the options name.

    Args:
        config: All options.
        folder: Of the study.
        trials: Those that the study has had.

    Raises:
        ConfigError: When Optuna is asked for and not installed, or a grid has a range.
        CheckpointError: When Optuna's storage is damaged, or not that of these trials.
    """
    if config.search == "optuna":
        return _Optuna(config, folder / "optuna.db", trials)
    return _Listed(grid(config.dimensions)) if config.search == "grid" else _Random(config.dimensions, config.seed)


class _Independent:
    """A search that learns nothing from its trials."""

    def hopeless(self, number: int, step: int, value: float) -> bool:
        return False

    def tell(self, trial: Trial) -> None:
        return


class _Listed(_Independent):
    def __init__(self, combinations: Sequence[dict[str, Any]]) -> None:
        self._combinations = combinations

    def propose(self, number: int) -> dict[str, Any]:
        return dict(self._combinations[number])


class _Random(_Independent):
    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._seed = space, seed

    def propose(self, number: int) -> dict[str, Any]:
        return draw(self._space, derive_seed(self._seed, "trial", number))


class _Optuna:
    """Optuna's tree-structured Parzen estimator, with its trials in a SQLite file that its dashboard reads too.

    Source: J. Bergstra et al., Algorithms for Hyper-Parameter Optimization, 2011; the median rule, D. Golovin et al.,
    Google Vizier, 2017.
    """

    def __init__(self, config: TuneConfig, path: Path, trials: Sequence[Trial]) -> None:
        try:
            import optuna
        except ModuleNotFoundError as error:
            raise ConfigError(
                "method optuna needs the package optuna: pip install 'trajgym[tune]'. Methods grid and random need "
                "nothing."
            ) from error
        self._optuna: Any = optuna
        self._space, self._seed, self._path, self._prune = config.dimensions, config.seed, path, config.prune
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        if trials and not path.exists():
            raise CheckpointError(f"{path} is gone, but the study has {len(trials)} trials. Bring it back. {_WAY_OUT}")
        warmup = config.prune_warmup
        pruner = optuna.pruners.MedianPruner(warmup, warmup + 1) if config.prune else optuna.pruners.NopPruner()
        with self._storage_errors():
            self._study: Any = optuna.create_study(
                storage=f"sqlite:///{path.resolve()}",
                study_name="trajgym",
                direction="maximize",
                pruner=pruner,
                load_if_exists=True,
            )
            known = len(self._study.trials)
        if known not in (len(trials), len(trials) + 1):  # a kill may come between asking and writing down
            raise CheckpointError(f"{path} holds {known} trials, but the study has {len(trials)}. {_WAY_OUT}")
        for trial in trials:
            self.tell(trial)

    def propose(self, number: int) -> dict[str, Any]:
        """Ask Optuna, or repeat what it said before a kill."""
        with self._storage_errors():
            # A sampler of its own for each trial: what it draws must not depend on how often the study was stopped.
            seed = derive_seed(self._seed, "optuna", number) % 2**32
            self._study.sampler = self._optuna.samplers.TPESampler(seed=seed)
            trial = self._trial(number) if number < len(self._study.trials) else self._study.ask()
            return {name: _suggested(trial, name, dimension) for name, dimension in self._space.items()}

    def hopeless(self, number: int, step: int, value: float) -> bool:
        """Compare the curve with those of earlier trials at the same update."""
        if not math.isfinite(value):  # Optuna's medians know only numbers
            return self._prune
        with self._storage_errors():
            trial = self._trial(number)
            if step not in self._study.trials[number].intermediate_values:  # a resumed run goes over steps again
                trial.report(value, step)
            return bool(trial.should_prune())

    def tell(self, trial: Trial) -> None:
        """Tell Optuna what came of a trial that has ended."""
        if trial.status == "running":
            return
        states = self._optuna.trial.TrialState
        state = {"done": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[trial.status]
        with self._storage_errors():
            value = trial.value if trial.status == "done" else None
            self._study.tell(trial.number, value, state=state, skip_if_finished=True)

    def _trial(self, number: int) -> Any:
        return self._optuna.trial.Trial(self._study, self._study.trials[number]._trial_id)

    @contextlib.contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # optuna, sqlalchemy and sqlite3 raise a dozen types
            raise CheckpointError(
                f"Optuna's storage {self._path} cannot be used ({type(error).__name__}: {str(error).splitlines()[0]}). "
                f"{_WAY_OUT}"
            ) from error


_WAY_OUT = "Begin again with --overwrite, or under another --name."


def _suggested(trial: Any, name: str, dimension: Choice | Range) -> Any:
    if isinstance(dimension, Choice):  # as JSON: Optuna takes numbers and texts alone
        by_text = {json.dumps(value, sort_keys=True): value for value in dimension.values}
        return by_text[trial.suggest_categorical(name, list(by_text))]
    if dimension.whole:
        return int(trial.suggest_int(name, dimension.low, dimension.high, log=dimension.log))
    return float(trial.suggest_float(name, dimension.low, dimension.high, log=dimension.log))
