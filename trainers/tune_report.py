"""What a study shows: a table with intervals, whether the best is better than the second, and two pictures."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trajgym.evaluation.measures import CHANCE, bootstrap, mcnemar
from trajgym.trainers.pipeline_state import write_text
from trajgym.trainers.runfolder import storage_errors
from trajgym.trainers.tune_study import Trial, finished

__all__ = ["as_table", "difference", "importance", "verdict", "without_effect", "write_tune_report"]

_BINS = 3  # parts that a range is cut into, equally full


def difference(first: Trial, second: Trial, *, seed: int = 0) -> tuple[float, float, float]:
    """Return how much more of the held-out tasks one trial solves, with the ends of the 95 % interval.

    The tasks are the same, so that the bootstrap draws them in pairs; runs of several seeds are averaged before, and
    what differs between seeds is not in the interval.
    """
    rates, others = first.rates, second.rates
    changes = [rates[task] - others[task] for task in rates]
    low, high = bootstrap(changes, seed=seed)
    return sum(changes) / len(changes), low, high


def verdict(trials: Sequence[Trial], *, seed: int = 0) -> str:
    """Say in a sentence whether the best trial can be told from the second."""
    ranked = finished(trials)
    if len(ranked) < 2:
        return f"{len(ranked)} trial came to its end, so there is nothing to compare it with."
    best, second = ranked[:2]
    gap, low, high = difference(best, second, seed=seed)
    interval = f"{100 * low:+.1f} … {100 * high:+.1f}"
    told = f"Trial {best.number} is {100 * gap:.1f} points ahead of trial {second.number} ({interval})"
    if low > 0 and _unlikely(best, second):
        return f"{told}: better by more than chance. Picked from {len(ranked)}, its accuracy flatters it all the same."
    alike = sum(difference(best, o, seed=seed)[1] <= 0 or not _unlikely(best, o) for o in ranked[1:])
    return (
        f"{told}: not distinguishable on {len(best.rates)} tasks. In all, {alike} of {len(ranked) - 1} other trials "
        "are not. More eval_tasks or seeds would tell; until then choose by cost."
    )


def importance(trials: Sequence[Trial], name: str) -> float | None:
    """Return which share of the trials' spread a parameter explains on its own, in [0, 1]; ``None`` if unknown.

    Trials are put together by the parameter's value, numbers of more than three values in three equally full parts.
    ``ε² = 1 − (1 − η²)(n − 1)/(n − k)`` is the share η² of the variance between k groups of n trials, less what chance
    alone would give.

    Source: T. L. Kelley, An Unbiased Correlation Ratio Measure, 1935.
    """
    done = finished(trials)
    groups = _groups([trial.parameters[name] for trial in done])
    n, k = len(done), len(set(groups))
    values = [trial.value for trial in done]
    if k < 2 or n <= k or not any(value != values[0] for value in values):
        return None
    mean = statistics.fmean(values)
    total = sum((value - mean) ** 2 for value in values)
    within = 0.0
    for group in set(groups):
        members = [value for value, own in zip(values, groups, strict=True) if own == group]
        within += sum((value - statistics.fmean(members)) ** 2 for value in members)
    return max(0.0, 1.0 - within / total * (n - 1) / (n - k))


def without_effect(trials: Sequence[Trial]) -> list[tuple[int, int]]:
    """Return pairs of trials whose parameters differ and whose trained weights do not: something had no effect."""
    seen: dict[str, Trial] = {}
    pairs = []
    for trial in trials:
        for run in trial.runs:
            other = seen.setdefault(run.weights, trial)
            if other.parameters != trial.parameters:
                pairs.append((other.number, trial.number))
    return pairs


def as_table(trials: Sequence[Trial], *, seed: int = 0) -> str:
    """Return the trials as Markdown, the best first, and what follows from them."""
    names = list(trials[0].parameters)
    ranked = finished(trials)
    rows = [["trial", *names, "accuracy", "95 % interval", "behind the best", "seconds"]]
    for trial in ranked:
        low, high = trial.interval
        gap, least, most = difference(ranked[0], trial, seed=seed)
        behind = "" if trial is ranked[0] else f"{100 * gap:.1f} ({100 * least:+.1f} … {100 * most:+.1f})"
        values = [_cell(trial.parameters[name]) for name in names]
        shares = [f"{trial.value:.1%}", f"{low:.1%} … {high:.1%}", behind]
        rows.append([str(trial.number), *values, *shares, f"{trial.seconds:.0f}"])
    for trial in trials:
        if trial.status in ("failed", "pruned"):
            values = [_cell(trial.parameters[name]) for name in names]
            reason = trial.reason.replace("\n", " ").replace("|", "/")[:120]
            rows.append([str(trial.number), *values, trial.status, reason, "", f"{trial.seconds:.0f}"])
    rows.insert(1, ["---"] * len(rows[0]))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines += ["", verdict(trials, seed=seed)]
    lines += [
        f"Trials {a} and {b} have other parameters and the same weights: what differs between them has no effect."
        for a, b in without_effect(trials)
    ]
    faults = sum(run.faults for trial in trials for run in trial.runs)
    if faults:
        lines.append(f"{faults} episodes of evaluations were lost to faults; they count as wrong.")
    return "\n".join(lines)


def write_tune_report(folder: Path, trials: Sequence[Trial], names: Sequence[str], *, seed: int = 0) -> None:
    """Write ``report.md``, ``trials.csv``, ``best.json``, ``best.png`` and ``importance.png``.

    Args:
        folder: Of the study.
        trials: All trials, at least one of them done.
        names: The parameters.
        seed: Decides the draws of the bootstrap.

    Raises:
        StorageError: When a file cannot be written.
    """
    best = finished(trials)[0]
    shares = {name: importance(trials, name) for name in names}
    told = [f"- {name}: {'unknown' if share is None else f'{share:.0%}'}" for name, share in shares.items()]
    heading = "Share of the spread between trials that each parameter explains on its own; rough with few trials:"
    write_text(
        folder / "report.md", "\n".join(["# Tuning", "", as_table(trials, seed=seed), "", heading, "", *told, ""])
    )
    write_text(folder / "trials.csv", _as_csv(trials, names))
    chosen = {"trial": best.number, "parameters": best.parameters, "accuracy": best.value, "interval": best.interval}
    write_text(folder / "best.json", json.dumps(chosen, indent=1) + "\n")
    with storage_errors(folder):
        _draw_best(trials, folder / "best.png")
        _draw_importance(shares, folder / "importance.png")


def _as_csv(trials: Sequence[Trial], names: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "status", *names, "accuracy", "low", "high", "training", "seconds", "reason"])
    for trial in trials:
        known = [trial.value, *trial.interval, trial.runs[0].training] if trial.status == "done" else [""] * 4
        values = [_cell(trial.parameters[name]) for name in names]
        writer.writerow([trial.number, trial.status, *values, *known, f"{trial.seconds:.1f}", trial.reason])
    return text.getvalue()


def _draw_best(trials: Sequence[Trial], target: Path) -> None:
    """Draw every trial with its interval, and the best one so far."""
    from matplotlib.figure import Figure  # no global state, no display
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4), layout="constrained")
    axis = figure.subplots()
    done = sorted(finished(trials), key=lambda trial: trial.number)
    numbers, values = [trial.number for trial in done], [100 * trial.value for trial in done]
    ends = [[100 * (t.value - t.interval[0]) for t in done], [100 * (t.interval[1] - t.value) for t in done]]
    ends = [[max(0.0, end) for end in side] for side in ends]
    axis.errorbar(numbers, values, yerr=ends, fmt="o", color="tab:blue", capsize=3, label="trial, 95 % interval")
    best_so_far = [max(values[: i + 1]) for i in range(len(values))]
    axis.step(numbers, best_so_far, where="post", color="tab:green", label="best so far")
    for status, mark in (("failed", "x"), ("pruned", "v")):
        lost = [trial.number for trial in trials if trial.status == status]
        if lost:
            axis.plot(lost, [0.0] * len(lost), mark, color="tab:red", label=status, clip_on=False, zorder=3)
    axis.set_xlabel("trial")
    axis.set_ylabel("right answers on held-out tasks, %")
    axis.set_ylim(0, 100)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.3)
    axis.legend(loc="best", fontsize=8)
    figure.savefig(target, dpi=120)


def _draw_importance(shares: dict[str, float | None], target: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1.2 + 0.45 * len(shares)), layout="constrained")
    axis = figure.subplots()
    ordered = sorted(shares, key=lambda name: shares[name] or 0.0)
    axis.barh(ordered, [100 * (shares[name] or 0.0) for name in ordered], color="tab:blue")
    for i, name in enumerate(ordered):
        share = shares[name]
        axis.text(100 * (share or 0.0) + 1, i, "unknown" if share is None else f"{share:.0%}", va="center", fontsize=9)
    axis.set_xlim(0, 112)
    axis.set_xlabel("share of the spread between trials that it explains on its own, %")
    figure.savefig(target, dpi=120)


def _unlikely(first: Trial, second: Trial) -> bool:
    """Whether chance seldom gives so many more tasks to one of two trials; an interval of few tasks is too sure."""
    changes = [rate - second.rates[task] for task, rate in first.rates.items()]
    return mcnemar(sum(change > 0 for change in changes), sum(change < 0 for change in changes)) < CHANCE


def _groups(values: Sequence[Any]) -> list[str]:
    texts = [json.dumps(value, sort_keys=True) for value in values]
    numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    if not numeric or len(set(texts)) <= _BINS:
        return texts
    edges = statistics.quantiles(values, n=_BINS, method="inclusive")
    return [str(sum(value > edge for edge in edges)) for value in values]


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
