"""A rollout worker: its own copy of the policy, its own environments, and groups to play with them.

Nothing here knows of Ray: a worker is an object whose methods are called from another process, one after the other.
They return an :class:`Answer`, so that what goes wrong arrives as the error that it is.
"""

from __future__ import annotations

import os
import pickle
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import cloudpickle

import trajgym
from trajgym.envs.make import make
from trajgym.envs.tasks import FiniteTasks
from trajgym.errors import ConfigError, TrainingError
from trajgym.rollout import Episode, derive_seed
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.rollout_share import Share, play_groups
from trajgym.trainers.stopwatch import Stopwatch
from trajgym.trainers.worker_answer import Answer
from trajgym.trainers.worker_names import receive_names, send_names

__all__ = ["Piece", "PlayedPiece", "RolloutWorker", "WorkerFacts", "facts", "pack_plan"]

T = TypeVar("T")

_VARIABLES = "TRAJGYM_"  # such as where data sets lie


@dataclass(frozen=True)
class Piece:
    """A piece of an update that is played as one batch, wherever that is.

    Args:
        update: Counted from 0.
        round: Of the update, counted from 0.
        groups: The episodes of each group.
        progress: How much of the run was done when the weights were sent that it is to be played with.
    """

    update: int
    round: int
    groups: Sequence[Sequence[Episode]]
    progress: float = 0.0


@dataclass(frozen=True)
class PlayedPiece:
    """A piece that was played.

    Args:
        share: What came of it.
        seconds: By part, as :class:`trajgym.trainers.stopwatch.Stopwatch` measures them.
        computed_tokens: Tokens that went through the worker's model for it, padding included.
    """

    share: Share
    seconds: Mapping[str, float] = field(default_factory=dict)
    computed_tokens: int = 0


@dataclass(frozen=True)
class WorkerFacts:
    """What must be the same on both sides, or equal seeds would not give equal episodes.

    Args:
        versions: Of what computes, by name.
        tasks: How many tasks the environment has, and a number made of their ids; ``None`` where they never end.
    """

    versions: Mapping[str, str]
    tasks: tuple[int, int] | None


def pack_plan(config: GRPOConfig, arguments: Mapping[str, Any], expected: WorkerFacts, *, values: bool) -> bytes:
    """Return everything that a worker is made from.

    Args:
        config: The run's options.
        arguments: Of the environment, the protocol that was agreed on among them.
        expected: What it has to compute with.
        values: Whether every state is to be valued by fresh rollouts.

    Raises:
        ConfigError: When one of the environment's arguments cannot be sent to another process.
    """
    for name, value in arguments.items():
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            raise ConfigError(
                f"env_kwargs[{name!r}] cannot be sent to rollout workers: {type(error).__name__}: {error}. Make it "
                "something that cloudpickle can write, or set rollout_workers to 0."
            ) from error
    variables = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    path = [os.path.abspath(entry) for entry in sys.path]
    inner = cloudpickle.dumps((config, dict(arguments), expected, values))
    packed: bytes = cloudpickle.dumps((path, variables, send_names(), inner))
    return packed


