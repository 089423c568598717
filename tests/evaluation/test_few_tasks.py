"""A handful of tasks never makes anything certain."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable

import pytest

from trajgym.evaluation.compare import compare
from trajgym.evaluation.evaluate import Evaluation
from trajgym.evaluation.faults import conclusions
from trajgym.evaluation.measures import mcnemar, share_interval, wilson
from trajgym.evaluation.report import Report, Result, as_json, as_markdown
from trajgym.evaluation.robustness import check_forgetting
from trajgym.evaluation.samples import Sample, samples_of
from trajgym.evaluation.summary import summarise

MakeSamples = Callable[..., list[Sample]]


def test_wilson_by_hand() -> None:
    # 3 of 7: p = 3/7, z² = 3.8415; centre (p + z²/14)/(1 + z²/7), half width z·√(p(1−p)/7 + z²/196)/(1 + z²/7).
    p, z2 = 3 / 7, 1.959964**2
    centre, half = (p + z2 / 14) / (1 + z2 / 7), math.sqrt(z2 * (p * (1 - p) / 7 + z2 / 196)) / (1 + z2 / 7)
    assert wilson(3, 7) == pytest.approx((centre - half, centre + half))
    assert wilson(3, 7) == pytest.approx((0.1582, 0.7495), abs=1e-4)


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("tasks", [1, 3, 20])
def test_tasks_that_are_all_alike_still_leave_a_doubt(rate: float, tasks: int) -> None:
    low, high = share_interval([rate] * tasks)
    assert low <= rate <= high
    assert high - low > 0.5 / (tasks + 1)
    assert share_interval([]) == (0.0, 1.0)


def test_all_wrong_in_all_attempts_is_not_certain(make_samples: MakeSamples) -> None:
    found = summarise(make_samples(["1"] * 8, attempts=2), k=(2,)).measures
    for name in ("accuracy", "accuracy@2"):
        assert (found[name].value, found[name].low, found[name].high) == (0.0, 0.0, pytest.approx(wilson(0, 4)[1]))


def test_one_value_has_no_interval(make_samples: MakeSamples) -> None:
    found = summarise(make_samples(["72"])).measures
    assert (found["steps"].value, found["steps"].low, found["steps"].high) == (1.0, None, None)
    assert found["accuracy"].low == pytest.approx(wilson(1, 1)[0])


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_a_few_fixed_tasks_are_no_clear_difference(tasks: int, make_samples: MakeSamples) -> None:
    found = compare(("a", make_samples(["1"] * tasks)), ("b", make_samples(["72"] * tasks)))
    assert found.low > 0
    assert found.p_value == mcnemar(tasks, 0) > 0.05
    assert not found.significant
    assert str(found).endswith("within chance")
    enough = compare(("a", make_samples(["1"] * 6)), ("b", make_samples(["72"] * 6)))
    assert enough.significant


def test_a_lost_task_is_not_forgetting(make_samples: MakeSamples) -> None:
    found = check_forgetting(("before", make_samples(["72"] * 3)), ("after", make_samples(["1"] * 3)))
    assert (found.forgot, found.unknown) == (False, True)
    found = check_forgetting(("before", make_samples(["72"] * 9)), ("after", make_samples(["1"] * 9)))
    assert (found.forgot, found.unknown) == (True, False)


def test_strata_count_tasks_and_not_attempts(make_evaluation: Callable[..., Evaluation]) -> None:
    played = make_evaluation(["72", "72", "72", "72", "1", "1", "1", "1"], attempts=4)
    samples = samples_of(played)
    summary = summarise(samples)
    share = summary.strata["medium"]
    assert (share.successes, share.trials, share.tasks, share.value) == (4, 8, 2, 0.5)
    assert share.interval == share_interval([1.0, 0.0]) != wilson(4, 8)
    report = Report("R", [Result("m", played, samples, summary)])
    assert "| medium | 50.0 % of 2 (" in as_markdown(report)
    [found] = json.loads(as_json(report))["results"]
    assert {k: found["strata"]["medium"][k] for k in ("right", "attempts", "tasks")} == {
        "right": 4, "attempts": 8, "tasks": 2,
    }  # fmt: skip


def test_one_hard_task_is_no_weakness(make_samples: MakeSamples) -> None:
    assert conclusions({}, {"easy": (1, 1), "hard": (0, 1)}) == []
    assert "100.0 points worse" in conclusions({}, {"easy": (9, 9), "hard": (0, 9)})[0]
    rows = [
        dataclasses.replace(row, task_id=f"{name}-{row.task_id}")
        for name, steps, answers in (("e", 1, ["72"]), ("h", 6, ["1"]))
        for row in make_samples(answers, difficulty=steps)
    ]
    assert not any("Hard tasks" in sentence for sentence in summarise(rows).conclusions)
