"""How the benchmark of environments shows its figures: tables in Markdown for a person, JSON for a machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from envs_driver import MIX
from envs_parts import EPISODE, FILES, LINEAR, LITTLE, Counted, Fleet, Growth, Single, Slope, slopes
from envs_peers import Peak
from interpreter_report import Line
from machine import Machine
from rounds import Array, Estimate, estimate, median

__all__ = ["COMPARABLE", "Results", "target_lines", "text", "write_json"]

LEAST = {"calculator": 1 / 60e-6, "python": 2500.0, "final": 20_000.0}  # steps per second that are the target
MIXED = len(MIX) / sum(1 / LEAST[kind] for kind in MIX)  # a step in which every kind has its share, each at its target

COMPARABLE = """\
What is not comparable:

- **Isolation.** Python code runs in kernel-level isolation in trajgym (namespaces or Landlock, seccomp, limits on
  memory and time), in a plain subprocess after a search for forbidden words in GEM, in a plain subprocess in SkyRL-gym,
  and in an interpreter of syntax trees within the trainer's own process in OpenEnv. aviary's GSM8K runs no code.
- **State.** An episode of trajgym and of OpenEnv keeps the variables of its earlier calls; GEM and SkyRL-gym start a
  new interpreter for each call. trajgym's first call of an episode therefore starts an interpreter; it has a row of its
  own.
- **Answers.** trajgym finds the answer in free text and compares values (`72`, `72.0`, `$72`); GEM proves equality
  symbolically in a process of its own; SkyRL-gym compares the text behind the first `####`; aviary is handed the answer
  as an argument and compares numbers; in OpenEnv a user's rubric compares two texts here, since none comes with it.
- **Reading calls.** trajgym reads the call out of text, checks it against the tool's schema and answers errors. GEM and
  SkyRL-gym search for a tag that the tool or the user's environment defines. aviary and OpenEnv are handed objects, and
  what turns text into them is not in their figures.
- **Calculators.** Those of GEM, SkyRL-gym and OpenEnv are a user's few lines here: they know + - * / alone. aviary's
  and trajgym's come with them; trajgym's is exact and bounded.
- **Many at once.** trajgym in the ToolVectorEnv that `gymnasium.make_vec` makes of its ids: turns that call a tool that
  takes its time in up to 64 threads, all others in a loop; GEM in its vector environment of threads; SkyRL-gym in a
  loop, its Python calls in 32 threads; aviary's steps gathered in one event loop; OpenEnv in a loop, without the HTTP
  server that its environments are meant to run behind.
- **The mixed step.** One step of all episodes, after each of them has called Python: a third call the calculator, a
  third Python, and a third answer, which in trajgym also ends an isolated interpreter. All begin anew off the clock.
- **Bookkeeping.** trajgym records each step with its named reward terms and returns the whole dialogue; the others
  return less.
