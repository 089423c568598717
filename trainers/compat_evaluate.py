"""Measuring a model under the founding document's options and names of measures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trajgym.errors import CheckpointError, ConfigError, UnknownNameError
from trajgym.evaluation.report import Result
from trajgym.evaluation.selection import DEFAULT_LIMIT
from trajgym.trainers.compat_data import Data, problems_of_rows
from trajgym.trainers.compat_options import EvaluateCall, read_call
from trajgym.trainers.compat_runs import run_of, small_share
from trajgym.trainers.config import load_config
from trajgym.trainers.pipeline_evaluation import Arena, shown_sample
from trajgym.trainers.trained import run_options

__all__ = ["METRICS", "evaluate_model"]

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
_BUDGET = ("max_episode_tokens", "slots", "dtype", "device", "thinking")
_SAMPLED = 0.7  # temperature of several attempts, where none is given
_LOW = 0.4  # accuracy below which a run on little data is worth a word


def evaluate_model(given: Mapping[str, Any]) -> dict[str, Any]:
    """Play test problems with a model, and return what was measured as JSON values.

    Args:
        given: Options by name, some of :class:`trajgym.trainers.compat_options.EvaluateCall`; ``model_path`` is needed.

    Raises:
        UnknownNameError: For an option or a measure that does not exist.
        ConfigError: For a value that is not allowed, and when the model cannot be loaded.
        CheckpointError: When it is of a run that cannot be read.
        DataError: When there are no problems.
    """
    call = read_call("evaluate", EvaluateCall, given)
    if not call.model_path:
        raise ConfigError("evaluate needs model_path: the folder of a run or of a model, 'tiny', or a hub id.")
    wanted = list(call.metrics or [name for name in METRICS if name != "accuracy_at_k" or (call.k or 1) > 1])
    for name in wanted:
        if name not in METRICS:
            raise UnknownNameError("metric", name, METRICS)
    k = call.k or (3 if "accuracy_at_k" in wanted else 1)

    model = _model(call.model_path, use_lora=call.use_lora)
    arena = _arena(call)
    greedy = arena.play(Path(model).name or model, model)
    measures = {name: m.value for name, m in greedy.summary.measures.items()}
    if "accuracy_at_k" in wanted and k > 1:
        several = _arena(call, attempts=k, k=k).play(Path(model).name or model, model)
        measures[f"accuracy@{k}"] = several.summary.measures[f"accuracy@{k}"].value
    measures.setdefault("accuracy@1", measures["accuracy"])

    accuracy = greedy.summary.measures["accuracy"]
    result = {
        "status": "success",
        "model_path": call.model_path,
        "evaluated": model,
        "num_samples": greedy.summary.tasks,
        **{name: measures[METRICS[name].format(k=k)] for name in dict.fromkeys((*_ALWAYS, *wanted))},
        "accuracy_interval": [accuracy.low, accuracy.high],
        "device": arena.options.device,
        "conclusions": list(greedy.summary.conclusions),
        "note": _note(model, accuracy.value or 0.0),
    }
    return {**result, **_details(greedy)} if call.return_details else result


def _arena(call: EvaluateCall, *, attempts: int = 1, k: int = 1) -> Arena:
    """Return the problems and the way of playing them."""
    data, arguments = Data.of(call, measured=True), {"reward": "sparse", **call.env_kwargs}
    if data.own:
        arguments["split"] = data.part
        found, _ = data.problems(arguments, call.max_samples, seed=call.seed, endless=DEFAULT_LIMIT)
        tasks = found or []
    else:
        loaded, _ = data.loaded(call.max_samples)
        arguments["tasks"] = problems = problems_of_rows(loaded)
        tasks = list(problems)
    if call.protocol is not None:
        arguments["protocol"] = call.protocol
    given = {key: getattr(call, key) for key in _BUDGET if getattr(call, key) is not None}
    options = load_config({"updates": 1, "max_turn_tokens": call.max_new_tokens, "env": call.env, **given})
    temperature = call.temperature
    if temperature is None:
        temperature = _SAMPLED if attempts > 1 else 0.0
    if attempts > 1 and temperature == 0:
        raise ConfigError("Attempts at temperature 0 are all alike, so accuracy_at_k needs another, such as 0.7.")
    ks = sorted({1, k})
    return Arena(call.env, arguments, tasks, options, temperature=temperature, attempts=attempts, k=ks, seed=call.seed)


def _model(path: str, *, use_lora: bool) -> str:
    """Return what to load: without adapters, the model that the run's adapters were trained on."""
    run = run_of(path)
    if run is None:
        return path
    if not use_lora:
        options = run_options(run)
        if "model" not in options:
            raise CheckpointError(f"{run / 'config.yaml'} does not say what was trained.")
        return str(options["model"]) if options.get("use_lora") else path
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
