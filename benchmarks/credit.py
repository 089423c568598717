"""How well each estimator follows the gradient of E[Σ γ^t r_t]: exactly, on random small processes.

    python benchmarks/credit.py [--figure FILE.png]

For every process, discount and group size all groups are enumerated, so nothing here is sampled but the processes. The
output is Markdown, the same on every run with the same options. Takes less than a minute.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from enumeration import Vector, moments, paths, random_process, stop_or_go, true_gradient

from trajgym.trainers.advantages import ESTIMATORS, BoundEstimator

__all__ = ["main"]

PROCESSES, GAMMAS, SIZES = 12, (1.0, 0.9, 0.7), (2, 3, 4)
ZERO = 1e-9
SMALL = 0.01  # of the largest component of ∇J; below that, a sign says little
# Beside every registered estimator as it is by default.
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("trajectory", {"baseline": "mean"}),
    ("return_to_go", {"discount_weight": "dropped"}),
    ("grpo_process", {"norm": "none"}),
    ("mt_grpo", {"norm": "none"}),
    ("return_to_go", {"baseline": "earned"}),
)
STOP_OR_GO = stop_or_go((0.3, -0.4, 0.2), go=(0.5, 0.3, 1.0), stop=(0.2, 0.6, 0.0))
TABLE = (("return_to_go", {}, 1.0), *((n, o, 1.0) for n, o in VARIANTS[2:4]), ("return_to_go", VARIANTS[1][1], 0.7))


@dataclass(frozen=True, slots=True)
class Quality:
    """What one estimator makes of one process, discount and group size.

    Args:
        bias: ``|E ĝ − ∇J| / |∇J|``.
        cosine: Of the angle between E ĝ and ∇J.
        flips: Components of E ĝ that have the wrong sign.
        signs: Components of ∇J that are large enough to have one.
        noise: Trace of ĝ's covariance, over ``|E ĝ|²``; independent of the scale.
    """

    bias: float
    cosine: float
    flips: int
    signs: int
    noise: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Enumerate, and print both tables. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="credit.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", type=int, default=PROCESSES, help="random processes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the processes (default: %(default)s)")
    parser.add_argument("--gammas", type=float, nargs="+", default=GAMMAS, help="discounts (default: %(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="group sizes (default: %(default)s)")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw it into a .png or .svg")
    options = parser.parse_args(arguments)
    if options.processes < 1 or min(options.sizes) < 2:
        parser.error("there must be at least one process, and two trajectories in a group")
    found = compare(options.processes, options.gammas, options.sizes, options.seed)
    print(_stop_or_go_table())
    print()
    print(_table(found))
    if options.figure is not None:
        _draw(found, options.figure)
    return 0


def compare(processes: int, gammas: Sequence[float], sizes: Sequence[int], seed: int) -> dict[str, list[Quality]]:
    """Return the quality of every estimator in every setting."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[Quality]] = {}
    for process in [random_process(rng, most=8) for _ in range(processes)]:
        for gamma in gammas:
            trajectories = paths(process, gamma)
            truth = true_gradient(trajectories, gamma)
            for name, options in [*((n, {}) for n in sorted(ESTIMATORS)), *VARIANTS]:
                estimate = BoundEstimator(ESTIMATORS[name], {"gamma": gamma, **options})
                for size in sizes:
                    # A value head is never exact, and with exact values gae would be: the group stands in for it.
                    estimated = moments(trajectories, size, _without_values(estimate) if name == "gae" else estimate)
                    quality = _quality(estimated.mean, estimated.variance, truth)
                    found.setdefault(_label(name, options), []).append(quality)
    return found


def _without_values(estimate: BoundEstimator) -> Any:
    return lambda rewards, *, states, values: estimate(rewards, states=states)


def _label(name: str, options: dict[str, Any]) -> str:
    return ", ".join([f"`{name}`", *(f"{key} `{value}`" for key, value in options.items())])


