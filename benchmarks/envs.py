"""What environments cost: ours beside those of GEM, SkyRL-gym, aviary and OpenEnv, on the same problems.

    python benchmarks/envs.py [--quick] [--json FILE]

The other projects are installed into environments of their own the first time, about two gigabytes in all. Every
contender runs in a process of its own, and in each round all of them are measured, one after the other.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import numpy as np
from envs_parts import fleets, growth, lines, singles, slow
from envs_peers import OURS, PEERS, PeerError, Process, Release, install, running
from envs_report import Results, target_lines, text, write_json
from machine import machine

from trajgym.envs.arithmetic_tasks import ArithmeticTasks
from trajgym.envs.gsm8k_tasks import GSM8KTasks
from trajgym.errors import DataError

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]
PROBLEMS = 256
COUNT = 64  # episodes at once
SIZES = (16, 64, 256, 1024)
ROUNDS, QUICK_ROUNDS = 20, 4
SHARE = 0.25  # of the memory that is free may one contender take

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables and write the JSON file. Returns the exit status."""
    options = _options(arguments)
    facts = machine()
    source, problems = _problems()
    results = Results()
    try:
        _measure(options, problems, results)
    except PeerError as error:
        print(f"envs: {error}", file=sys.stderr)
        return 1
    targets = target_lines(results)
    print(f"Problems: {source}.")
    print(text(results, facts, options.rounds, targets))
    if options.json is not None:
        write_json(options.json, results, facts, targets)
    return 0


def _measure(options: argparse.Namespace, problems: Sequence[dict[str, str]], results: Results) -> None:
    """Have all contenders do all parts; without ours there is nothing to show, and it ends with an error."""
    with ExitStack() as stack:
        there = _start(options, problems, results, stack)
        _ours_is_there(results)
        megabytes = SHARE * _free_megabytes()
        folder = Path(__file__).resolve().with_name("envs_lines")
        # What is weighed comes first: the other parts leave environments behind that are used again.
        few, passes = max(2, options.rounds // 2), min(3, options.rounds // 2)

        def part(what: str, measure: Callable[[list[Process]], T]) -> T:
            return _part(what, measure, there, results)

        results.fleets = part(f"{COUNT} at once", lambda those: fleets(those, COUNT, few))
        results.growth = part("growing", lambda those: growth(those, options.sizes, megabytes, passes))
        results.singles = part("single steps", lambda those: singles(those, options.rounds))
        results.slow = part("slow tools", lambda those: slow(those, max(2, options.rounds // 5)))
        results.lines = part("lines of code", lambda those: lines(those, folder))
        results.unpaid = {one.name: one.attempt(do="unpaid") for one in there}
    _ours_is_there(results)


def _ours_is_there(results: Results) -> None:
    if OURS.name in results.failed:
        raise PeerError(results.failed[OURS.name])


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="envs.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, help=f"rounds of single steps, at least 2; by default {ROUNDS}")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, for a first impression")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in (OURS, *PEERS)], help="leave the others out")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="how many episodes at once, growing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too, with every round's")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / ".cache" / "benchmarks", metavar="FOLDER", help="for the environments"
    )
    options = parser.parse_args(arguments)
    if options.rounds is None:
        options.rounds = QUICK_ROUNDS if options.quick else ROUNDS
    if options.rounds < 2:
        parser.error(f"--rounds must be at least 2, got {options.rounds}")
    if sorted(set(options.sizes)) != list(options.sizes) or options.sizes[0] < 1:
        parser.error(f"--sizes must be numbers above 0 that grow, got {list(options.sizes)}")
    if options.only and OURS.name not in options.only:
        parser.error(f"--only must name {OURS.name} too: the others are compared with it")
    return options


def _problems() -> tuple[str, list[dict[str, str]]]:
    """Return where the problems are from, and question and answer of each; all answers are whole numbers."""
    try:
        source, tasks = "GSM8K, test", list(GSM8KTasks("test"))
    except DataError:
        generator, embedded = np.random.default_rng(0), ArithmeticTasks()
        source, tasks = "embedded arithmetic", [embedded.sample(generator) for _ in range(2 * PROBLEMS)]
    plain = [task for task in tasks if re.fullmatch(r"\d+", task.answer)]
    return source, [{"question": task.question, "answer": task.answer} for task in plain[:PROBLEMS]]


def _start(
    options: argparse.Namespace, problems: Sequence[dict[str, str]], results: Results, stack: ExitStack
) -> list[Process]:
    """Install and start the contenders; why one is not there stands in the results."""
    cache = options.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    (cache / ".gitignore").write_text("*\n", encoding="utf-8")
    there = []
    for release in (OURS, *PEERS):
        if options.only and release.name not in options.only:
            continue
        results.titles[release.name] = release.title
        try:
            one = stack.enter_context(running(release, _python(release, cache), problems))
        except PeerError as error:
            results.failed[release.name] = str(error)
            _say(f"{release.title}: {error}")
            continue
        results.lacks[one.name] = one.lacks
        there.append(one)
    return there


def _python(release: Release, cache: Path) -> Path:
    if not release.requirements:
        return Path(sys.executable)
    _say(f"installing {release.title}")
    try:
        return install(release, cache)
    except PeerError as error:
        raise PeerError(f"does not install here: {error}") from error


def _part(what: str, measure: Callable[[list[Process]], T], there: list[Process], results: Results) -> T:
    """Measure one part with all that have not failed yet; a failure is reported and ends that contender's parts."""
    _say(what)
    measured = measure(there)
    for one in [one for one in there if one.error]:
        results.failed[one.name] = f"{what}: {one.error}"
        _say(f"{one.title}: {one.error}")
        there.remove(one)
    _ours_is_there(results)
    return measured


def _free_megabytes() -> float:
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024 / 1e6


def _say(what: str) -> None:
    print(f"{what} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
