"""The enumeration itself: probabilities, values and gradients against other ways to get them."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import itertools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def enumeration() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("enumeration")
    sys.modules.pop("enumeration", None)


def objective(enumeration: ModuleType, process: Any, gamma: float) -> float:
    return sum(
        p.probability * sum(gamma**t * r for t, r in enumerate(p.rewards)) for p in enumeration.paths(process, 1)
    )


@pytest.mark.parametrize("seed", range(5))
def test_paths_are_all_there_is(enumeration: ModuleType, seed: int) -> None:
    process = enumeration.random_process(np.random.default_rng(seed))
    found = enumeration.paths(process, gamma=0.8)
    assert math.isclose(sum(path.probability for path in found), 1.0)
    assert 4 <= len(found) <= 12
    assert all(len(p.rewards) == len(p.states) == len(p.scores) == len(p.values) - 1 <= 3 for p in found)
    worth = objective(enumeration, process, 0.8)
    assert [path.values[0] for path in found] == pytest.approx([worth] * len(found))
    assert {path.values[-1] for path in found} == {0.0}


@pytest.mark.parametrize("gamma", [1.0, 0.6])
@pytest.mark.parametrize("seed", range(3))
def test_the_true_gradient_is_that_of_finite_differences(enumeration: ModuleType, seed: int, gamma: float) -> None:
    process = enumeration.random_process(np.random.default_rng(seed))
    gradient = enumeration.true_gradient(enumeration.paths(process, gamma), gamma)
    for k in range(len(process.logits)):
        up, down = (
            dataclasses.replace(process, logits=tuple(x + (i == k) * h for i, x in enumerate(process.logits)))
            for h in (1e-5, -1e-5)
        )
        slope = (objective(enumeration, up, gamma) - objective(enumeration, down, gamma)) / 2e-5
        assert gradient[k] == pytest.approx(slope, abs=1e-8)


def test_moments_are_those_over_all_ordered_groups(enumeration: ModuleType) -> None:
    found = enumeration.paths(enumeration.stop_or_go((0.3, -0.4), (0.5, 1.0), (0.2, 0.0)), gamma=1.0)

    def estimate(rewards: Any, *, states: Any, values: Any) -> Any:
        best = max(map(sum, rewards))
        return [[sum(row) - best + v for v in vs[:-1]] for row, vs in zip(rewards, values, strict=True)]

    mean, square = np.zeros(2), 0.0
    for group in itertools.product(found, repeat=3):
        probability = math.prod(path.probability for path in group)
        rows = estimate([p.rewards for p in group], states=None, values=[p.values for p in group])
        gradient = sum(np.asarray(row) @ path.scores for row, path in zip(rows, group, strict=True)) / 3
        mean += probability * gradient
        square += probability * float(gradient @ gradient)
    got = enumeration.moments(found, 3, estimate)
    np.testing.assert_allclose(got.mean, mean, atol=1e-12)
    assert got.variance == pytest.approx(square - mean @ mean)


def test_a_state_may_come_again(enumeration: ModuleType) -> None:
    rng = np.random.default_rng(0)
    found = [p for _ in range(20) for p in enumeration.paths(enumeration.random_process(rng), gamma=1.0)]
    assert any(len(set(path.states)) < len(path.states) for path in found)
    assert len({len(path.states) for path in found}) == 3


def test_the_example_of_the_module_runs(enumeration: ModuleType) -> None:
    result = doctest.testmod(enumeration)
    assert (result.failed, result.attempted) == (0, 2)
