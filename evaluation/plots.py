"""Curves of a run as one picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trajgym.errors import DataError

__all__ = ["plot_run", "read_metrics"]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read a run's ``metrics.jsonl``.

    Raises:
        DataError: When there is no such file, or it holds something else.
    """
    try:
        metrics = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        if not all(isinstance(row, dict) and "update" in row for row in metrics):
            raise ValueError("each line must be an object with the key 'update'")
        return metrics
    except (OSError, ValueError) as error:
        raise DataError(f"{path} does not hold metrics: {error}") from error


def plot_run(metrics: list[dict[str, Any]], target: Path, *, title: str) -> None:
    """Draw return, success and KL against updates; what a run has not measured is left empty and says so.

    Args:
        metrics: From :func:`read_metrics`.
        target: The picture, ``.png`` or ``.svg``.
        title: Stands above the panels.
    """
    from matplotlib.figure import Figure  # no global state, no display

    panels = (
        ("return", "discounted return per trajectory", "tab:blue"),
        ("success", "share of right answers", "tab:green"),
        ("kl", "KL to the starting policy, nats per token", "tab:red"),
    )
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    figure.suptitle(title)
    for axis, (name, label, colour) in zip(figure.subplots(1, 3), panels, strict=True):
        updates = [m["update"] for m in metrics if name in m]
        values = [float(m[name]) for m in metrics if name in m]
        if not values:
            axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", va="center", color="grey")
            axis.set_xticks([])
        axis.plot(updates, values, color=colour, linewidth=0.8, alpha=0.35, marker="." if len(values) < 30 else "")
        axis.plot(updates, _smooth(values), color=colour, linewidth=2)
        axis.set_title(label, fontsize=10)
        axis.set_xlabel("update")
        if name == "success":
            axis.set_ylim(0, 1)
        elif min(values, default=0.0) >= 0:  # a penalty can make a return negative
            axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    figure.savefig(target, dpi=120)


def _smooth(values: list[float], half: int = 3) -> list[float]:
    """Return the mean over a window of ``2·half + 1`` updates, cut at the ends."""
    return [
        sum(window) / len(window) for window in (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    ]
