"""An evaluation on disk: JSON for programs, Markdown for a note, one HTML page for people."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trajgym.errors import StorageError
from trajgym.evaluation.compare import Comparison
from trajgym.evaluation.evaluate import Evaluation, Share
from trajgym.evaluation.records import trajectory_row, write_jsonl
from trajgym.evaluation.reference import quoted
from trajgym.evaluation.robustness import Forgetting
from trajgym.evaluation.samples import STRATA, Sample
from trajgym.evaluation.summary import Measure, Summary
from trajgym.types import to_json

__all__ = [
    "Report",
    "Result",
    "as_json",
    "as_markdown",
    "forgetting_verdict",
    "quoted_for",
    "shown_measure",
    "write_report",
]


@dataclass(frozen=True)
class Result:
    """One model on one set of tasks.

    Args:
        name: Of the model.
        evaluation: The trajectories.
        samples: A row for each of them.
        summary: What they come to.
        settings: How it was played: model, fingerprint, sampling.
    """

    name: str
    evaluation: Evaluation
    samples: Sequence[Sample]
    summary: Summary
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """Everything that one call of ``trajgym evaluate`` has found out.

    Args:
        title: Stands above it.
        results: At least one; the same tasks in each.
        settings: What is the same for all: environment, tasks, seed.
        comparisons: Of each pair of models.
        robustness: By model: on the tasks as given and on changed ones.
        forgetting: On other tasks, the first model and each later one.
    """

    title: str
    results: Sequence[Result]
    settings: Mapping[str, Any] = field(default_factory=dict)
    comparisons: Sequence[Comparison] = ()
    robustness: Mapping[str, Sequence[Comparison]] = field(default_factory=dict)
    forgetting: Sequence[Forgetting] = ()


def write_report(report: Report, folder: Path, *, most_dialogues: int = 500) -> list[Path]:
    """Write ``report.json``, ``report.md``, ``report.html``, and the rows of each model in a folder of its own.

    ``samples.jsonl`` holds the rows that the measures count, ``errors.jsonl`` the wrong ones among them, and
    ``trajectories.jsonl`` the dialogues, for :func:`trajgym.evaluation.records.read_trajectories`.

    Args:
        report: What was found out.
        folder: Where to; made if it is not there. Files of an earlier report in it are replaced.
        most_dialogues: Tasks whose dialogues the page shows; it says how many it leaves out.

    Returns:
        The three files of the report.

    Raises:
        StorageError: When the folder cannot be written.
    """
    from trajgym.evaluation.page import as_html  # needs jinja2 and matplotlib

    page = as_html(report, most_dialogues=most_dialogues)
    texts = {"report.json": as_json(report), "report.md": as_markdown(report), "report.html": page}
    try:
        for index, result in enumerate(report.results):
            place = folder / f"model-{index + 1}"
            place.mkdir(parents=True, exist_ok=True)
            rows = [{"model": result.name, **to_json(sample)} for sample in result.samples]
            write_jsonl(place / "samples.jsonl", rows)
            write_jsonl(place / "errors.jsonl", [row for row in rows if not row["correct"]])
            extra = {"model": result.name}
            write_jsonl(
                place / "trajectories.jsonl", (trajectory_row(t, extra) for t in result.evaluation.trajectories)
            )
        for name, text in texts.items():
            partial = folder / f"{name}.partial"
            partial.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
            partial.replace(folder / name)
    except OSError as error:
        raise StorageError(
            f"The report cannot be written to {folder}: {error}. Set another folder with --out."
        ) from error
    return [folder / name for name in texts]


def as_json(report: Report) -> str:
    """Return the report without its dialogues as JSON; what was not measured is ``null``."""
    results = [
        {
            "name": result.name,
            "settings": to_json(result.settings),
            "tasks": result.summary.tasks,
            "attempts": result.summary.attempts,
            "measures": {name: to_json(measure) for name, measure in result.summary.measures.items()},
            "strata": {name: _share(share) for name, share in result.summary.strata.items()},
            "errors": {kind: {"count": n, "share": s} for kind, (n, s) in result.summary.errors.items()},
            "conclusions": list(result.summary.conclusions),
            "spent": None if result.summary.spent is None else to_json(result.summary.spent),
        }
        for result in report.results
    ]
    whole = {
        "title": report.title,
        "settings": to_json(report.settings),
        "results": results,
        "comparisons": [_comparison(c) for c in report.comparisons],
        "robustness": {name: [_comparison(c) for c in found] for name, found in report.robustness.items()},
        "forgetting": [
            {**_comparison(f.comparison), "tolerance": f.tolerance, "forgot": f.forgot, "unknown": f.unknown}
            for f in report.forgetting
        ],
    }
    return json.dumps(_finite(whole), indent=1, default=str) + "\n"


def as_markdown(report: Report) -> str:
    """Return the report as tables and sentences."""
    names = [_cell(result.name) for result in report.results]
    measured = [name for name, m in report.results[0].summary.measures.items() if _somewhere(report, name) and m]
    rows = [[name, *(shown_measure(r.summary.measures[name]) for r in report.results)] for name in measured]
    settings = [f"- {_cell(key)}: `{_cell(value)}`" for key, value in report.settings.items()]
    parts = [f"# {_cell(report.title)}", "\n".join(settings), _table(["measure", *names], rows)]
    spent = [f"- {_cell(r.name)}: {_cell(r.summary.spent)}" for r in report.results if r.summary.spent is not None]
    if spent:
        parts += ["## Tokens and price", "\n".join(spent)]
    strata = [name for name in STRATA if any(name in r.summary.strata for r in report.results)]
    if strata:
        rows = [[name, *(_shown_share(r.summary.strata.get(name)) for r in report.results)] for name in strata]
        parts += ["## By difficulty", _table(["steps", *names], rows)]
    kinds = list(report.results[0].summary.errors)
    rows = [[kind, *(_shown_error(r.summary.errors[kind]) for r in report.results)] for kind in kinds]
    parts += ["## Errors", _table(["class", *names], rows)]
    for result in report.results:
        said = "\n".join(f"- {sentence}" for sentence in result.summary.conclusions)
        parts += [f"**{_cell(result.name)}**\n\n{said}"] if said else []
    if report.comparisons:
        parts += ["## Comparison", "\n".join(f"- {_cell(c)}" for c in report.comparisons)]
    if references := quoted_for(report):
        parts += ["## Quoted for reference", "\n".join(f"- {_cell(line)}" for line in references)]
    if report.robustness:
        lines = [f"- {_cell(name)}: {_cell(c)}" for name, found in report.robustness.items() for c in found]
        parts += ["## Robustness", "\n".join(lines)]
    if report.forgetting:
        lines = [f"- {_cell(f.comparison)}: {forgetting_verdict(f)}" for f in report.forgetting]
        parts += ["## Forgetting", "\n".join(lines)]
    return "\n\n".join(part for part in parts if part) + "\n"


def quoted_for(report: Report) -> list[str]:
    """Return what others say of these models on this environment, see :mod:`trajgym.evaluation.reference`."""
    models = [str(result.settings.get("model", result.name)) for result in report.results]
    return quoted(str(report.settings.get("environment", "")), models)


def shown_measure(measure: Measure) -> str:
    """Return a measure as a person reads it, with its interval: ``42.0 % (35.4 … 48.9)``."""
    if measure.value is None:
        return "–"
    share = measure.unit.startswith("share")
    scale, digits = (100, 1) if share else (1, 2)
    unit = f" %{measure.unit.removeprefix('share')}" if share else f" {measure.unit}".rstrip()
    shown = _number(measure.value * scale, digits) + unit
    if measure.low is None or measure.high is None:
        return shown
    return f"{shown} ({_number(measure.low * scale, digits)} … {_number(measure.high * scale, digits)})"


def forgetting_verdict(found: Forgetting) -> str:
    """Say whether something was forgotten."""
    if found.forgot:
        return f"**forgotten**, more than {found.tolerance:.0%} are lost"
    return "too few tasks to tell" if found.unknown else "not forgotten"


def _somewhere(report: Report, name: str) -> bool:
    return any(r.summary.measures.get(name, _NOTHING).value is not None for r in report.results)


_NOTHING = Measure(None, None, None, "", 0)


def _shown_share(share: Share | None) -> str:
    if share is None:
        return "–"
    low, high = share.interval
    return f"{100 * share.value:.1f} % of {share.tasks} ({100 * low:.1f} … {100 * high:.1f})"


def _shown_error(error: tuple[int, float]) -> str:
    return f"{error[0]} ({100 * error[1]:.1f} %)"


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if value == 0 or abs(value) >= 0.01 else f"{value:.2g}"


def _share(share: Share) -> dict[str, Any]:
    low, high = share.interval
    counts = {"right": share.successes, "attempts": share.trials, "tasks": share.tasks}
    return {**counts, "value": share.value, "low": low, "high": high}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {**to_json(comparison), "significant": comparison.significant}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    """Return a value as text that cannot break a table, a line or a piece of code."""
    text = "".join(c if c.isprintable() else " " for c in str(value))
    return text.replace("|", "\\|").replace("`", "'").replace("<", "&lt;")


def _finite(value: Any) -> Any:
    """Replace numbers that JSON has no words for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
