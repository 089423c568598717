"""Curves of a run: one picture, whatever was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trajgym.errors import DataError
from trajgym.evaluation.plots import plot_run, read_metrics

RUN = [{"update": u, "return": u / 10 - 0.1, "success": u / 20, "kl": 0.001 * u} for u in range(1, 11)]


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> list[Axes]:
    """The axes of the picture that is saved next."""
    found: list[Axes] = []
    save = Figure.savefig

    def watched(self: Figure, *args: Any, **kwargs: Any) -> None:
        found.extend(self.axes)
        save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", watched)
    return found


def curve(axis: Axes, line: int) -> list[tuple[float, float]]:
    return [(float(x), round(float(y), 9)) for x, y in axis.lines[line].get_xydata()]  # type: ignore[union-attr]


def test_metrics_are_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(m) + "\n" for m in RUN))
    assert read_metrics(path) == RUN
    path.write_text("")
    assert read_metrics(path) == []


@pytest.mark.parametrize("text", ['{"update": 1, "rew', "[1]", '{"reward": 1}', "3", "\x00"])
def test_other_files_are_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl does not hold metrics"):
        read_metrics(path)
    with pytest.raises(DataError, match=r"nowhere does not hold metrics"):
        read_metrics(tmp_path / "nowhere")


def test_each_panel_shows_the_values_and_their_mean_around(tmp_path: Path, panels: list[Axes]) -> None:
    plot_run(RUN, tmp_path / "curves.png", title="A run")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert [axis.get_title().split(" ")[0] for axis in panels] == ["discounted", "share", "KL"]
    assert curve(panels[1], 0) == [(m["update"], m["success"]) for m in RUN]
    # Updates 1 to 4 lie around update 1, all of 1 to 7 around update 4, 7 to 10 around update 10.
    smooth = dict(curve(panels[1], 1))
    assert (smooth[1.0], smooth[4.0], smooth[10.0]) == (0.125, 0.2, 0.425)
    assert [axis.get_ylim()[0] for axis in panels] == [0, 0, 0]
    assert panels[1].get_ylim()[1] == 1


def test_a_negative_return_stays_in_the_picture(tmp_path: Path, panels: list[Axes]) -> None:
    plot_run([{"update": 1, "return": -2.0}, {"update": 2, "return": 0.5}], tmp_path / "curves.svg", title="Penalties")
    assert panels[0].get_ylim()[0] < -2.0
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_what_was_not_measured_is_said(tmp_path: Path, panels: list[Axes]) -> None:
    plot_run([{"update": 1, "return": 0.5}], tmp_path / "curves.png", title="One update, no reference")
    assert [[text.get_text() for text in axis.texts] for axis in panels] == [[], ["not measured"], ["not measured"]]
    assert panels[0].lines[0].get_marker() == "."  # a line of one point would be invisible


def test_a_run_without_updates_has_a_picture_too(tmp_path: Path, panels: list[Axes]) -> None:
    plot_run([], tmp_path / "curves.png", title="Nothing yet")
    assert len(panels) == 3
