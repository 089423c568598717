"""What the learning benchmark found: a Markdown table and a figure from the results that are there."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from learning_cells import DISCOUNTS, METHODS, OURS, REFERENCE, SEARCH_SEED, SETTINGS, kinds
from rounds import Array, Estimate, estimate

__all__ = ["Summary", "best_rates", "figure", "fingerprint", "summarise", "table"]

_SMOOTH = 8  # updates (256 episodes) whose mean success has to reach the target
_LAST = 16  # updates at the end of a run that its final figures are the mean of
_GRID = 60  # points of the figure's curves


@dataclass(frozen=True)
class Summary:
    """What one run comes to.

    Args:
        steps: Turns played until the mean success of eight updates in a row reached the target; all that the run had
            where it never did.
        reached: Whether it did.
        area: Mean success over the setting's budget of turns.
        success: Share of right answers in the last updates of that.
        earned: Mean return of those, under the run's own reward and discount.
    """

    steps: float
    reached: bool
    area: float
    success: float
    earned: float


def summarise(result: Mapping[str, Any]) -> Summary:
    """Boil a result down to a few figures.

    Args:
        result: As :func:`learning_runs.run_cell` writes it.
    """
    target, budget = SETTINGS[result["setting"]].target, float(result["budget"])
    turns, success = _column(result, "env_steps"), _column(result, "success")
    smooth = np.convolve(success, np.ones(_SMOOTH) / _SMOOTH, mode="valid") if len(success) >= _SMOOTH else success[:0]
    hits = np.flatnonzero(smooth >= target)
    steps = float(turns[hits[0] + _SMOOTH - 1]) if len(hits) else budget
    # An update's success is that of the turns it played, so the curve is a staircase.
    starts = np.concatenate([[0.0], turns[:-1]])
    widths = np.clip(np.minimum(turns, min(budget, SETTINGS[result["setting"]].budget)) - starts, 0.0, None)
    last = np.flatnonzero(widths)[-_LAST:]
    return Summary(
        steps=min(steps, budget),
        reached=bool(len(hits)) and steps <= budget,
        area=float((success * widths).sum() / widths.sum()),
        success=float(success[last].mean()),
        earned=float(_column(result, "return")[last].mean()),
    )


def best_rates(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the learning rate with the largest mean area, by ``"setting-method-reward"``.

    Args:
        results: All that are there; those of the search are used.
    """
    areas: dict[str, dict[float, list[float]]] = {}
    for result in results:
        if result["seed"] >= SEARCH_SEED:
            areas.setdefault(_key(result), {}).setdefault(result["rate"], []).append(summarise(result).area)
    return {key: max(found, key=lambda rate: float(np.mean(found[rate]))) for key, found in areas.items()}


def table(results: Sequence[Mapping[str, Any]], seeds: int) -> str:
    """Return a Markdown table per setting, and how the per-step methods compare with the terminal reward's.

    Args:
        results: All that are there; kinds of runs without any are listed as missing.
        seeds: How many runs there should be of each kind.
    """
    rates = best_rates(results)
    results = _current(results, rates)
    lines = [
        "Turns to the target: mean over seeds, a run that never reached it counted with all its turns; in brackets how "
        f"many reached it. `{REFERENCE[0]}` with the {REFERENCE[1]} reward played twice as long as all others; area "
        "and final figures are those of equal turns. 95 % bootstrap intervals over seeds.",
    ]
    missing = []
    for setting, about in SETTINGS.items():
        lines += ["", f"### {about.title}: target {about.target:.0%} within {about.budget:,} turns", ""]
        lines += ["| reward | γ | method | seeds | rate | turns to target | area | final success | final return |"]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        for reward, gamma, method in kinds(setting):
            found = _of(results, setting, method, reward, gamma)
            if len(found) < seeds:
                missing.append(f"{setting}-{method}-{reward}-g{gamma:g}: {seeds - len(found)}")
            if found:
                lines.append(_row(found, reward, gamma, method))
        lines += ["", *_comparison(results, setting), *_later(results, setting, seeds)]
    if missing:
        lines += ["", f"Missing runs: {'; '.join(missing)}."]
    if rates:
        tried = (f"{name} from {', '.join(f'{rate:g}' for rate in sorted(s.rates))}" for name, s in SETTINGS.items())
        lines += ["", f"Learning rates were chosen on other seeds without a discount, by area: {'; '.join(tried)}."]
    if open_ := sorted(rates.keys() - _searched(results)):
        lines += ["", f"Not all of them were tried for {', '.join(open_)}."]
    made = sorted({f"{SETTINGS[r['setting']].model} {r['model']}" for r in results})
    if made:
        lines += ["", f"Models that the runs began with: {', '.join(made)}."]
    return "\n".join(lines) + "\n"


