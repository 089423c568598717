"""What a pipeline has found out: ``results.json`` for programs, and one summary for people, as Markdown and HTML."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trajgym import __version__
from trajgym.trainers.pipeline_config import PipelineConfig
from trajgym.trainers.pipeline_decision import analyse, decide, in_words
from trajgym.trainers.pipeline_page import Section, as_html, as_markdown
from trajgym.trainers.pipeline_state import PipelineFolder, write_text

__all__ = ["collect_results", "write_results"]

_TOLD = ("accuracy", "strict_accuracy", "format", "tool_use", "tool_errors", "turns", "length_tokens", "time", "reward")
_HASHED = {"train": "train problems", "test": "test problems", "imitated": "imitated rows"}


def collect_results(
    config: PipelineConfig, folder: PipelineFolder, stages: Sequence[str], *, stopped: str = ""
) -> dict[str, Any]:
    """Return everything that the stages have found out, as JSON values.

    Args:
        config: The options.
        folder: With the records of the stages.
        stages: Their names in order.
        stopped: Why the chain did not come to its end; empty when it did.
    """
    done = {name: folder.records[name] for name in stages if name in folder.records and not _later(name, stopped)}
    models: dict[str, Any] = {}
    comparisons: list[Any] = []
    for name in ("sft_evaluation", "grpo_evaluation"):
        if name in done:
            models |= done[name].result["models"]
            comparisons = done[name].result["comparisons"]
    analysis = analyse(models)
    known = done["data"].result["fingerprints"]
    dumped = json.dumps(config.plain(), sort_keys=True)
    return {
        "run": folder.path.name,
        "trajgym": __version__,
        "status": "stopped at the gate" if stopped else "done",
        "config": config.plain(),
        "stages": {
            name: {"status": record.status, "seconds": round(record.seconds, 1), **record.result}
            for name, record in done.items()
        },
        "models": models,
        "comparisons": comparisons,
        "hashes": {
            "config": f"sha256:{hashlib.sha256(dumped.encode()).hexdigest()}",
            **{name: known[part] for part, name in _HASHED.items() if known[part]},
            **{
                f"{name} weights": record.result["weights"]
                for name, record in done.items()
                if record.result.get("weights")
            },
        },
        "analysis": analysis,
        "decision": decide(comparisons, analysis, stopped=stopped),
    }


def write_results(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``results.json``, ``summary.md`` and ``summary.html``, and return their paths.

    Raises:
        StorageError: When they cannot be written.
    """
    title, sections = f"{results['run']}: {results['status']}", _sections(results)
    texts = {
        "results.json": json.dumps(results, indent=1, default=str) + "\n",
        "summary.md": as_markdown(title, sections),
        "summary.html": as_html(title, sections),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def _later(stage: str, stopped: str) -> bool:
    """Whether a stage of an earlier, better run is no part of this one, which the gate has stopped."""
    return bool(stopped) and stage in ("grpo", "grpo_evaluation", "deployment")


def _sections(results: Mapping[str, Any]) -> list[Section]:
    """Return the summary, the most important first."""
    models, stages, decision = results["models"], results["stages"], results["decision"]
    names = list(models)
    measured = [m for m in _TOLD if any(models[n]["measures"].get(m, {}).get("value") is not None for n in names)]
    table = [[measure, *(_measure(models[name]["measures"][measure]) for name in names)] for measure in measured]
    ran = [[name, stage["status"], f"{stage['seconds']:.0f} s", _what(name, stage)] for name, stage in stages.items()]
    kinds = list(dict.fromkeys(kind for name in names for kind in models[name]["errors"]))
    errors = [[kind, *(_error(models[name]["errors"].get(kind)) for name in names)] for kind in kinds]
    sections = [
        Section("Next", [decision["next"], *decision["because"]]),
        Section("Before and after", ["Brackets hold 95 % intervals."], ["", *names], table),
        Section("Compared on the same problems", [in_words(c) for c in results["comparisons"]]),
        Section("Where it fails", list(results["analysis"]), ["class of error", *names] if errors else [], errors),
        Section("What ran", [f"{_minutes(stages)} in all."], ["stage", "", "time", "what came of it"], ran),
    ]
    if "deployment" in stages:
        told = stages["deployment"]
        sections.append(Section("Serve it", [f"{told['why']} It is in {told['model']}.", told["serve"]]))
    hashes = [[name, value] for name, value in results["hashes"].items()]
    sections.append(Section("What it was made of", [], ["", "hash"], hashes))
    options = json.dumps(results["config"], ensure_ascii=False)
    sections.append(Section("Options", [f"trajgym {results['trajgym']}; config.yaml holds: {options}"]))
    return sections


def _what(name: str, stage: Mapping[str, Any]) -> str:
    if name == "data":
        findings = f"; {' '.join(stage['findings'])}" if stage["findings"] else ""
        made_up = stage["drawn"] is not None
        counted = [f"{stage['train']:,} problems to {'imitate' if made_up else 'train on'}"] if stage["train"] else []
        counted += [f"{stage['rows']:,} rows to imitate"] if stage["rows"] is not None else []
        counted += [f"{stage['drawn']:,} problems drawn anew for GRPO"] if made_up else []
        return f"{', '.join(counted)}, {stage['test']:,} to measure on{findings}"
    if name in ("sft", "grpo"):
        curves = [f"{key} {_plain(c['first'])} → {_plain(c['last'])}" for key, c in stage["curves"].items()]
        return f"{stage['steps']:,} steps; {', '.join(curves)}"
    if name == "deployment":
        return f"{stage['chosen']} → {stage['model']}"
    return f"{', '.join(stage['models'])}: {stage['report']}"


def _measure(measure: Mapping[str, Any]) -> str:
    if measure["value"] is None:
        return "–"
    share = str(measure["unit"]).startswith("share")

    def shown(value: float) -> str:
        return f"{100 * value:.1f}" if share else f"{value:.3g}"

    unit = " %" if share else f" {measure['unit']}".rstrip()
    text = shown(measure["value"]) + unit
    if measure["low"] is None:
        return text
    return f"{text} ({shown(measure['low'])} … {shown(measure['high'])})"


def _error(found: Mapping[str, Any] | None) -> str:
    return f"{found['count']} ({100 * found['share']:.1f} %)" if found else "0"


def _minutes(stages: Mapping[str, Mapping[str, Any]]) -> str:
    seconds = sum(stage["seconds"] for stage in stages.values())
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _plain(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
