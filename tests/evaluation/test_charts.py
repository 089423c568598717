"""Pictures that stand in the page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable

from trajgym.evaluation.charts import charts
from trajgym.evaluation.samples import Sample
from trajgym.evaluation.summary import summarise

MakeSamples = Callable[..., list[Sample]]


def test_each_picture_is_an_svg_with_readable_text(make_samples: MakeSamples) -> None:
    summary = summarise(make_samples(["72", "1", "72", "72"], attempts=2), k=(1, 2))
    drawn = charts({"tiny": summary, "big": summary})
    assert list(drawn) == [
        "Right answers (95 % intervals)",
        "Right answers by difficulty",
        "Errors by class",
        "Accuracy@K",
    ]
    for svg in drawn.values():
        root = ET.fromstring(svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert any("tiny" in (element.text or "") for element in root.iter())
    assert charts({"tiny": summary, "big": summary}) == drawn, "the same numbers give the same bytes"


def test_one_attempt_has_no_curve(make_samples: MakeSamples) -> None:
    assert "Accuracy@K" not in charts({"tiny": summarise(make_samples(["72"]))})


def test_names_are_text_whatever_they_hold(make_samples: MakeSamples) -> None:
    summary = summarise(make_samples(["72"]))
    names = ("a$\\frac$b", "<script>", "\x00\ud800\n", "_hidden", "x" * 200)
    svg = charts(dict.fromkeys(names, summary))["Right answers (95 % intervals)"]
    shown = [element.text or "" for element in ET.fromstring(svg).iter()]
    assert {"a$\\frac$b", "<script>", "???", "_hidden"} <= set(shown)
    assert max(map(len, shown)) < 60