def figure(results: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Draw success against turns: a row for each setting and discount, a column for each reward.

    The picture's description is the :func:`fingerprint` of the runs.

    Args:
        results: All that are there; an empty panel says so.
        target: The picture, ``.png`` or ``.svg``.
    """
    from matplotlib.figure import Figure

    results = _current(results, best_rates(results))
    rows = list(itertools.product(SETTINGS, DISCOUNTS))
    columns = max(len(about.rewards) for about in SETTINGS.values())
    canvas = Figure(figsize=(4.2 * columns, 2.7 * len(rows)), layout="constrained")
    axes = canvas.subplots(len(rows), columns, sharey="row")
    for (setting, gamma), line in zip(rows, axes, strict=True):
        about = SETTINGS[setting]
        for axis in line[len(about.rewards) :]:
            axis.set_axis_off()
        for reward, axis in zip(about.rewards, line, strict=False):
            axis.set_title(f"{setting}, {reward}, γ = {gamma:g}", fontsize=9)
            axis.axhline(about.target, color="grey", linewidth=0.6, linestyle=":")
            axis.set_ylim(0, min(1.0, 2.5 * about.target))
            axis.set_xlim(0, about.budget)
            drawn = [
                _draw(axis, found, method)
                for method in METHODS
                if (found := _of(results, setting, method, reward, gamma))
            ]
            if not drawn:
                axis.text(0.5, 0.6, "not run yet", transform=axis.transAxes, ha="center", color="grey")
        line[0].set_ylabel("success")
        for axis in line:
            axis.set_xlabel("turns played")
    handles = {h.get_label(): h for axis in axes.flat for h in axis.get_lines() if h.get_label() in METHODS}
    if handles:
        canvas.legend(handles=list(handles.values()), loc="outside lower center", ncols=len(METHODS), fontsize=8)
    canvas.savefig(target, dpi=110, metadata={"Description": fingerprint(results)})


def fingerprint(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a hash of those runs that a report shows."""
    shown = [r for r in _current(results, best_rates(results)) if r["seed"] < SEARCH_SEED]
    lines = sorted(json.dumps([_key(r), r["gamma"], r["seed"], r["rate"], r["curve"]]) for r in shown)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _current(results: Sequence[Mapping[str, Any]], rates: Mapping[str, float]) -> list[Mapping[str, Any]]:
    """Leave out runs at another rate than the one that the search has chosen by now: they are to be run again."""
    return [r for r in results if r["seed"] >= SEARCH_SEED or r["rate"] == rates.get(_key(r), r["rate"])]


def _searched(results: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return for what every rate was tried, on as many seeds as any."""
    tried: dict[str, Counter[float]] = {}
    for result in results:
        if result["seed"] >= SEARCH_SEED:
            tried.setdefault(_key(result), Counter())[result["rate"]] += 1
    rates = {key: SETTINGS[key.partition("-")[0]].rates for key in tried}
    return {key for key, counts in tried.items() if {counts[rate] for rate in rates[key]} == {max(counts.values())}}


def _key(result: Mapping[str, Any]) -> str:
    return f"{result['setting']}-{result['method']}-{result['reward']}"


def _row(found: Sequence[Mapping[str, Any]], reward: str, gamma: float, method: str) -> str:
    runs = [summarise(result) for result in found]
    cells = [
        f"{_shown([run.steps for run in runs], ',.0f')} ({sum(run.reached for run in runs)}/{len(runs)})",
        _shown([run.area for run in runs], ".2f"),
        _shown([run.success for run in runs], ".2f"),
        _shown([run.earned for run in runs], ".2f"),
    ]
    rates = "/".join(f"{rate:g}" for rate in sorted({result["rate"] for result in found}))
    return f"| {reward} | {gamma:g} | {method} | {len(runs)} | {rates} | {' | '.join(cells)} |"


def _comparison(results: Sequence[Mapping[str, Any]], setting: str) -> list[str]:
    """Compare our method with trajectory-level GRPO, on the terminal reward and on the same one, seed by seed.

    A run that was cut off would have needed more turns than it had, so a ratio with such runs is a bound, and with such
    runs on both sides it says nothing.
    """
    lines = []
    for reward, gamma, method in itertools.product(SETTINGS[setting].rewards, DISCOUNTS, OURS):
        ours = _summaries(_of(results, setting, method, reward, gamma))
        if not ours:
            continue
        cells = [f"{sum(run.reached for run in ours.values())}/{len(ours)}"]
        for paid in ("sparse", reward):
            theirs = _summaries(_of(results, setting, "trajectory", paid, gamma))
            cells += _against(ours, theirs)
        lines.append(f"| {reward} | {gamma:g} | {method} | {' | '.join(cells)} |")
    if not lines:
        return []
    return [
        "`trajectory` with the sparse reward, and with the same one: how many times the turns it needs to the target, "
        "at least (≥) where some of its own never reached it, at most (≤) where some of ours did not; and our area "
        "less its, over equal turns.",
        "",
        "| reward | γ | method | reached | turns, sparse | area, sparse | turns, same | area, same |",
        "|---|---|---|---|---|---|---|---|",
        *lines,
    ]


def _later(results: Sequence[Mapping[str, Any]], setting: str, seeds: int) -> list[str]:
    """Say what the runs beyond the usual number come to by themselves: a method may have been made after the others."""
    told = []
    for reward, gamma, method in kinds(setting):
        steps = [summarise(r).steps for r in _of(results, setting, method, reward, gamma) if r["seed"] >= seeds]
        if steps:
            told.append(f"{method}, {reward}, γ = {gamma:g}: {_shown(steps, ',.0f')}")
    return ["", f"Turns to the target over the seeds from {seeds} on alone: {'; '.join(told)}."] if told else []


def _summaries(found: Sequence[Mapping[str, Any]]) -> dict[int, Summary]:
    return {result["seed"]: summarise(result) for result in found}


def _against(ours: Mapping[int, Summary], theirs: Mapping[int, Summary]) -> list[str]:
    """Return how many times our turns they need, and how much larger our area is, from the seeds that both have."""
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        return ["", ""]
    turns = "–"
    cut = (any(not ours[s].reached for s in both), any(not theirs[s].reached for s in both))
    if not all(cut):
        ratio = estimate(_ratio, [theirs[s].steps for s in both], [ours[s].steps for s in both])
        turns = ("≤ " if cut[0] else "≥ " if cut[1] else "") + _interval(ratio, ".2f")
    return [turns, _shown([ours[s].area - theirs[s].area for s in both], "+.2f")]


def _ratio(slow: Array, fast: Array) -> Array:
    return np.asarray(slow.mean(axis=-1) / fast.mean(axis=-1))


def _mean(samples: Array) -> Array:
    return np.asarray(samples.mean(axis=-1))


def _shown(values: Sequence[float], form: str) -> str:
    return _interval(estimate(_mean, values), form)


def _interval(found: Estimate, form: str) -> str:
    # One run has no interval, and where no run differs there is none to show.
    interval = f" [{found.low:{form}}, {found.high:{form}}]" if found.low < found.high else ""
    return f"{found.value:{form}}{interval}"


def _draw(axis: Any, found: Sequence[Mapping[str, Any]], method: str) -> None:
    """Draw the mean of some runs and the interval of that mean."""
    grid = np.linspace(0, SETTINGS[found[0]["setting"]].budget, _GRID)
    curves = []
    for result in found:
        turns, success = _column(result, "env_steps"), _column(result, "success")
        # The mean of the latest updates, as the target is judged by; at the beginning there are fewer.
        sums = np.cumsum(np.concatenate([[0.0], success]))
        ends = np.arange(1, len(success) + 1)
        starts = np.maximum(0, ends - _SMOOTH)
        smooth = (sums[ends] - sums[starts]) / (ends - starts)
        curves.append(smooth[np.minimum(np.searchsorted(turns, grid), len(turns) - 1)])
    bands = [estimate(_mean, column) for column in np.stack(curves).T.tolist()]
    (line,) = axis.plot(
        grid, [b.value for b in bands], label=method, color=f"C{list(METHODS).index(method)}", linewidth=1.2
    )
    axis.fill_between(
        grid, [b.low for b in bands], [b.high for b in bands], color=line.get_color(), alpha=0.15, linewidth=0
    )


def _of(
    results: Sequence[Mapping[str, Any]], setting: str, method: str, reward: str, gamma: float
) -> list[Mapping[str, Any]]:
    wanted = (setting, method, reward, gamma)
    return [
        r for r in results if (r["setting"], r["method"], r["reward"], r["gamma"]) == wanted and r["seed"] < SEARCH_SEED
    ]


def _column(result: Mapping[str, Any], name: str) -> Array:
    return np.array([row[name] for row in result["curve"]], dtype=np.float64)
