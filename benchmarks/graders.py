"""How often graders misjudge tricky answers: ours, and those of other projects, on the same rows.

    python benchmarks/graders.py [FILE.jsonl]

Each row has a ``completion``, a ``ground_truth`` and ``expected_correct``, what a careful reader says. The other
graders are installed into environments of their own the first time and run as they ship.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interpreter_peers import PeerError, Release, install
from rich.console import Console
from rich.table import Table

from trajgym.rewards.answer import correct

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]
DRIVER = Path(__file__).resolve().with_name("graders_driver.py")
CASES = Path(os.environ.get("TRAJGYM_CASES") or ROOT.parent / "shared" / "cases") / "answers.jsonl"

HARNESS = Release("lm-evaluation-harness 0.4.13", "lm_eval", ("lm-eval==0.4.13", "numpy==2.3.5", "pyyaml==6.0.3"))
VERL = Release("verl 0.9.1", "verl", ("verl==0.9.1",))
MATH_VERIFY = Release(
    "Math-Verify 0.9.0",
    "math_verify",
    (
        "math-verify==0.9.0",
        "latex2sympy2_extended==1.11.0",
        "antlr4-python3-runtime==4.13.2",
        "sympy==1.14.0",
        "mpmath==1.3.0",
    ),
)
# (title of the row, release, name in the driver)
OTHERS = (
    (f"{HARNESS.title}, strict-match", HARNESS, "lm_eval_strict"),
    (f"{HARNESS.title}, flexible-extract", HARNESS, "lm_eval_flexible"),
    (f"{VERL.title}, strict", VERL, "verl_strict"),
    (f"{VERL.title}, flexible", VERL, "verl_flexible"),
    (MATH_VERIFY.title, MATH_VERIFY, "math_verify"),
)


@dataclass(frozen=True, slots=True)
class Score:
    """How one grader judged the rows.

    Args:
        name: The grader.
        paid: Wrong answers it pays.
        refused: Right answers it does not.
        failed: Rows on which it raised.
        error: Why there is no score.
    """

    name: str
    paid: int = 0
    refused: int = 0
    failed: int = 0
    error: str = ""

    @property
    def wrong(self) -> int:
        """Rows misjudged, in whatever way."""
        return self.paid + self.refused + self.failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Grade the rows with everything that installs, and print the table. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="graders.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=CASES, help=f"rows to grade, by default {CASES}")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="only our own grader")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "benchmarks", metavar="FOLDER")
    options = parser.parse_args(arguments)
    try:
        rows = _rows(options.file)
    except (OSError, ValueError, KeyError) as error:
        print(f"graders: {options.file}: {error!r}", file=sys.stderr)
        return 2
    ours = [correct(row["completion"], row["ground_truth"]) for row in rows]
    scores = [_score("trajgym", rows, [{"correct": value} for value in ours])]
    if options.peers:
        scores += [_other(title, release, name, rows, options.cache.resolve()) for title, release, name in OTHERS]
    console = Console()
    console.print(_table(scores, len(rows)))
    for score in scores:
        if score.error:
            console.print(f"{score.name}: {score.error}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows, without those whose ground truth is itself unreadable: other graders have no word for that."""
    # Not splitlines(): other line ends may stand in the texts.
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [row for row in rows if not row.get("must_raise") and isinstance(row["expected_correct"], bool)]


def _other(title: str, release: Release, name: str, rows: Sequence[dict[str, Any]], cache: Path) -> Score:
    print(f"{title} …", file=sys.stderr, flush=True)
    try:
        python = install(release, cache)
    except PeerError as error:
        return Score(title, error=f"does not install here: {error}")
    requests = "".join(
        json.dumps({"completion": row["completion"], "truth": row["ground_truth"]}) + "\n" for row in rows
    )
    done = subprocess.run([python, "-P", DRIVER, name], input=requests, capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(rows):
        return Score(title, error=f"does not run here: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return _score(title, rows, answers)


def _score(name: str, rows: Sequence[dict[str, Any]], answers: Sequence[dict[str, Any]]) -> Score:
    judged = [(row["expected_correct"], answer.get("correct")) for row, answer in zip(rows, answers, strict=True)]
    return Score(
        name,
        paid=sum(expected is False and found is True for expected, found in judged),
        refused=sum(expected is True and found is False for expected, found in judged),
        failed=sum(found is None for _, found in judged),
    )


def _table(scores: Sequence[Score], rows: int) -> Table:
    table = Table(title=f"{rows} tricky answers", caption="share misjudged, and how")
    table.add_column("grader")
    for column in ("misjudged", "%", "wrong paid", "right refused", "raised"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in scores:
        if one.error:
            table.add_row(one.name, *["–"] * 5)
        else:
            counts = (one.paid, one.refused, one.failed)
            table.add_row(one.name, str(one.wrong), f"{100 * one.wrong / rows:.0f}", *map(str, counts))
    return table


if __name__ == "__main__":
    sys.exit(main())
