"""How fast the code interpreter is, beside a new process per program and beside other projects' code tools.

    python benchmarks/interpreter.py --json runs/interpreter.json

What is compared is measured in the same rounds, one after the other, since a machine's speed changes by the minute.
The other projects are installed into environments of their own the first time, a few megabytes each.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from interpreter_contenders import CANARY, Contender, Sandbox, Subprocess, WrongOutputError, probe, timed
from interpreter_parts import Figures, calls, layers, opening, throughput
from interpreter_peers import PEERS, Peer, PeerError, install, make_environment, running
from interpreter_report import Contest, Line, show, write_json
from machine import machine
from rich.console import Console
from rounds import Estimate, Sample, estimate, median, median_ratio, p95

from trajgym.envs.sandbox import IsolationUnavailable, Pool

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]
ROUNDS, QUICK_ROUNDS = 200, 20
PAGE = 140  # characters a line, where no terminal says


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables and write the JSON file. Returns the exit status."""
    options = _options(arguments)
    facts = machine()
    if facts.busy:
        _say(f"load average {facts.load:.2f}: something else is running, better wait")
    try:
        with ExitStack() as stack:
            stack.enter_context(_environment(CANARY, secrets.token_hex(8)))
            isolation, figures, contests = _measure(options, stack)
    except (IsolationUnavailable, PeerError, WrongOutputError) as error:
        print(f"interpreter: {error}", file=sys.stderr)
        return 1
    console = Console()
    if not console.is_terminal:
        console = Console(width=PAGE)
    show(console, facts, isolation, options.rounds, contests, figures.lines)
    if options.json is not None:
        write_json(options.json, facts, isolation, contests, figures.lines, figures.seconds)
        console.print(f"Written to {options.json}.", highlight=False)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="interpreter.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, help=f"rounds per part, at least 2; by default {ROUNDS}")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, for a first impression")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="install and measure no other project")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too, with every round's")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / ".cache" / "benchmarks", metavar="FOLDER", help="for the environments"
    )
    options = parser.parse_args(arguments)
    if options.rounds is None:
        options.rounds = QUICK_ROUNDS if options.quick else ROUNDS
    if options.rounds < 2:
        parser.error(f"--rounds must be at least 2, got {options.rounds}")
    return options


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _measure(options: argparse.Namespace, stack: ExitStack) -> tuple[str, Figures, list[Contest]]:
    """Run every part; what must be closed afterwards goes on the stack."""
    start = time.perf_counter()
    pool = stack.enter_context(Pool())
    started = time.perf_counter() - start
    cache = _ignored(options.cache)
    baseline = Subprocess(make_environment(cache / "python", pip=False))
    ours = Sandbox("trajgym", pool)
    peers, failed = _open_peers(cache, stack) if options.peers else ([], [])

    figures = Figures()
    contenders: list[Contender] = [baseline, ours, *peers]
    _say(f"one program, {', '.join(contender.name for contender in contenders)}")
    calls(figures, options.rounds, contenders)
    contests = [_contest(one, figures.seconds["calls"]) for one in contenders]
    _say("opening sessions")
    figures.lines.append(Line("start a pool", "s", Estimate(started, started, started)))
    opening(figures, max(2, options.rounds // 5), baseline, ours)
    _say("many sessions")
    throughput(figures, max(2, options.rounds // 5), baseline, pool)
    _say("isolation on and off")
    layers(figures, 10 * options.rounds, pool)
    return pool.isolation, figures, contests + failed


def _contest(one: Contender, seconds: dict[str, list[Sample]]) -> Contest:
    own = seconds[one.name]
    speed = estimate(median_ratio, seconds["subprocess"], own)
    return Contest(one.name, estimate(median, own), estimate(p95, own), speed, probe(one))


def _open_peers(cache: Path, stack: ExitStack) -> tuple[list[Peer], list[Contest]]:
    """Install and try the peers; those that fail come back as contests without figures."""
    working, failed = [], []
    for release in PEERS:
        _say(f"installing {release.title}")
        try:
            python = install(release, cache)
        except PeerError as error:
            failed.append(Contest(release.title, error=f"does not install here: {error}"))
            continue
        peer = stack.enter_context(running(release, python))
        try:
            timed(peer.call)()
        except (PeerError, WrongOutputError) as error:
            failed.append(Contest(release.title, error=f"does not run here: {error}"))
        else:
            working.append(peer)
    return working, failed


def _ignored(folder: Path) -> Path:
    """Make a folder that git passes over."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    return folder.resolve()


def _say(what: str) -> None:
    print(f"{what} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
