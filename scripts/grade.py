"""Grade the completions in a JSON file, and show how each answer was read."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from trajgym.errors import ConfigError, DataError
from trajgym.rewards.answer_kinds import ANSWER_KINDS, grade
from trajgym.scripts.grade_file import BadRow
from trajgym.scripts.grade_rows import ANSWER_COLUMNS, TEXT_COLUMNS, read_rows
from trajgym.scripts.grade_tables import Graded, show

__all__ = ["main"]

_PAGE = 140  # characters a line, where no terminal says


def main(args: Sequence[str]) -> int:
    """Grade a file; the exit status is 1 when rows cannot be used, or the file's own verdicts differ."""
    parser = argparse.ArgumentParser(prog="trajgym grade", description=__doc__, epilog=main.__doc__)
    parser.add_argument("file", help="JSON objects, one a line or in an array; - for standard input")
    parser.add_argument("--text", metavar="COLUMN", help=f"the completion: {', '.join(TEXT_COLUMNS[:4])} … by default")
    parser.add_argument("--answer", metavar="COLUMN", help=f"the truth: {', '.join(ANSWER_COLUMNS[:4])} … by default")
    parser.add_argument("--kind", choices=ANSWER_KINDS, help="what the answers are (default: answer_kind, else number)")
    parser.add_argument("--wrong", action="store_true", help="list only what is wrong or could not be read")
    parser.add_argument("--rows", type=_count, default=100, help="list at most so many rows, 0 for all (default: 100)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(args)
    graded: list[Graded] = []
    bad: list[BadRow] = []
    with ExitStack() as stack:
        try:
            file = sys.stdin.buffer if options.file == "-" else stack.enter_context(Path(options.file).open("rb"))
        except OSError as error:
            raise ConfigError(f"{options.file} cannot be read: {error.strerror}.") from error
        for row in read_rows(file, options.text, options.answer, options.kind):
            if isinstance(row, BadRow):
                bad.append(row)
                continue
            try:
                graded.append(Graded(row, grade(row.text, row.answer, row.kind)))
            except DataError as error:
                bad.append(BadRow(row.line, str(error)))
    if not graded and not bad:
        raise ConfigError(f"{options.file} holds no rows.")
    if options.json:
        print(json.dumps(_report(graded, bad, only_wrong=options.wrong), indent=1))
    else:
        console = Console(width=None if sys.stdout.isatty() else _PAGE)
        with console.capture() as captured:  # rich would answer a closed pipe in its own way
            show(console, graded, bad, wrong=options.wrong, most=options.rows)
        print(captured.get(), end="")
    return 1 if bad or any(one.disputed for one in graded) else 0


def _report(graded: Sequence[Graded], bad: Sequence[BadRow], *, only_wrong: bool) -> dict[str, Any]:
    flagged = [one for one in graded if one.completion.flag is not None]
    verdicts = Counter(one.verdict for one in graded)
    return {
        "completions": len(graded),
        "right": verdicts["right"],
        "wrong": verdicts["wrong"],
        "unread": verdicts["unread"],
        "by_rule": dict(Counter(one.grade.reading.rule for one in graded)),
        "by_reason": dict(Counter(one.grade.reading.reason for one in graded if one.grade.reading.reason)),
        "flagged": len(flagged),
        "agreed": sum(not one.disputed for one in flagged),
        "bad_rows": [{"line": row.line, "reason": row.reason} for row in bad],
        "rows": [_row(one) for one in graded if not only_wrong or not one.grade.correct or one.disputed],
    }


def _row(one: Graded) -> dict[str, Any]:
    completion, reading = one.completion, one.grade.reading
    return {
        "line": completion.line,
        "name": completion.name,
        "verdict": one.verdict,
        "answer": completion.answer,
        "source": reading.source(completion.text),
        "span": reading.span,
        "rule": reading.rule,
        "tier": reading.tier,
        "reason": reading.reason,
        "flag": completion.flag,
    }


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number of 0 or more, got {text!r}")
    return int(text)
