"""Check a data set, or make one: for imitation, for rewards, with tools, with other numbers."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from trajgym.errors import ConfigError, TrajgymError
from trajgym.scripts.arguments import env_kwargs
from trajgym.trainers.data_near import NEAR
from trajgym.trainers.data_prompts import Prompter, load_tokenizer
from trajgym.trainers.data_quality import Quality, check_quality, format_of
from trajgym.trainers.data_rows import record, subset
from trajgym.trainers.data_sources import DATASETS, Loaded, Row, load_rows
from trajgym.types import to_json

__all__ = ["main"]

_FORMATS = ("expert", "raw", "renumbered", "rl", "sft")


def main(args: Sequence[str]) -> int:
    """Run one of the actions; 0: done and nothing wrong, 1: the data have errors, 2: it could not be done."""
    parser = argparse.ArgumentParser(prog="trajgym data", description=__doc__, epilog="docs/data.md tells more.")
    actions = parser.add_subparsers(dest="action", required=True)
    check = actions.add_parser("check", help="look for errors, duplicates, leaks and rows that are too long")
    check.add_argument("data", help="a registered name such as gsm8k, or a .jsonl or .json file")
    check.add_argument("--split", default="train", help="which part (train)")
    check.add_argument(
        "--against", action="append", default=[], metavar="DATA[:SPLIT]", help="data that must hold none of the rows"
    )
    check.add_argument("--near", type=float, default=NEAR, metavar="SHARE", help=f"near duplicates from here ({NEAR})")
    check.add_argument("--any-truth", action="store_true", help="the truth need not be a number")
    check.add_argument("--model", default=None, help="count tokens with this model's template")
    check.add_argument("--env", default="GSM8KTool-v0", help="environment whose prompt it is (GSM8KTool-v0)")
    check.add_argument("--max-tokens", type=int, default=None, metavar="N", help="most tokens of a row")
    check.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON, - for the standard output")
    make = actions.add_parser("make", help="write a data set in another form")
    make.add_argument("data", help="a registered name such as gsm8k, or a .jsonl or .json file, in the raw format")
    make.add_argument("--format", choices=_FORMATS, required=True, help="what to make")
    make.add_argument("--output", type=Path, required=True, metavar="FILE", help="a .jsonl file")
    make.add_argument("--split", default="train", help="which part (train)")
    make.add_argument("--max-samples", type=int, default=None, metavar="N", help="so many of the rows (all)")
    make.add_argument("--seed", type=int, default=0, help="decides which rows, and the new numbers (0)")
    make.add_argument("--model", default="tiny", help="whose template it is for (tiny)")
    make.add_argument("--env", default="GSM8KTool-v0", help="environment to train in (GSM8KTool-v0)")
    make.add_argument("--env-kwargs", type=env_kwargs, default={}, metavar="JSON", help="arguments of gym.make")
    make.add_argument("--copies", type=int, default=1, metavar="N", help="times that a problem is renumbered (1)")
    actions.add_parser("list", help="list the registered data sets")
    options = parser.parse_args(args)
    try:
        return {"check": _check, "make": _make, "list": _list}[options.action](options)
    except TrajgymError as error:  # whatever it is, it must not look like a finding
        print(f"trajgym data: {error}", file=sys.stderr)
        return 2


def _check(options: argparse.Namespace) -> int:
    if options.max_tokens is not None and options.model is None:
        raise ConfigError("--max-tokens needs a tokenizer to count with: give --model too.")
    data = load_rows(options.data, split=options.split)
    others = []
    for name in options.against:
        source, _, split = name.partition(":")
        others.append(load_rows(source, split=split or "train"))
    found = check_quality(
        data,
        splits=others,
        numeric=not options.any_truth,
        near=options.near,
        max_tokens=options.max_tokens,
        count_tokens=None if options.model is None else _counter(data, options.model, options.env),
    )
    if options.json is not None:
        _write(options.json, json.dumps({"passed": not found.errors, **to_json(found)}, indent=1, default=str) + "\n")
    if options.json != Path("-"):
        print(_report(found))
    return 1 if found.errors else 0


def _report(found: Quality) -> str:
    steps = ", ".join(f"{count} × {steps}" for steps, count in found.steps.items())
    lines = [f"{found.name}: {found.rows:,} rows in the {found.format} format", f"  steps        {steps}"]
    if found.longest is not None:
        lines.append(f"  longest row  {found.longest:,} tokens")
    if found.fingerprint:
        lines.append(f"  fingerprint  {found.fingerprint}")
    for finding in found.findings:
        lines.append(f"{'ERROR' if finding.error else 'Warning'} ({finding.kind}): {finding.what}")
    warnings = len(found.findings) - len(found.errors)
    lines.append(f"{'FAILED' if found.errors else 'PASSED'}: {len(found.errors)} errors, {warnings} warnings.")
    return "\n".join(lines)


def _counter(data: Loaded, model: str, env: str) -> Callable[[Row], int]:
    tokenizer = load_tokenizer(model)
    prompter = Prompter(tokenizer, env=env)
    renderer = prompter.renderer
    kind = format_of(data.rows)
    if kind == "rl":
        return lambda row: len(tokenizer.encode(row["prompt"], add_special_tokens=False))
    if kind == "raw":
        return lambda row: (
            len(renderer.prompt(prompter.messages(row["question"]))) + len(renderer.turn(row["answer"])) + 1
        )
    from trajgym.trainers.data import tokenized

    return lambda row: sum(len(made["input_ids"]) for made in tokenized([row], renderer))


def _make(options: argparse.Namespace) -> int:
    loaded = load_rows(options.data, split=options.split)
    data = Loaded(loaded.name, subset(loaded.rows, options.max_samples, seed=options.seed))
    rows, told = _made(data, options)
    _write(options.output, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    kept = record(data.name, rows, format=options.format, max_samples=options.max_samples, seed=options.seed)
    print(told)
    print(f"{options.output}: {len(rows):,} rows, {kept['fingerprint']}")
    return 0


def _made(data: Loaded, options: argparse.Namespace) -> tuple[Sequence[Row], str]:
    if options.format == "raw":
        return data.rows, f"{len(data.rows):,} rows of {data.name}"
    if options.format == "renumbered":
        from trajgym.trainers.data_renumber import renumbered

        new = renumbered(data.rows, copies=options.copies, seed=options.seed)
        return new.rows, new.summary
    if options.format == "expert":
        return _expert_rows(data, options)
    from trajgym.trainers.datasets import format_math_dataset

    made = format_math_dataset(
        data, options.format, options.model, env=options.env, env_kwargs=options.env_kwargs
    ).to_list()
    return made, f"{len(made):,} rows of {data.name} for {options.model} in {options.env}"


def _expert_rows(data: Loaded, options: argparse.Namespace) -> tuple[Sequence[Row], str]:
    from trajgym.policies.render import Renderer
    from trajgym.trainers.data_expert import expert_set
    from trajgym.trainers.datasets import tasks_of

    own = Renderer(load_tokenizer(options.model)).protocol
    kwargs = ({} if own is None else {"protocol": own}) | options.env_kwargs
    made = expert_set(tasks_of(data.rows, name=data.name), env=options.env, env_kwargs=kwargs, seed=options.seed)
    return made.rows, made.summary


def _list(options: argparse.Namespace) -> int:
    print("\n".join(sorted(DATASETS)))
    return 0


def _write(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    if path == Path("-"):
        print(text, end="")
        return
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            try:
                file.write(text)
                file.close()
                os.replace(file.name, path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