"""


@dataclass
class Results:
    """All that was measured.

    Args:
        titles: Names of the contenders for people, by name; those that failed too.
        failed: Why a contender could not be measured.
        lacks: Kinds of step that a contender does not have, and why.
        singles, fleets, growth, slow, lines: What the functions of these names in ``envs_parts`` returned.
        unpaid: Right answers that a contender did not pay, out of how many, and why.
    """

    titles: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    lacks: dict[str, dict[str, str]] = field(default_factory=dict)
    singles: dict[str, Single] = field(default_factory=dict)
    fleets: dict[str, Fleet] = field(default_factory=dict)
    growth: dict[str, list[Growth]] = field(default_factory=dict)
    slow: dict[str, list[float]] = field(default_factory=dict)
    lines: dict[str, Counted] = field(default_factory=dict)
    unpaid: dict[str, dict[str, Any]] = field(default_factory=dict)


def target_lines(results: Results, name: str = "trajgym") -> list[Line]:
    """Return ours beside our targets, on the wall and, which a busy machine disturbs less, in processor time."""
    single, fleet, counted = results.singles[name], results.fleets[name], results.lines[name]
    out = []
    for side, clock in enumerate(("wall", "CPU")):
        final = estimate(_micro, _side(single.first["final"], side))
        calls = {kind: estimate(_micro, _nested(single.later[kind], side)) for kind in ("calculator", "python")}
        out += [
            Line(f"final-answer step, {clock}", "µs", final, most=50),
            Line(f"calculator step, {clock}", "µs", calls["calculator"], most=60),
            Line(f"python step, {clock}", "µs", calls["python"], most=250),
            Line(f"{fleet.count} at once, final answers, {clock}", "/s", _rate(fleet, "final", side), LEAST["final"]),
            Line(
                f"{fleet.count} at once, final answers with an open interpreter, {clock}",
                "/s",
                _rate(fleet, "end", side),
            ),
            Line(f"{fleet.count} at once, python, first calls, {clock}", "/s", _rate(fleet, "python", side, 0)),
            Line(
                f"{fleet.count} at once, python, later calls, {clock}",
                "/s",
                _rate(fleet, "python", side, 1),
                LEAST["python"],
            ),
            Line(
                f"{fleet.count} at once, python, all calls, {clock}",
                "/s",
                _rate(fleet, "python", side),
                LEAST["python"],
            ),
            Line(f"{fleet.count} at once, mixed, {clock}", "/s", _rate(fleet, "mixed", side), round(MIXED)),
        ]
    memory = fleet.peak.megabytes
    out.append(Line(f"{fleet.count} at once, peak memory", "MB", Estimate(memory, memory, memory), most=400))
    for slope in slopes(results.growth.get(name, ())):
        what = f"{slope.what} of an episode, {slope.many:,} at once beside {slope.few:,}"
        out.append(Line(what, "times", Estimate(slope.ratio, slope.ratio, slope.ratio), most=LINEAR))
    out.append(Line("four tools of 0.2 s in one turn", "s", estimate(median, results.slow[name])))
    for file, number, most in zip(FILES, counted.numbers, (5, 12, 6), strict=True):
        out.append(Line(f"lines of a new {file}", "", Estimate(number, number, number), most=most))
    return out


def text(results: Results, machine: Machine, rounds: int, targets: Sequence[Line]) -> str:
    """Return everything as Markdown."""
    return "\n".join([*_head(results, machine, rounds), *_single_table(results), *_fleet_table(results),
                      *_growth_table(results), *_small_table(results), *_targets(targets), "", COMPARABLE])  # fmt: skip


def _head(results: Results, machine: Machine, rounds: int) -> Iterator[str]:
    yield (
        f"{machine.cores} cores of {machine.processor}, Python {machine.python}, Linux {machine.kernel}, load average "
        f"{machine.load:.2f} at the start. Medians of {rounds} rounds; in brackets 95 % intervals."
    )
    if machine.busy:
        yield "\nSomething else is running: the figures of such a machine are off; compare them with each other."
    for name, why in results.failed.items():
        yield f"\n**{results.titles[name]}** could not be measured: {why}"
    for name, counts in results.unpaid.items():
        if counts.get("unpaid"):
            yield (
                f"\n{results.titles[name]} did not pay {counts['unpaid']:,} of {counts['answers']:,} right answers: "
                f"{counts['why']}."
            )


def _table(results: Results, title: str, rows: Mapping[str, Callable[[str], str]], there: Sequence[str]) -> list[str]:
    names = [name for name in results.titles if name in there]
    head = ["", f"| {title} |" + "".join(f" {results.titles[name]} |" for name in names), "|---|" + "---|" * len(names)]
    return head + [f"| {row} | " + " | ".join(cell(name) for name in names) + " |" for row, cell in rows.items()]


def _single_table(results: Results) -> list[str]:
    def cell(first: bool, kind: str, side: int) -> Callable[[str], str]:
        def shown(name: str) -> str:
            if kind not in results.singles[name].first:
                return "–"
            single = results.singles[name]
            samples = _side(single.first[kind], side) if first else _nested(single.later[kind], side)
            return _interval(estimate(_micro, samples))

        return shown

    rows = {}
    for side, clock in enumerate(("wall", "CPU")):
        rows[f"final answer, {clock}"] = cell(True, "final", side)
        rows[f"calculator, {clock}"] = cell(False, "calculator", side)
        rows[f"python, later call, {clock}"] = cell(False, "python", side)
        rows[f"python, first call of an episode, {clock}"] = cell(True, "python", side)
    table = _table(results, "one step, µs", rows, list(results.singles))
    missing = {f"{results.titles[name]}: {why}" for name, lacks in results.lacks.items() for why in lacks.values()}
    return [*table, *(f"\n– {line}." for line in sorted(missing))]


def _fleet_table(results: Results) -> list[str]:
    if not results.fleets:
        return []
    count = next(iter(results.fleets.values())).count
    rows: dict[str, Callable[[str], str]] = {}
    for side, clock in enumerate(("wall", "CPU")):
        for kind, what in (("final", "final-answer"), ("calculator", "calculator"), ("python", "python")):
            rows[f"{what} steps/s, {clock}"] = lambda name, kind=kind, side=side: (
                "–" if kind in results.lacks[name] else _interval(_rate(results.fleets[name], kind, side))
            )
        rows[f"final-answer steps/s after python calls, {clock}"] = lambda name, side=side: (
            "–" if "python" in results.lacks[name] else _interval(_rate(results.fleets[name], "end", side))
        )
        rows[f"mixed steps/s, {clock}"] = lambda name, side=side: _interval(_rate(results.fleets[name], "mixed", side))
    rows["peak memory, MB"] = lambda name: _weight(results.fleets[name].peak)
    rows["processes"] = lambda name: str(results.fleets[name].peak.processes)
    without = [
        f"\n– {results.titles[name]} takes no mixed step: it lacks {' and '.join(sorted(lacking))}."
        for name in results.fleets
        if (lacking := results.lacks[name].keys() & set(MIX))
    ]
    return [*_table(results, f"{count} episodes at once", rows, list(results.fleets)), *without]


def _weight(peak: Peak) -> str:
    hidden = f" (without {peak.hidden} processes that only root may ask)" if peak.hidden else ""
    return _number(peak.megabytes) + hidden


def _growth_table(results: Results) -> list[str]:
    columns, verdicts = ("final", "calculator", "python"), []
    out = ["", f"| growing | episodes | {' | '.join(f'{kind}, µs (CPU)' for kind in columns)} | MB | MB per episode |"]
    out.append("|---|---|---|---|---|---|---|")
    for name, rows in results.growth.items():
        for row in rows:
            if not row.times:
                out.append(f"| {results.titles[name]} | {row.count:,} | {row.note} | | | | |")
                continue
            cells = [_pair(row.times[kind]) if kind in row.times else "–" for kind in columns]
            note = f" ({row.note})" if row.note else ""
            out.append(
                f"| {results.titles[name]}{note} | {row.count:,} | {' | '.join(cells)} | {_number(row.megabytes)} "
                f"| {row.each:.2f} |"
            )
        verdicts.append(f"\n{results.titles[name]}: {_verdict(slopes(rows))}.")
    how = (
        f"\nPer episode, among many beside among few; linear up to ×{LINEAR:g}. Of wall and CPU what grows faster; no "
        f"memory where an episode adds less than {LITTLE:g} MB."
    )
    return [*out, how, *verdicts] if results.growth else []


def _verdict(found: Sequence[Slope]) -> str:
    """Say of each cost whether it grows linearly."""
    said = [
        f"{one.what} ×{one.ratio:.2f} ({one.many:,} beside {one.few:,}), {'linear' if one.linear else 'not linear'}"
        for one in found
    ]
    return "; ".join(said) or "too few sizes to tell"


def _small_table(results: Results) -> list[str]:
    def numbers(name: str) -> str:
        return " / ".join(map(str, results.lines[name].numbers))

    rows: dict[str, Callable[[str], str]] = {
        "four tools of 0.2 s, s": lambda name: _interval(estimate(median, results.slow[name])),
        "lines: new tool / new environment / scripted episode": numbers,
        "the three files": lambda name: results.lines[name].outcome,
    }
    there = [name for name in results.slow if name in results.lines]
    return _table(results, "at hand", rows, there)


def _targets(lines: Sequence[Line]) -> Iterator[str]:
    yield from ("", "| trajgym | measured | target | |", "|---|---|---|---|")
    for line in lines:
        yield f"| {line.what} | {_interval(line.estimate)} {line.unit} | {line.target} | {line.verdict} |"


def _rate(fleet: Fleet, kind: str, side: int, later: int | None = None) -> Estimate | None:
    """Steps of a kind per second.

    Args:
        fleet: Whose.
        kind: Of the step; ``"end"`` is the final answer of an episode that has called tools, ``"mixed"`` may be none.
        side: 0 on the wall, 1 in processor time.
        later: 0 and 1 choose the first call of an episode and those after it; by default all.
    """
    if kind in ("final", "mixed"):
        seconds = _side(fleet.final if kind == "final" else fleet.mixed, side)
        return estimate(lambda seconds: 1 / median(seconds), seconds) if seconds else None
    kind = "final" if kind == "end" else kind
    kinds = EPISODE if len(fleet.times[0]) == len(EPISODE) else [k for k in EPISODE if k != "python"]
    places = [place for place, name in enumerate(kinds) if name == kind]
    chosen = places if later is None else places[1:] if later else places[:1]
    means = [sum(times[place][side] for place in chosen) / len(chosen) for times in fleet.times]
    return estimate(lambda seconds: 1 / median(seconds), means)


def _side(pairs: Sequence[Sequence[float]], side: int) -> list[float]:
    return [pair[side] for pair in pairs]


def _nested(rounds: Sequence[Sequence[Sequence[float]]], side: int) -> list[list[float]]:
    return [_side(pairs, side) for pairs in rounds]


def _micro(seconds: Array) -> Array:
    return 1e6 * median(seconds)


def _pair(pair: Sequence[float]) -> str:
    return f"{_number(1e6 * pair[0])} ({_number(1e6 * pair[1])})"


def _interval(estimated: Estimate | None) -> str:
    if estimated is None:
        return "–"
    value, low, high = (_number(figure) for figure in (estimated.value, estimated.low, estimated.high))
    return value if low == high else f"{value} ({low} … {high})"


def _number(value: float) -> str:
    """Three digits, and no exponents."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write_json(path: Path, results: Results, machine: Machine, targets: Sequence[Line]) -> None:
    """Write everything, with every round."""
    content: dict[str, Any] = {
        "machine": asdict(machine),
        "results": asdict(results),
        "targets": [
            {"what": line.what, "unit": line.unit, "target": line.target, "verdict": line.verdict,
             "estimate": None if line.estimate is None else asdict(line.estimate)}
            for line in targets
        ],
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
