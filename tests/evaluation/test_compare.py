"""Two models on the same tasks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trajgym.errors import ConfigError
from trajgym.evaluation.compare import compare, compare_all
from trajgym.evaluation.samples import Sample

MakeSamples = Callable[..., list[Sample]]


def test_a_clear_difference(make_samples: MakeSamples) -> None:
    before, after = make_samples(["1"] * 30 + ["72"] * 10), make_samples(["72"] * 39 + ["1"])
    found = compare(("sft", before), ("rl", after))
    assert (found.tasks, found.fixed, found.broken) == (40, 30, 1)
    assert found.difference == pytest.approx(29 / 40)
    assert found.low < found.difference < found.high
    assert found.significant
    assert found.p_value < 1e-6
    assert str(found).startswith("sft → rl: +72.5 points (")
    assert "30 fixed, 1 broken of 40" in str(found)


def test_chance(make_samples: MakeSamples) -> None:
    found = compare(("a", make_samples(["72", "1", "1"])), ("b", make_samples(["1", "72", "1"])))
    assert not found.significant
    assert (found.difference, found.p_value) == (0.0, 1.0)
    assert str(found).endswith("within chance")


def test_pairing_makes_the_interval_narrow(make_samples: MakeSamples) -> None:
    rows = ["72" if i % 2 else "1" for i in range(100)]
    same = compare(("a", make_samples(rows)), ("b", make_samples(rows)))
    assert (same.low, same.high) == (0.0, 0.0), "two models that always agree do not differ, whatever their accuracy"


def test_several_attempts_count_as_shares(make_samples: MakeSamples) -> None:
    before = make_samples(["72", "1", "1", "1"], attempts=2)
    after = make_samples(["72", "72", "1", "1"], attempts=2)
    found = compare(("a", before), ("b", after))
    assert (found.tasks, found.difference, found.fixed) == (2, 0.25, 1)


def test_only_the_same_tasks_can_be_compared(make_samples: MakeSamples) -> None:
    with pytest.raises(ConfigError, match=r"Only one of them has \['t-1'\]"):
        compare(("a", make_samples(["72"])), ("b", make_samples(["72", "72"])))
    with pytest.raises(ConfigError, match="Both have played none"):
        compare(("a", []), ("b", []))


def test_all_pairs(make_samples: MakeSamples) -> None:
    rows = make_samples(["72"])
    assert [(c.before, c.after) for c in compare_all({"a": rows, "b": rows, "c": rows})] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
    ]
