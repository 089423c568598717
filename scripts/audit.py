"""Audit a reward: play exploits against it, and say which earn as much as honest work."""

from __future__ import annotations

import argparse
import functools
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from trajgym.envs.make import make
from trajgym.errors import ConfigError, TrajgymError
from trajgym.evaluation.audit import GAMMA, Audit, Finding, Row, audit
from trajgym.policies.exploiters import EXPLOITS, WRONG
from trajgym.rewards import RewardCriteria
from trajgym.scripts.arguments import env_kwargs
from trajgym.types import to_json

__all__ = ["main"]

_HEADING = {
    "breaks": "the machinery fails",
    "pays_nothing": "nobody earns anything",
    "as_good_as_honest": "as good as honest work",
    "most_of_the_expert": "most of the expert's return without solving",
    "shortcut": "tasks are solved without their work",
    "padding": "padding pays",
    "leak": "pay beyond that for the work",
}
_ADVICE = {
    "breaks": "Repair the environment or the tool: no input of a policy may make it fail.",
    "pays_nothing": "Choose a reward with a term for what can be done here, such as the right answer.",
    "as_good_as_honest": "Pay the term for the right answer only, or weigh the answer more than all the term can pay.",
    "most_of_the_expert": "Give the right answer more weight than everything else together.",
    "shortcut": "Make the tasks harder to guess: their answers can be had without the work.",
    "padding": "Cap the term by what the task needs.",
    "leak": "Cap the term by what the task needs, or pay it for the right answer only.",
}


def main(args: Sequence[str]) -> int:
    """Audit each environment with each reward; 0: nothing found, 1: findings, 2: it could not be done."""
    parser = argparse.ArgumentParser(prog="trajgym audit", description=__doc__, epilog="docs/audit.md tells more.")
    parser.add_argument("env", nargs="*", help="environment ids, see `trajgym envs`")
    parser.add_argument(
        "--reward", type=_names, default=[], metavar="A,B", help="rewards by name (the environment's own)"
    )
    parser.add_argument("--tasks", type=int, default=20, metavar="N", help="tasks to play (20)")
    parser.add_argument("--seed", type=int, default=0, help="decides the tasks and all draws (0)")
    parser.add_argument("--gamma", type=float, default=GAMMA, help=f"discount per turn ({GAMMA:g})")
    parser.add_argument("--env-kwargs", type=env_kwargs, default={}, metavar="JSON", help="arguments of gym.make")
    parser.add_argument("--exploits", type=_names, default=None, metavar="A,B", help="exploits by name (all)")
    parser.add_argument("--strict", action="store_true", help="count leaks as findings")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON, - for the standard output")
    parser.add_argument("--list", action="store_true", help="list the exploits")
    options = parser.parse_args(args)
    try:
        return _list() if options.list else _audit_all(options)
    except TrajgymError as error:  # whatever it is, it must not look like a finding
        print(f"trajgym audit: {error}", file=sys.stderr)
        return 2


def _audit_all(options: argparse.Namespace) -> int:
    if not options.env:
        raise ConfigError("Which environment? `trajgym envs` lists them, e.g. trajgym audit ArithmeticTool-v0.")
    if options.reward and "reward" in options.env_kwargs:
        raise ConfigError("The reward is given twice, by --reward and in --env-kwargs. Leave one of them out.")
    done = []
    for env in options.env:
        for reward in options.reward or [None]:
            kwargs = options.env_kwargs | ({} if reward is None else {"reward": reward})
            found = audit(
                functools.partial(make, env, **kwargs),
                tasks=options.tasks,
                seed=options.seed,
                gamma=options.gamma,
                exploits=options.exploits,
            )
            done.append((env, kwargs, found))
            if options.json != Path("-"):
                _report(env, reward, found, strict=options.strict)
    failed = sum(not _passes(found, options.strict) for _, _, found in done)
    if options.json is not None:
        _write(options.json, done, strict=options.strict)
    if len(done) > 1 and options.json != Path("-"):
        print(f"{len(done) - failed} of {len(done)} audits passed.")
    return 1 if failed else 0


def _passes(found: Audit, strict: bool) -> bool:
    return found.passed and not (strict and found.leaks)


def _report(env: str, reward: str | None, found: Audit, *, strict: bool) -> None:
    console = Console()
    terms = " + ".join(f"{weight:g}×{name}" for name, weight in found.weights.items()) or "nothing"
    title = f"{env}, {'' if reward is None else f'{reward}: '}{terms}"
    with console.capture() as captured:  # rich would answer a closed pipe in its own way
        console.print(_table(found, title))
    print(captured.get().rstrip())
    nothing = [row.name for row in found.rows if not _shown(row)]
    for what, names in (("Earned nothing", nothing), ("Not played, for want of the tool", found.skipped)):
        if names:
            print(_wrapped(f"{what}: {', '.join(names)}.", console.width))
    print(f"\n{_quality(found.quality, console.width)}\n")
    _say_findings(found.leaks, "Leak", console.width, examples=strict)
    _say_findings(found.findings, "Finding", console.width, examples=True)
    count = len(found.findings) + strict * len(found.leaks)
    if not count:
        print("PASSED: no exploit reaches honest work.\n")
    elif any(finding.verdict.rule == "pays_nothing" for finding in found.findings):
        print("FAILED: the reward pays nothing here.\n")
    else:
        print(f"FAILED: {count} exploit{'s pay' if count > 1 else ' pays'}.\n")


