"""What a whole chain came to, kept small: figures, options, hashes and curves, without a word of the problems.

    trajgym pipeline pipeline_smollm2 --name smollm2                    # hours on a CPU; goes on where it was stopped
    python benchmarks/chain.py runs/smollm2                             # prints the table
    python benchmarks/chain.py runs/smollm2 --publish smollm2           # and writes benchmarks/results/chain/smollm2

A model that lies in a folder is named after it; ``--model`` gives the name that others know it by. What still names a
place on this machine is not published.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from machine import machine

from trajgym.trainers.pipeline_decision import in_words

__all__ = ["curves", "main", "plain", "table"]

PUBLISHED = Path(__file__).resolve().parent / "results" / "chain"
_PATH = re.compile(r"(?<![\w.:/])/[\w.-]+(?:/[\w.-]+)+|~/[\w./-]+")  # no web address, no fraction
_MEASURES = ("accuracy", "strict_accuracy", "format", "tool_use", "tool_errors", "turns", "length_tokens")
_COLUMNS = {
    "sft": ("update", "loss", "eval_loss", "token_accuracy", "learning_rate"),
    "grpo": ("update", "reward", "success", "kl", "entropy", "call_share", "format_share", "turns", "time/update"),
}


def main(
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(help="Run folder of the pipeline.")],
    publish: Annotated[str | None, tyro.conf.arg(help="Write what is kept under this name.")] = None,
    model: Annotated[str | None, tyro.conf.arg(help="Hub id of the base model.")] = None,
) -> int:
    """Print the table, and write what is worth keeping."""
    folder = folder.resolve()
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    config = results["config"]
    base = config["model"]["base_model"]
    config.pop("output_dir", None)
    known_as = model or (Path(base).name if Path(base).is_absolute() else base)
    results = plain(results, {base: known_as, str(folder): results["run"]})
    # Of the options as they are published, so that others can compute it.
    dumped = json.dumps(results["config"], sort_keys=True)
    results["hashes"]["config"] = f"sha256:{hashlib.sha256(dumped.encode()).hexdigest()}"
    text = table(results)
    print(text)
    if publish is not None:
        if Path(publish).name != publish or not publish.strip("."):
            print(f"Not published: {publish!r} is no plain name, and a folder of that name is replaced.")
            return 1
        facts = machine()
        results["machine"] = {"processor": facts.processor, "cores": facts.cores}
        if found := sorted(set(local_paths(results))):
            print(f"Not published: {', '.join(found)} would tell of this machine. Give data and models common names.")
            return 1
        target = PUBLISHED / publish
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        (target / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (target / "table.md").write_text(text, encoding="utf-8")
        for stage, columns in _COLUMNS.items():
            lines = list(curves(folder / stage / "metrics.jsonl", columns)) if stage in results["stages"] else []
            if lines:
                (target / f"{stage}.jsonl").write_text("".join(lines), encoding="utf-8")
    return 0


def local_paths(value: Any) -> Iterator[str]:
    """Give the absolute paths that stand in the texts of JSON values."""
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for item in value:
            yield from local_paths(item)
    elif isinstance(value, str):
        yield from _PATH.findall(value)


def plain(value: Any, names: Mapping[str, str]) -> Any:
    """Return JSON values with some texts, such as paths of this machine, written as others know them.

    Args:
        value: Any JSON value.
        names: What to write in place of what; longer texts go first.
    """
    if isinstance(value, Mapping):
        return {plain(key, names): plain(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item, names) for item in value]
    if isinstance(value, str):
        for old in sorted(names, key=len, reverse=True):
            value = value.replace(old, names[old])
    return value


def table(results: Mapping[str, Any]) -> str:
    """Return measures of each model with their intervals, comparisons, and what it took, as Markdown.

    Args:
        results: What a pipeline writes to ``results.json``.
    """
    models = results["models"]
    lines = ["| | " + " | ".join(models) + " |", "|---" * (len(models) + 1) + "|"]
    for name in _MEASURES:
        found = [model["measures"].get(name) or {} for model in models.values()]
        if any(measure.get("value") is not None for measure in found):
            lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(map(_shown, found)) + " |")
    took = ", ".join(f"{name} {stage['seconds'] / 60:.0f} min" for name, stage in results["stages"].items())
    lines += ["", *(f"- {in_words(comparison)}" for comparison in results["comparisons"]), f"- It took: {took}."]
    return "\n".join(lines) + "\n"


def curves(path: Path, columns: Sequence[str]) -> Iterator[str]:
    """Give the lines of a run's ``metrics.jsonl`` with a few columns, rounded; none where there is no such file."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        row = json.loads(line)
        kept = {name: row[name] for name in columns if row.get(name) is not None}
        yield json.dumps({k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in kept.items()}) + "\n"


def _shown(measure: Mapping[str, Any]) -> str:
    if measure.get("value") is None:
        return "–"
    share = str(measure["unit"]).startswith("share")
    numbers = [measure[key] for key in ("value", "low", "high")]
    texts = ["" if n is None else f"{100 * n:.1f} %" if share else f"{n:.3g}" for n in numbers]
    return texts[0] if not texts[1] else f"{texts[0]} [{texts[1]}, {texts[2]}]"


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
