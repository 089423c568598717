"""Every measure with its unit, its interval and its count."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from trajgym.errors import ConfigError
from trajgym.evaluation.evaluate import Share
from trajgym.evaluation.measures import wilson
from trajgym.evaluation.samples import Sample
from trajgym.evaluation.summary import Measure, summarise

MakeSamples = Callable[..., list[Sample]]


def test_measures_of_one_attempt(make_samples: MakeSamples) -> None:
    found = summarise(make_samples(["72", "72", "72", "100"]))
    assert (found.tasks, found.attempts, found.accuracy) == (4, 1, 0.75)
    assert found.measures["accuracy"] == Measure(0.75, *wilson(3, 4), "share", 4)
    assert found.measures["numeric_error"].value == 7.0
    assert (found.measures["format"].value, found.measures["step_markers"].value) == (1.0, 0.0)
    assert (found.measures["steps"].value, found.measures["turns"].value) == (1.0, 1.0)
    assert found.measures["length_characters"].unit == "characters"
    assert found.measures["length_tokens"] == Measure(None, None, None, "tokens", 0)
    assert found.measures["time"] == Measure(0.5, 0.5, 0.5, "seconds", 4)
    assert found.measures["coherence"].value is None
    assert found.strata == {"medium": Share(3, 4)}
    assert found.errors["calculation"] == (1, 1.0)


def test_attempts_at_one_task_are_taken_together(make_samples: MakeSamples) -> None:
    found = summarise(make_samples(["72", "1", "1", "72", "72", "72"], attempts=3), k=(1, 2, 3))
    assert (found.tasks, found.attempts) == (2, 3)
    values = [found.measures[name].value for name in ("accuracy", "accuracy@1", "accuracy@2", "accuracy@3")]
    assert values == [pytest.approx(v) for v in (2 / 3, 2 / 3, (2 / 3 + 1) / 2, 1.0)]
    assert found.measures["accuracy"].count == 2


def test_the_fixture_of_strata(make_samples: MakeSamples) -> None:
    # The founding document prints 78.50 % of 85 easy tasks, which no number of right answers gives; 67 is nearest.
    samples = []
    for name, steps, tasks, right in (("easy", 2, 85, 67), ("medium", 3, 96, 56), ("hard", 5, 19, 6)):
        rows = make_samples(["72"] * right + ["1"] * (tasks - right), difficulty=steps)
        samples += [dataclasses.replace(row, task_id=f"{name}-{row.task_id}") for row in rows]
    found = summarise(samples)
    shown = {name: (f"{share.value:.2%}", share.trials) for name, share in found.strata.items()}
    assert shown == {"easy": ("78.82%", 85), "medium": ("58.33%", 96), "hard": ("31.58%", 19)}
    assert any("Hard tasks are 47.2 points worse" in sentence for sentence in found.conclusions)


def test_tool_errors_and_unparsed_calls_are_shares_of_calls_and_turns(make_samples: MakeSamples) -> None:
    first, second = make_samples(["72", "72"])
    rows = [dataclasses.replace(first, calls=3, tool_errors=1), dataclasses.replace(second, unparsed=1, turns=3)]
    found = summarise(rows).measures
    assert found["tool_use"].value == 0.5
    assert found["tool_errors"] == Measure(pytest.approx(1 / 3), None, None, "share of calls", 3)
    assert found["unparsed"] == Measure(0.25, None, None, "share of turns", 4)
    assert summarise([first]).measures["tool_errors"].value is None


def test_redundant_steps_are_told(make_samples: MakeSamples) -> None:
    [sample] = make_samples(["72"])
    assert summarise([dataclasses.replace(sample, steps=2)]).conclusions == ()
    assert "takes redundant steps" in summarise([dataclasses.replace(sample, steps=9)]).conclusions[0]
    assert "jumps to its answers" in summarise([sample]).conclusions[0]


def test_what_cannot_be_summed_up(make_samples: MakeSamples) -> None:
    with pytest.raises(ConfigError, match="there is no sample"):
        summarise([])
    rows = make_samples(["72", "72", "72", "72"], attempts=2)
    with pytest.raises(ConfigError, match=r"tasks have \[1, 2\] attempts"):
        summarise(rows[:3])
    with pytest.raises(ConfigError, match="Make more attempts"):
        summarise(rows, k=(3,))
