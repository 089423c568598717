"""Whether we grade GSM8K as lm-evaluation-harness does: the same completions, graded by both, every difference named.

    python benchmarks/lm_eval_agreement.py --model MODEL --limit 40

The harness plays its own task ``gsm8k`` (five examples, plain text, greedy) with the model, a folder or a hub id, and
what it generated is then graded by us: its filter ``strict-match`` beside our strict accuracy, ``flexible-extract``
beside our lenient one. The same is done with the 5,276 completions that were published with GSM8K, as they are and with
their last line written as the data set writes it (``#### 72`` for ``A: 72``). Without ``--model`` only with these.

The harness is installed into an environment of its own the first time; it shares torch and transformers with this one,
so that both sides have the same numbers. Ends with status 1 when a difference has no name or figures do not add up.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interpreter_peers import PeerError, Release, install, make_environment
from lm_eval_classes import FLEXIBLE, STRICT, UNEXPLAINED, explain, ours, read_alike
from rich.console import Console
from rich.table import Table

from trajgym.rewards.answer import read

__all__ = ["Agreement", "main"]

ROOT = Path(__file__).resolve().parents[1]
DRIVER = Path(__file__).resolve().with_name("lm_eval_driver.py")
# What the harness's task, filters, metric and model need beyond what this project has; whole, it wants forty packages.
HARNESS = Release(
    "lm-evaluation-harness 0.4.13",
    "lm_eval_whole",
    ("lm-eval==0.4.13", "sacrebleu==2.6.0", "portalocker==4.4.2", "tabulate==0.10.0", "colorama==0.4.6", "lxml==6.1.3"),
)
PUBLISHED = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
PAIRS = ((STRICT, "strict"), (FLEXIBLE, "lenient"))
_LAST_LINE = re.compile(r"\nA: ?(?=[^\n]*\Z)")
PAGE = 140  # characters a line, where no terminal says


@dataclass
class Agreement:
    """Two graders on the completions of one run.

    Args:
        run: Name of the run.
        name: The harness's filter.
        theirs: Right answers by the harness.
        ours: Right answers by us.
        both: Right answers by both.
        alike: Completions of which both read the same number, right or wrong, or both none.
        rows: Completions.
        sums: The harness's own accuracy, in [0, 1].
        differences: The rows that are graded differently, each with the class it falls in.
    """

    run: str
    name: str
    theirs: int = 0
    ours: int = 0
    both: int = 0
    alike: int = 0
    rows: int = 0
    sums: float = 0.0
    differences: list[dict[str, Any]] = field(default_factory=list)

    def add(self, line: dict[str, Any]) -> None:
        """Count a problem that the harness has graded."""
        completion, target = line["completion"], line["target"]
        paid = line["paid"][self.name]
        right = ours(completion, target, self.name)
        self.rows += 1
        self.theirs += paid
        self.ours += right
        self.both += paid and right
        self.alike += read_alike(completion, self.name, line["found"][self.name])
        why = explain(completion, target, self.name, line["found"][self.name], paid)
        if why:
            reading = read(completion)
            mine = {"source": reading.source(completion), "rule": reading.rule, "reason": reading.reason}
            found = {"problem": line["problem"], "theirs": line["found"][self.name], "paid_by_them": paid, **mine}
            self.differences.append({**found, "class": why, "completion": completion})

    @property
    def classes(self) -> dict[tuple[str, bool], int]:
        """How many rows fall in each class, by its name and whether it is the harness that pays them."""
        return dict(Counter((row["class"], row["paid_by_them"]) for row in self.differences).most_common())

    @property
    def adds_up(self) -> bool:
        """Whether the classes account for the whole difference, and the harness's own sum is that of its rows."""
        only_theirs = sum(count for (_, paid), count in self.classes.items() if paid)
        only_ours = sum(count for (_, paid), count in self.classes.items() if not paid)
        whole = self.both + only_theirs == self.theirs and self.both + only_ours == self.ours
        return whole and self.rows > 0 and abs(self.sums - self.theirs / self.rows) < 1e-9

    @property
    def explained(self) -> bool:
        """Whether every difference has a name."""
        return all(row["class"] != UNEXPLAINED for row in self.differences)


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate, grade, print the table and write the differences. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="lm_eval_agreement", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--model", help="a folder in Hugging Face's format, or a hub id")
    add("--limit", type=int, default=40, metavar="N", help="the model plays the first N problems (default: 40)")
    add("--batch-size", type=int, default=1, metavar="N", help="problems generated together (default: 1)")
    add("--published", type=int, default=1319, metavar="N", help="problems whose published completions are graded")
    add("--data", type=Path, default=os.environ.get("TRAJGYM_DATA"), metavar="FOLDER", help="holds gsm8k/")
    add("--cache", type=Path, default=ROOT / ".cache" / "benchmarks", metavar="FOLDER")
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("give --data, or set TRAJGYM_DATA to the folder that holds gsm8k/")
    if options.limit < 1 or options.batch_size < 1 or options.published < 0:
        parser.error("--limit and --batch-size must be at least 1, --published at least 0")
    data = options.data.resolve() / "gsm8k"
    runs = list(_published(data, options.published)) if options.published else []
    if options.model is not None:
        folder = Path(options.model).expanduser()
        model = str(folder.resolve()) if folder.is_dir() else options.model
        runs.append({"name": "generated", "model": model, "limit": options.limit, "batch_size": options.batch_size})
    try:
        found = graded(_lines({"data": str(data), "runs": runs}, options.cache.resolve()))
    except PeerError as error:
        print(f"lm_eval_agreement: {HARNESS.title}: {error}", file=sys.stderr)
        return 2
    console = Console(width=None if sys.stdout.isatty() else PAGE)
    console.print(_table(found))
    console.print(_classes(found))
    target = options.cache / "lm_eval_agreement.json"
    target.write_text(json.dumps([_plain(one) for one in found], indent=1) + "\n", encoding="utf-8")
    print(f"Every row that differs: {target}; every completion: lm_eval_graded.jsonl beside it")
    return 0 if all(one.adds_up and one.explained for one in found) else 1