def facts(env: Any) -> WorkerFacts:
    """Return what this process computes with.

    Args:
        env: One environment of the run.
    """
    import torch
    import transformers

    versions = {
        "python": platform.python_version().rpartition(".")[0],
        "trajgym": trajgym.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    source = getattr(env.unwrapped, "tasks", None)
    if not isinstance(source, FiniteTasks):
        return WorkerFacts(versions, None)
    return WorkerFacts(versions, (len(source), derive_seed(*(task.id for task in source))))


class RolloutWorker:
    """Plays pieces of updates; every piece as if it were the first one, whatever was played before it.

    Args:
        plan: From :func:`pack_plan`.
    """

    def __init__(self, plan: bytes) -> None:
        self._plan = plan
        self._trouble: Answer[Any] | None = None  # what was raised first; nothing can be done after it
        self._progress: float | None = None  # of the run when the weights were sent that it has

    def prepare(self) -> Answer[None]:
        """Load the model and make an environment.

        Raises:
            ConfigError: In the answer, when that cannot be done here, or would not be what the trainer has.
        """
        return self._answer(self._prepare)

    def load(self, packed: Any, progress: float) -> Answer[None]:
        """Take the weights of an update, and pay as the reward says at that point of the run.

        Args:
            packed: From :func:`trajgym.trainers.worker_weights.pack_weights`.
            progress: How much of the run is done, 0 … 1.
        """
        return self._answer(lambda: self._load(packed, progress))

    def play(self, piece: Piece) -> Answer[PlayedPiece]:
        """Play a piece of the update whose weights came last."""
        return self._answer(lambda: self._play(piece))

    def close(self) -> Answer[None]:
        """Close the environments."""
        return Answer.of(self._close)

    def _answer(self, work: Callable[[], T]) -> Answer[T]:
        if self._trouble is None:
            answer = Answer.of(work)
            if not answer.error:
                return answer
            self._trouble = answer
        return self._trouble

    def _prepare(self) -> None:
        path, variables, names, inner = pickle.loads(self._plan)  # noqa: S301  from who started this process
        sys.path.extend(entry for entry in path if entry not in sys.path)
        for name, value in variables.items():
            os.environ.setdefault(name, value)
        missing = receive_names(names)
        try:
            config, arguments, expected, values = pickle.loads(inner)  # noqa: S301
            found = self._make(config, arguments, values)
        except (ConfigError, ImportError, AttributeError) as error:
            if missing:
                raise ConfigError(
                    f"{error} Of what is registered in the trainer's process: {'; '.join(missing)}."
                ) from error
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"A rollout worker cannot read the run's options: {type(error).__name__}: {error}. What they use must "
                "be installed on all machines."
            ) from error
        if found != expected:
            raise ConfigError(
                f"A rollout worker computes with something else than the trainer: {found}, there {expected}. Install "
                "the same versions and put the same data on all machines."
            )

    def _make(self, config: GRPOConfig, arguments: Mapping[str, Any], values: bool) -> WorkerFacts:
        import torch

        from trajgym.trainers.models import add_lora, load_model, make_policy, pick_device
        from trajgym.trainers.reward_plan import RewardPool, reward_plan

        torch.set_num_threads(max(1, int(config.worker_cpus)))  # sums depend on how they are divided among threads
        self._config, self._values = config, values
        self._model, tokenizer = load_model(
            config.model,
            dtype=config.dtype,
            device=pick_device("cuda" if config.worker_gpus else "cpu"),
            quantization=config.quantization,
        )
        if config.use_lora:
            self._model = add_lora(
                self._model,
                rank=config.lora_rank,
                alpha=config.lora_alpha,
                targets=config.lora_targets,
                seed=config.seed,
            )
        self._policy = make_policy(self._model, tokenizer, config)
        env = make(config.env, **arguments)
        self._pool = RewardPool(
            lambda: make(config.env, **arguments),
            reward_plan(env, config),
            threads=config.env_threads,
            deadline=config.group_deadline,
        )
        self._pool.give(env)
        return facts(env)

    def _load(self, packed: Any, progress: float) -> None:
        from trajgym.trainers.worker_weights import put_weights

        put_weights(self._model, packed)
        self._policy.sampler.reset()  # what it has cached belongs to the weights before
        self._pool.advance(progress)
        self._progress = progress

    def _play(self, piece: Piece) -> PlayedPiece:
        if piece.progress != self._progress:
            raise TrainingError(
                f"A rollout worker has the weights of another update: those of progress {self._progress}, not "
                f"{piece.progress}. What was sent to it did not arrive; go on with --resume."
            )
        watch, sampler = Stopwatch(), self._policy.sampler
        computed = sampler.computed_tokens
        share = play_groups(
            self._policy,
            self._pool,
            piece.groups,
            self._config,
            update=piece.update,
            round=piece.round,
            values=self._values,
            watch=watch,
        )
        sampler.reset()  # the next piece finds the engine as this one did
        return PlayedPiece(share, watch.seconds(), sampler.computed_tokens - computed)

    def _close(self) -> None:
        pool = getattr(self, "_pool", None)
        if pool is not None:
            pool.close()
