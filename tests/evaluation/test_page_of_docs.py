"""The example of docs/evaluation.md runs, and its table names every measure."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from trajgym.evaluation.faults import CLASSES
from trajgym.evaluation.samples import Sample
from trajgym.evaluation.summary import summarise

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(example, "docs/evaluation.md", "exec"), {})


def test_every_measure_and_class_is_explained(make_samples: Callable[..., list[Sample]]) -> None:
    named = {name for name in summarise(make_samples(["72"])).measures if f"`{name}`" not in PAGE}
    assert named - {"turns", "reward"} == set(), "these two explain themselves"
    assert all(f"`{kind}`" in PAGE for kind in CLASSES)
