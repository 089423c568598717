"""Measuring the models of a chain on the same problems, with everything that is played remembered on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajgym import __version__
from trajgym.errors import ConfigError, DataError
from trajgym.evaluation.evaluate import Evaluation, env_maker, evaluate
from trajgym.evaluation.records import read_trajectories
from trajgym.evaluation.report import Result
from trajgym.evaluation.samples import Sample, samples_of
from trajgym.evaluation.store import Store, folder_fingerprint
from trajgym.evaluation.summary import summarise
from trajgym.policies import tiny_path
from trajgym.rollout import fault_summary
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.models import make_policy, pick_device
from trajgym.trainers.trained import find_source, open_source
from trajgym.types import Task

__all__ = ["Arena", "model_fingerprint", "recalled", "shown_sample"]

_LONGEST = 2048  # tokens of an episode, where neither the options nor the model say less


def model_fingerprint(name: str | Path) -> str:
    """Return what tells a model from another of the same name: a hash of its files, or its commit on the hub.

    Args:
        name: ``"tiny"``, the folder of a run or of a model, or a hub id.

    Raises:
        ConfigError: When there is no such model.
        CheckpointError: When a run's newest checkpoint is damaged.
        DataError: When the folder cannot be read.
    """
    if str(name) == "tiny":
        return folder_fingerprint(tiny_path())
    source = find_source(name)
    folder = source.adapter or Path(source.base).expanduser()
    if folder.is_dir():
        # Adapters mean nothing without what they belong to.
        return folder_fingerprint(folder) + (f"+{model_fingerprint(source.base)}" if source.adapter else "")
    from transformers import AutoConfig

    try:
        commit = getattr(AutoConfig.from_pretrained(source.base), "_commit_hash", None)
    except Exception as error:  # the hub's client raises a dozen types; the user needs one
        raise ConfigError(
            f"Cannot find model {source.base!r}: {str(error).splitlines()[0]} Allowed: 'tiny', a folder, or a Hugging "
            "Face hub id that this machine can reach."
        ) from error
    return f"{source.base}@{commit or 'unknown'}"


@dataclass(frozen=True)
class Arena:
    """Problems and the way of playing them, the same for every model.

    Args:
        env: Environment id.
        arguments: Its arguments; its reward must have the term ``accuracy``.
        tasks: What is played.
        options: Length of turns and episodes, number format and device, number of live episodes.
        temperature: 0 takes the most probable token.
        attempts: At each problem; several need a temperature.
        k: For ``accuracy@k``.
        seed: Decides the draws.
    """

    env: str
    arguments: Mapping[str, Any]
    tasks: Sequence[Task]
    options: GRPOConfig
    temperature: float = 0.0
    attempts: int = 1
    k: Sequence[int] = (1,)
    seed: int = 0

    def play(self, name: str, model: str | Path, folder: Path | None = None) -> Result:
        """Play all problems with a model, or go on with it.

        Args:
            name: What to call the model.
            model: ``"tiny"``, the folder of a run or of a model, or a hub id.
            folder: Where to remember played episodes; nowhere when ``None``.

        Raises:
            ConfigError, CheckpointError, TemplateError: When the model cannot be loaded or cannot play.
            DataError, StorageError: When the memory cannot be read or written.
        """
        options, fingerprint = self.options, model_fingerprint(model)
        weights, tokenizer = open_source(find_source(model), dtype=options.dtype, device=pick_device(options.device))
        longest = min(options.max_episode_tokens, getattr(weights.config, "max_position_embeddings", None) or _LONGEST)
        # A run trains the policy that samples and so needs a temperature; an evaluation may as well be greedy.
        player = options.model_copy(update={"temperature": self.temperature, "max_episode_tokens": longest})
        settings = {
            "model": str(model),
            "fingerprint": fingerprint,
            "temperature": self.temperature,
            "max_turn_tokens": options.max_turn_tokens,
            "max_episode_tokens": longest,
            "thinking": options.thinking,
            "dtype": options.dtype,
        }
        policy = make_policy(weights, tokenizer, player)
        store = None
        if folder is not None:
            identity = {**settings, "env": self.env, "arguments": json.loads(_as_json(self.arguments))}
            del identity["model"]  # a folder that was moved holds the same model
            store = Store(folder / "played.jsonl", {**identity, "trajgym": __version__})
        found = evaluate(
            policy,
            env_maker(policy, self.env, **self.arguments),
            self.tasks,
            seed=self.seed,
            threads=options.env_threads,
            attempts=self.attempts,
            store=store,
        )
        if found.faults:
            print(f"{name}: {fault_summary(found.trajectories)} They count as wrong answers.", flush=True)
        samples = samples_of(found)
        return Result(name, found, samples, summarise(samples, k=self.k, seed=self.seed), settings)


def recalled(name: str, folder: Path) -> Result:
    """Return what an earlier report says of a model, see :func:`trajgym.evaluation.report.write_report`.

    Args:
        name: What the report calls it.
        folder: The model's folder in the report's.

    Raises:
        DataError: When the folder holds something else.
    """
    try:
        lines = (folder / "samples.jsonl").read_text(encoding="utf-8").split("\n")
        rows = [json.loads(line) for line in lines if line]
        samples = [Sample(**{key: value for key, value in row.items() if key != "model"}) for row in rows]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{folder} does not hold what was played ({error}). Begin again with --overwrite.") from error
    trajectories = tuple(read_trajectories(folder / "trajectories.jsonl"))
    seconds = tuple(sample.seconds or 0.0 for sample in samples)
    return Result(name, Evaluation(trajectories, 1, seconds), samples, summarise(samples))


def shown_sample(sample: Sample, prediction: str) -> dict[str, Any]:
    """Return what people ask of one played problem, as JSON values.

    Args:
        sample: The problem as it was played.
        prediction: What the policy wrote.
    """
    return {
        "task_id": sample.task_id,
        "question": sample.question,
        "prediction": prediction,
        "answer": sample.prediction,
        "ground_truth": sample.ground_truth,
        "ground_truth_steps": sample.gold_steps,
        "steps": sample.steps,
        "correct": sample.correct,
        "reward": sample.reward,
        "error": sample.error or None,
    }


def _as_json(value: Any) -> str:
    """Write arguments, objects among them by their repr."""
    return json.dumps(value, sort_keys=True, default=repr)