def graded(lines: Iterator[dict[str, Any]]) -> list[Agreement]:
    """Grade what the harness has graded, run by run."""
    found: dict[tuple[str, str], Agreement] = {}
    for line in lines:
        for name, _ in PAIRS:
            one = found.setdefault((line["run"], name), Agreement(line["run"], name))
            if "sums" in line:
                one.sums = line["sums"][name]
            else:
                one.add(line)
    return list(found.values())


def _published(data: Path, count: int) -> Iterator[dict[str, Any]]:
    """Yield the published completions of the first problems as runs, in the order of the harness's problems."""
    rows = {row["question"]: row for row in _jsonl(data / "example_model_solutions.jsonl")}
    problems = _jsonl(data / "test.jsonl")[:count]
    for model in PUBLISHED:
        said = [rows[problem["question"]][model]["solution"] for problem in problems]
        yield {"name": f"{model}, as published", "completions": said, "limit": len(problems)}
        marked = [_LAST_LINE.sub("\n#### ", text) for text in said]
        yield {"name": f"{model}, with ####", "completions": marked, "limit": len(problems)}


def _jsonl(path: Path) -> list[dict[str, Any]]:
    # Not splitlines(): other line ends may stand in the texts.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _lines(job: dict[str, Any], cache: Path) -> Iterator[dict[str, Any]]:
    """Yield what the harness says of a job.

    Raises:
        PeerError: When it does not install or run here.
    """
    python = make_environment(cache / HARNESS.name, pip=True)
    (shared,) = (cache / HARNESS.name / "lib").glob("python3*/site-packages")
    # Behind its own packages it finds those of this environment.
    here = [path for path in sys.path if path.endswith("-packages")]
    (shared / "trajgym_environment.pth").write_text("\n".join(here) + "\n", encoding="utf-8")
    install(HARNESS, cache)
    done = subprocess.run(
        [python, "-P", DRIVER], input=json.dumps(job), stdout=subprocess.PIPE, text=True, encoding="utf-8", check=False
    )
    if done.returncode != 0:
        raise PeerError(f"it ended with status {done.returncode}; its last words are above")
    (cache / "lm_eval_graded.jsonl").write_text(done.stdout, encoding="utf-8")  # generations take long
    yield from map(json.loads, filter(None, done.stdout.split("\n")))


def _table(found: Sequence[Agreement]) -> Table:
    table = Table(
        title=f"Accuracy on the same completions: {HARNESS.title} and trajgym",
        caption="theirs, ours: % right; read alike: rows of which both read the same number, right or wrong",
    )
    for column in ("completions", "filter, measure"):
        table.add_column(column, no_wrap=True)
    for column in ("rows", "theirs", "ours", "only theirs", "only ours", "read alike", "adds up"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in found:
        shares = [f"{100 * right / max(1, one.rows):.2f}" for right in (one.theirs, one.ours)]
        only = [str(one.theirs - one.both), str(one.ours - one.both), str(one.alike)]
        table.add_row(one.run, f"{one.name}, {dict(PAIRS)[one.name]}", str(one.rows), *shares, *only, _yes(one.adds_up))
    return table


def _classes(found: Sequence[Agreement]) -> Table:
    table = Table(title="Rows that differ")
    for column in ("completions", "filter", "paid by", "class"):
        table.add_column(column)
    table.add_column("rows", justify="right")
    for one in found:
        for (name, paid), count in one.classes.items():
            table.add_row(one.run, one.name, "them" if paid else "us", name, str(count))
    return table


def _yes(right: bool) -> str:
    return "yes" if right else "NO"


def _plain(one: Agreement) -> dict[str, Any]:
    classes = [{"class": name, "paid_by_them": paid, "rows": count} for (name, paid), count in one.classes.items()]
    names = ("rows", "theirs", "ours", "both", "alike", "sums")
    counts = {name: getattr(one, name) for name in names}
    return {"run": one.run, "filter": one.name, **counts, "classes": classes, "differences": one.differences}


if __name__ == "__main__":
    sys.exit(main())
