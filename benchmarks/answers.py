r"""How fast answers are read and compared: real replies, growing texts, hostile ones, and formulas.

    python benchmarks/answers.py --data FOLDER

Each text is read several times and its fastest time counts, since whatever else the machine does only adds to it.
The folder holds ``gsm8k/example_model_solutions.jsonl`` (default: ``$TRAJGYM_DATA``); without it there are no real
replies.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from machine import machine
from rich.console import Console
from rich.table import Table

from trajgym.rewards.answer import correct, read, truth
from trajgym.rewards.symbolic import equal_expressions

__all__ = ["main"]

TARGET_US = 50  # microseconds for reading and comparing one real reply, in the median
PAGE = 110  # characters a line, where no terminal says
ROUNDS = 5
LENGTHS = (1_000, 10_000, 100_000, 200_000)
PARAGRAPH = "He sold 48/2 = <<48/2=24>>24 clips in May, so that makes 48 + 24 = 72 clips.\n"
PIECES = {
    "prose with numbers": PARAGRAPH,
    "weak markers": "The answer is 72 clips.\n",
    "headings": "#### Step 1: add\n",
    "boxes": r"\boxed{72} ",
    "opening brackets": "(",
    "opening tags": "<answer>",
    "reasoning": "<think>5</think>",
    "fences": "```python\n5\n```\n",
    "digits": "1",
    "comma groups": ",000",
    "dots": "1.",
    "powers": "1^",
    "blanks": "answer " + " " * 93,
    "line ends": "Q:\n",
    "dashes": "-",
}
HOSTILE = {
    "100 kB of brackets": "(" * 50_000 + "72" + ")" * 50_000,
    "100 kB of nested boxes": r"\boxed{" * 12_500 + "72" + "}" * 12_500,
    "a million digits": "#### " + "7" * 999_000,
    "100,000 markers": "#### 72 " * 100_000,
    "100,000 markers without a number": "answer is " * 100_000,
    "100,000 headings": "#### Step\n" * 100_000,
    "100,000 tags": "<answer>" * 100_000,
    "a million blanks": "answer" + " " * 999_000,
    "a million line ends": "#### 72" + "\n" * 990_000 + "Q",
    "invisible signs": "72\u200b" * 330_000,
}
FORMULAS = {
    "numbers": ("0.5", r"\frac{1}{2}"),
    "polynomials": ("(x+1)^2", "x^2+2x+1"),
    "quotients": (r"\frac{x^2-1}{x-1}", "x+1"),
    "roots": (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
    "functions": (r"\sin 2x", r"2\sin x\cos x"),
    "intervals": (r"(-\infty, 2]\cup[3,4)", r"[3,4) \cup (-\infty,2]"),
    "matrices": (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,2],[3,4]]"),
    "equations": ("y = 2x+1", "2x - y + 1 = 0"),
    "a tower of powers": ("9^{9^{9^9}}", "9^{9^{9^9}}"),
    "nested roots": (r"\sqrt{2+" * 30 + "2" + "}" * 30, "2"),
    "a factorial of a factorial": ("((9!)!)!", "1"),
    "a power of a long sum": ("(a+b+c+d+f+g)^{60}", "(g+f+d+c+b+a)^{60}"),
    "a sum of quotients": ("+".join(rf"\frac{{1}}{{x+{i}}}" for i in range(40)), "x"),
    "100,000 terms": ("+".join("x" for _ in range(100_000)), "x"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the tables. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="answers", description="Measure how fast answers are read.")
    parser.add_argument("--data", type=Path, default=os.environ.get("TRAJGYM_DATA"), help="folder with gsm8k/")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="times each text is read (default: %(default)s)")
    options = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PAGE)
    facts = machine()
    console.print(
        f"{facts.cores} cores of {facts.processor}, Python {facts.python}, load average {facts.load:.2f} at the start. "
        f"Fastest of {options.rounds}.",
        highlight=False,
    )
    if options.data is not None:
        console.print(replies(options.data / "gsm8k" / "example_model_solutions.jsonl", options.rounds))
    console.print(growth(options.rounds))
    console.print(hostile(options.rounds))
    console.print(formulas(options.rounds))
    return 0


def fastest(work: Callable[[], object], rounds: int) -> float:
    """Return the seconds of the fastest of several runs."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def replies(path: Path, rounds: int) -> Table:
    """Read and compare every published sample solution, as a reward does."""
    pairs = list(_solutions(path))
    seconds = sorted(fastest(lambda text=text, answer=answer: correct(text, answer), rounds) for text, answer in pairs)
    table = Table("read and compare", "µs", "target", title=f"{len(pairs):,} real replies")
    table.add_row("median", f"{1e6 * statistics.median(seconds):.1f}", f"≤ {TARGET_US}")
    table.add_row("95th percentile", f"{1e6 * seconds[int(0.95 * len(seconds))]:.1f}")
    table.add_row("slowest", f"{1e6 * seconds[-1]:.1f}")
    return _right(table)


def _solutions(path: Path) -> Iterable[tuple[str, str]]:
    # Not splitlines(): a text may hold other signs that count as line ends.
    for line in filter(None, path.read_text(encoding="utf-8").split("\n")):
        row = json.loads(line)
        answer = row["ground_truth"].rpartition("A:")[2].strip()
        truth(answer)
        yield from ((value["solution"], answer) for value in row.values() if isinstance(value, dict))


def growth(rounds: int) -> Table:
    """Read texts of growing length; twice the text takes about twice as long."""
    names = [f"{length:,}" for length in LENGTHS]
    table = Table("µs by characters", *names, "last two", title="Growth")
    for name, piece in PIECES.items():
        texts = [(piece * (length // len(piece) + 1))[:length] for length in LENGTHS]
        seconds = [fastest(lambda text=text: read(text), rounds) for text in texts]
        table.add_row(name, *(f"{1e6 * s:,.0f}" for s in seconds), f"x {seconds[-1] / seconds[-2]:.1f}")
    return _right(table)


def hostile(rounds: int) -> Table:
    """Read texts made to take long."""
    table = Table("text", "characters", "ms", title="Hostile texts")
    for name, text in HOSTILE.items():
        table.add_row(name, f"{len(text):,}", f"{1e3 * fastest(lambda text=text: read(text), rounds):.1f}")
    return _right(table)


def formulas(rounds: int) -> Table:
    """Compare formulas; the first comparison, which loads sympy, is not counted."""
    equal_expressions("x", r"\sin x")
    table = Table("formulas", "characters", "ms", "same", title="Formulas")
    for name, (a, b) in FORMULAS.items():
        seconds = fastest(lambda a=a, b=b: equal_expressions(a, b), rounds)
        same = "yes" if equal_expressions(a, b) else "no"
        table.add_row(name, f"{len(a) + len(b):,}", f"{1e3 * seconds:.2f}", same)
    return _right(table)


def _right(table: Table) -> Table:
    for column in table.columns[1:]:
        column.justify = "right"
    return table


if __name__ == "__main__":
    raise SystemExit(main())
