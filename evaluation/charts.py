"""The pictures of a report, as SVG that stands in the page itself."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence

from trajgym.evaluation.faults import CLASSES, UNCLASSIFIED
from trajgym.evaluation.samples import STRATA
from trajgym.evaluation.summary import Summary

__all__ = ["charts"]

_COLOURS = ("#4477aa", "#cc6677", "#228833", "#ccbb44", "#aa3377", "#66ccee", "#777777")
_CONTROLS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]"
)  # what no XML may hold, and line ends


def charts(summaries: Mapping[str, Summary]) -> dict[str, str]:
    """Draw the accuracy, its strata, the classes of error and, for several attempts, Accuracy@K.

    Args:
        summaries: By the model's name.

    Returns:
        Title and SVG of each picture, in the order in which they are shown.
    """
    shares = {
        "lenient": [_of(s, "accuracy") for s in summaries.values()],
        "strict": [_of(s, "strict_accuracy") for s in summaries.values()],
    }
    names = [_label(name) for name in summaries]
    drawn = {"Right answers (95 % intervals)": _bars(names, shares, percent=True)}
    strata = [name for name in STRATA if any(name in s.strata for s in summaries.values())]
    by_stratum = {
        name: [_interval(s, stratum) for stratum in strata] for name, s in zip(names, summaries.values(), strict=True)
    }
    drawn["Right answers by difficulty"] = _bars(strata, by_stratum, percent=True)
    kinds = [*CLASSES, UNCLASSIFIED]
    errors = {
        name: [(float(s.errors[kind][0]),) * 3 for kind in kinds]
        for name, s in zip(names, summaries.values(), strict=True)
    }
    drawn["Errors by class"] = _bars(kinds, errors, percent=False)
    curves = {name: _curve(s) for name, s in zip(names, summaries.values(), strict=True)}
    if any(len(curve) > 1 for curve in curves.values()):
        drawn["Accuracy@K"] = _lines(curves)
    return drawn


_Interval = tuple[float, float, float]


def _of(summary: Summary, name: str) -> _Interval:
    found = summary.measures[name]
    return found.value or 0.0, found.low or 0.0, found.high or 0.0


def _interval(summary: Summary, stratum: str) -> _Interval:
    share = summary.strata.get(stratum)
    return (0.0, 0.0, 0.0) if share is None else (share.value, *share.interval)


def _curve(summary: Summary) -> dict[int, _Interval]:
    found = {int(name.split("@")[1]): _of(summary, name) for name in summary.measures if name.startswith("accuracy@")}
    return dict(sorted(found.items()))


def _bars(groups: Sequence[str], series: Mapping[str, Sequence[_Interval]], *, percent: bool) -> str:
    from matplotlib.figure import Figure  # no global state, no display

    figure = Figure(figsize=(6.2, 3.0), layout="constrained")
    axis = figure.subplots()
    width = 0.8 / max(1, len(series))
    scale = 100 if percent else 1
    for index, (name, values) in enumerate(series.items()):
        places = [i + (index - (len(series) - 1) / 2) * width for i in range(len(groups))]
        heights = [scale * value for value, _, _ in values]
        down = [scale * max(0.0, value - low) for value, low, _ in values]
        up = [scale * max(0.0, high - value) for value, _, high in values]
        axis.bar(places, heights, width * 0.92, color=_COLOURS[index % len(_COLOURS)], label=name)
        if percent:
            axis.errorbar(places, heights, [down, up], fmt="none", ecolor="#222222", elinewidth=1, capsize=3)
    axis.set_xticks(range(len(groups)), groups)
    axis.set_ylabel("%" if percent else "answers")
    axis.set_ylim(bottom=0, top=100 if percent else None)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
    if len(series) > 1:
        axis.legend(fontsize=8)
    return _svg(figure)


def _lines(curves: Mapping[str, Mapping[int, _Interval]]) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2, 3.0), layout="constrained")
    axis = figure.subplots()
    for index, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        ks, values = list(curve), list(curve.values())
        axis.plot(ks, [100 * v for v, _, _ in values], color=colour, marker="o", label=name)
        axis.fill_between(
            ks, [100 * low for _, low, _ in values], [100 * h for _, _, h in values], color=colour, alpha=0.15
        )
    axis.set_xticks(sorted({k for curve in curves.values() for k in curve}))
    axis.set_xlabel("K: attempts of which one has to be right")
    axis.set_ylabel("%")
    axis.set_ylim(0, 100)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return _svg(figure)


def _svg(figure: object) -> str:
    """Return a figure as an SVG element that two calls write alike; names in it are text and never formulas."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    assert isinstance(figure, Figure)
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    target = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trajgym"}):
        figure.savefig(target, format="svg", metadata={"Date": None}, transparent=True)
    return target.getvalue().partition("<svg")[1] + target.getvalue().partition("<svg")[2]


def _label(name: str) -> str:
    name = _CONTROLS.sub("?", name)
    return name if len(name) <= 28 else f"…{name[-27:]}"