def _quality(mean: Vector, variance: float, truth: Vector) -> Quality:
    length, wanted = float(np.linalg.norm(mean)), float(np.linalg.norm(truth))
    clear = np.abs(truth) > SMALL * np.abs(truth).max()
    return Quality(
        bias=float(np.linalg.norm(mean - truth)) / wanted,
        cosine=float(mean @ truth) / (length * wanted),
        flips=int(np.sum(np.sign(mean[clear]) == -np.sign(truth[clear]))),
        signs=int(clear.sum()),
        noise=variance / length**2,
    )


def _stop_or_go_table() -> str:
    """Return E ĝ / ∇J of each logit of the stop-or-go process, in groups of four."""
    lines = ["| stop or go, G = 4 | γ | θ₀ | θ₁ | θ₂ |", "|---|---|---|---|---|"]
    for name, options, gamma in TABLE:
        trajectories = paths(STOP_OR_GO, gamma)
        estimated = moments(trajectories, 4, BoundEstimator(ESTIMATORS[name], {"gamma": gamma, **options}))
        ratios = estimated.mean / true_gradient(trajectories, gamma)
        lines.append(f"| {_label(name, options)} | {gamma:g} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |")
    return "\n".join(lines)


def _table(found: dict[str, list[Quality]]) -> str:
    lines = [
        "| estimator | bias, median | bias, worst | cosine, median | cosine, worst | wrong signs | noise, median |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, qualities in sorted(found.items(), key=lambda item: (_worst_bias(item[1]) > ZERO, item[0])):
        flips = sum(q.flips for q in qualities) / sum(q.signs for q in qualities)
        cells = [
            _short(statistics.median(q.bias for q in qualities)),
            _short(_worst_bias(qualities)),
            f"{statistics.median(q.cosine for q in qualities):.3f}",
            f"{min(q.cosine for q in qualities):.3f}",
            f"{100 * flips:.0f} %",
            f"{statistics.median(q.noise for q in qualities):.1f}",
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _worst_bias(qualities: Sequence[Quality]) -> float:
    return max(q.bias for q in qualities)


def _short(bias: float) -> str:
    return "0" if bias < ZERO else f"{100 * bias:.2g} %" if bias < 0.1 else f"{100 * bias:.0f} %"


def _draw(found: dict[str, list[Quality]], target: Path) -> None:
    """Draw one dot per setting: how far off the direction is, how large the bias, how large the noise."""
    from matplotlib.figure import Figure  # no global state, no display

    labels = sorted(found, key=lambda label: (_worst_bias(found[label]) > ZERO, label), reverse=True)
    panels = (
        ("angle to the true gradient, degrees", lambda q: math.degrees(math.acos(min(1.0, max(-1.0, q.cosine))))),
        ("relative bias", lambda q: q.bias),
        ("noise: variance / |mean|²", lambda q: q.noise),
    )
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    for axis, (title, read) in zip(figure.subplots(1, 3, sharey=True), panels, strict=True):
        for height, label in enumerate(labels):
            colour = "tab:red" if _worst_bias(found[label]) > ZERO else "tab:blue"
            values = [read(q) for q in found[label]]
            axis.plot(values, [height] * len(values), "o", color=colour, alpha=0.25, markersize=5, markeredgewidth=0)
            axis.plot(statistics.median(values), height, "|", color="black", markersize=14, markeredgewidth=2)
        axis.set_title(title, fontsize=10)
        axis.set_yticks(range(len(labels)), [label.replace("`", "") for label in labels], fontsize=9)
        axis.grid(alpha=0.3)
        if title.startswith("noise"):
            axis.set_xscale("log")
        else:
            axis.set_xlim(left=-0.02 * axis.get_xlim()[1])
    # Says of which table it is.
    figure.savefig(target, dpi=110, metadata={"Description": hashlib.sha256(_table(found).encode()).hexdigest()})


if __name__ == "__main__":
    raise SystemExit(main())
