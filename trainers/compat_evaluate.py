"""Measuring a model under the founding document's options and names of measures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trajgym.envs.make import make
from trajgym.errors import CheckpointError, ConfigError, UnknownNameError
from trajgym.evaluation.report import Result
from trajgym.evaluation.selection import tasks_of
from trajgym.trainers.compat_data import default_dataset, problems_of_rows, split_rows
from trajgym.trainers.compat_trainers import run_of, small_share
from trajgym.trainers.config import load_config
from trajgym.trainers.pipeline_evaluation import Arena, shown_sample

__all__ = ["EVALUATE_KEYS", "METRICS", "evaluate_model"]

METRICS: Mapping[str, str] = {
    "accuracy": "accuracy",
    "strict_accuracy": "strict_accuracy",
    "accuracy_at_k": "accuracy@{k}",
    "average_reward": "reward",
    "average_length": "length_tokens",
    "average_steps": "steps",
    "format_correctness": "format",
    "numeric_error": "numeric_error",
    "inference_time": "time",
    "tool_use": "tool_use",
}
"""The document's names of measures, and those of ``docs/evaluation.md``."""

_ALWAYS = ("accuracy", "average_reward")
_OWN = ("model_path", "max_samples", "use_lora", "metrics", "k", "return_details", "split", "dataset", "custom_dataset")
_PLAYED = (
    "env",
    "env_kwargs",
    "protocol",
    "max_new_tokens",
    "max_episode_tokens",
    "temperature",
    "slots",
    "dtype",
    "device",
    "thinking",
    "seed",
)

EVALUATE_KEYS = (*_OWN, *_PLAYED)
"""The options of :func:`evaluate_model`."""

_SAMPLED = 0.7  # temperature of several attempts, where none is given
_LOW = 0.4  # accuracy below which a run on little data is worth a word


def evaluate_model(given: Mapping[str, Any]) -> dict[str, Any]:
    """Play test problems with a model, and return what was measured as JSON values.

    Args:
        given: Options by name, some of :data:`EVALUATE_KEYS`; ``model_path`` is needed.

    Raises:
        UnknownNameError: For an option or a measure that does not exist.
        ConfigError: For a value that is not allowed, and when the model cannot be loaded.
        DataError: When there are no problems.
    """
    for key in given:
        if key not in EVALUATE_KEYS:
            raise UnknownNameError("option of evaluate", key, EVALUATE_KEYS)
    if not given.get("model_path"):
        raise ConfigError("evaluate needs model_path: the folder of a run or of a model, 'tiny', or a hub id.")
    wanted = list(
        given.get("metrics") or [name for name in METRICS if name != "accuracy_at_k" or given.get("k", 1) > 1]
    )
    for name in wanted:
        if name not in METRICS:
            raise UnknownNameError("metric", name, METRICS)
    k = given.get("k", 3 if "accuracy_at_k" in wanted else 1)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ConfigError(f"k must be a whole number of at least 1, got {k!r}.")

    model = _model(str(given["model_path"]), use_lora=given.get("use_lora", True))
    arena = _arena(given)
    greedy = arena.play(Path(model).name or model, model)
    measures = {name: m.value for name, m in greedy.summary.measures.items()}
    if "accuracy_at_k" in wanted and k > 1:
        several = _arena(given, attempts=k, k=k).play(Path(model).name or model, model)
        measures[f"accuracy@{k}"] = several.summary.measures[f"accuracy@{k}"].value
    measures.setdefault("accuracy@1", measures["accuracy"])

    accuracy = greedy.summary.measures["accuracy"]
    result = {
        "status": "success",
        "model_path": str(given["model_path"]),
        "evaluated": model,
        "num_samples": greedy.summary.tasks,
        **{name: measures[METRICS[name].format(k=k)] for name in dict.fromkeys((*_ALWAYS, *wanted))},
        "accuracy_interval": [accuracy.low, accuracy.high],
        "device": arena.options.device,
        "conclusions": list(greedy.summary.conclusions),
        "note": _note(model, accuracy.value or 0.0),
    }
    return {**result, **_details(greedy)} if given.get("return_details") else result


def _arena(given: Mapping[str, Any], *, attempts: int = 1, k: int = 1) -> Arena:
    """Return the problems and the way of playing them."""
    env, seed, limit = given.get("env", "GSM8KTool-v0"), given.get("seed", 0), given.get("max_samples", 100)
    split, arguments = given.get("split", "test"), dict(given.get("env_kwargs", {}))
    rows, dataset = given.get("custom_dataset"), given.get("dataset") or default_dataset(env)
    arguments = {"reward": "sparse", **arguments}
    if rows is None and dataset in ("gsm8k", "expert") and "[" not in split:
        arguments["split"] = split
        made = make(env, **arguments)
        tasks = tasks_of(made, limit, seed=seed)
        made.close()
    else:
        # Rows without splits are one list, which is called train.
        loaded = split_rows(dataset if rows is None else rows, given.get("split", "train"))
        arguments["tasks"] = problems = problems_of_rows(loaded, limit)
        tasks = list(problems)
    budget = {key: given[key] for key in ("max_episode_tokens", "slots", "dtype", "device", "thinking") if key in given}
    if "protocol" in given:
        arguments["protocol"] = given["protocol"]
    options = load_config({"updates": 1, "max_turn_tokens": given.get("max_new_tokens", 256), "env": env, **budget})
    temperature = given.get("temperature", _SAMPLED if attempts > 1 else 0.0)
    if (
        isinstance(temperature, bool)
        or not isinstance(temperature, (int, float))
        or not 0 <= temperature < float("inf")
    ):
        raise ConfigError(f"temperature must be a finite number from 0, got {temperature!r}.")
    if attempts > 1 and temperature == 0:
        raise ConfigError("Attempts at temperature 0 are all alike, so accuracy_at_k needs another, such as 0.7.")
    ks = sorted({1, k})
    return Arena(env, arguments, tasks, options, temperature=temperature, attempts=attempts, k=ks, seed=seed)


def _model(path: str, *, use_lora: bool) -> str:
    """Return what to load: without adapters, the model that the run's adapters were trained on."""
    run = run_of(path)
    if run is None:
        return path
    if not use_lora:
        try:
            options = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
            return str(options["model"]) if options["use_lora"] else path
        except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError) as error:
            raise CheckpointError(f"{run / 'config.yaml'} does not say what was trained: {error!r}") from error
    return str(run)


def _details(result: Result) -> dict[str, Any]:
    """Return every problem as it was played, and the wrong ones among them."""
    pairs = zip(result.samples, result.evaluation.trajectories, strict=True)
    rows = [shown_sample(sample, "\n".join(step.action.text for step in played.steps)) for sample, played in pairs]
    return {"details": rows, "errors": [row for row in rows if not row["correct"]]}


def _note(model: str, accuracy: float) -> str | None:
    """Say why the accuracy may be low, where the run has seen little of its data."""
    run = run_of(model)
    if run is None or accuracy >= _LOW:
        return None
    for name, used, available in (
        ("training.json", "dataset_size", "data_share"),
        ("data.json", "samples", "samples_available"),
    ):
        try:
            told = json.loads((run / name).read_text(encoding="utf-8"))
            share = told[available]
            if share:
                return small_share(told[used], round(told[used] / share) if available == "data_share" else share)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a run of another kind
    return None