def _table(found: Audit, title: str) -> Table:
    caption = f"{found.tasks} tasks, seed {found.seed}, γ {found.gamma:g}; mean return with its 95 % interval"
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("policy", no_wrap=True)
    table.add_column("return", justify="right", no_wrap=True)
    table.add_column("of expert", justify="right", no_wrap=True)
    table.add_column("solved", justify="right", no_wrap=True)
    table.add_column("paid by")
    table.add_column("verdict")
    for row in filter(_shown, found.rows):
        paid = sorted(((v, n) for n, v in row.terms.items() if abs(v) >= 0.005), key=lambda pair: -abs(pair[0]))
        colour = {"baseline": "bold", "ok": None, "leak": "yellow"}.get(row.verdict, "red")
        table.add_row(
            row.name,
            f"{row.earned.mean:.2f} ±{row.earned.high - row.earned.mean:.2f}",
            "–" if row.share is None else f"{row.share:.0%}",
            f"{row.solved:.0%}",
            ", ".join(f"{name} {value:.2f}" for value, name in paid),
            {"baseline": "", "ok": "ok", "leak": "leak"}.get(row.verdict, "FINDING"),
            style=colour,
            end_section=row.name == "honest",
        )
    return table


def _quality(quality: RewardCriteria, width: int) -> str:
    """Say what the reward is like, a line for each criterion."""
    order, spread = quality.success_order, quality.spread
    ranked = sorted(quality.shares.items(), key=lambda pair: -abs(pair[1]))
    shares = ", ".join(f"{name} {share:.0%}" for name, share in ranked)
    lines = [
        "Defined success: a solved task earns more than an unsolved one in "
        + ("an unknown share of the pairs." if order is None else f"{order:.0%} of the pairs."),
        f"Gradient signal: returns differ in {quality.signal:.0%} of the groups; a group is all policies on one task.",
        f"Bounded variance: returns from {quality.low:.2f} to {quality.high:.2f}, standard deviation "
        + f"{quality.deviation:.2f}"
        + ("." if spread is None else f"; the range is {spread:.1f} times what success is worth."),
        f"Composable: the parts {'' if quality.additive else 'do not '}add up; their shares of the variance: {shares}.",
        *(f"Warning: {warning}" for warning in quality.warnings),
    ]
    return "\n".join(_wrapped(line, width) for line in lines)


def _shown(row: Row) -> bool:
    return row.verdict != "ok" or any(row.terms.values())


def _say_findings(findings: Sequence[Finding], label: str, width: int, *, examples: bool) -> None:
    """Print findings, those of one rule and term together, with one dialogue for all of them."""
    groups: dict[tuple[str, str | None], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.verdict.rule, finding.verdict.term), []).append(finding)
    for (rule, term), group in groups.items():
        first = min(group, key=lambda finding: finding.exploit != WRONG.name)  # it shows a hole at its plainest
        print(f"{label}: {_HEADING[rule]}{f', by the term {term!r}' if term else ''}.")
        print(_wrapped(f"By {', '.join(finding.exploit for finding in group)}.", width, indent="  "))
        print(_wrapped(f"{first.exploit}: {first.verdict.reason}.", width, indent="  "))
        print(_wrapped(_ADVICE[rule], width, indent="  "))
        if examples:
            print(f"  An episode of {first.exploit}:\n{textwrap.indent(first.example, '    ')}")
        print()


def _wrapped(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)


def _list() -> int:
    width = max(map(len, EXPLOITS))
    for name, exploit in sorted(EXPLOITS.items()):
        needs = f" [needs {exploit.needs}]" if exploit.needs else ""
        print(
            _wrapped(f"{name.ljust(width)}  {exploit.what}{needs}", Console().width).replace(
                "\n  ", f"\n{' ' * (width + 2)}"
            )
        )
    return 0


def _write(path: Path, done: Sequence[tuple[str, dict[str, Any], Audit]], *, strict: bool) -> None:
    audits = [
        {"env": env, "env_kwargs": kwargs, "passed": _passes(found, strict), **to_json(found)}
        for env, kwargs, found in done
    ]
    text = json.dumps({"passed": all(a["passed"] for a in audits), "audits": audits}, indent=1, default=str)
    if path == Path("-"):
        print(text)
        return
    try:
        path.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(f"--json cannot write {path}: {error}") from error


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(
            f"must be names with a comma between them, such as sparse,hybrid, got {text!r}"
        )
    return names
