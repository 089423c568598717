"""Every estimator against the exact gradient, by going through all groups of small processes; and binding options."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers import advantages
from trajgym.trainers.advantages import ESTIMATORS, Advantages, BiasWarning, BoundEstimator, Estimator, bind, estimator

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NINE = ["anchor", "gae", "gigpo", "grpo_process", "mt_grpo", "rebn", "return_to_go", "trajectory", "vine"]
GAMMA_AND_SIZE = [(1.0, 2), (0.9, 3), (0.7, 4), (0.5, 2), (0.0, 3)]
PROCESSES = ["stop or go", "terminal", "negative", "loop", "random 1", "random 2"]
MORE_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "trajectory": [{"baseline": "none"}],
    "return_to_go": [{"baseline": "earned"}, {"baseline": "absorbing"}, {"baseline": "v0"}, {"baseline": "none"}],
    "anchor": [{"fallback": "absorbing"}, {"fallback": "none"}],
    "gae": [{"lam": 1.0, "baseline": "none"}],
}


def registered() -> list[Estimator]:
    """Everything in the registry, and two that a user adds; the registry is left as it was."""
    before = dict(ESTIMATORS._items)

    @estimator("test_centred", unbiased=True)
    def centred(rewards: Any, *, gamma: float, centre: float = 0.5) -> Advantages:
        to_go = [advantages.returns(row, gamma) for row in rewards]
        return [[gamma**t * (g - centre) for t, g in enumerate(row)] for row in to_go]

    @estimator("test_first_reward")
    def first_reward(rewards: Any, *, gamma: float) -> Advantages:
        return [[row[0]] * len(row) for row in rewards]

    found = list(ESTIMATORS.values())
    ESTIMATORS._items.clear()
    ESTIMATORS._items.update(before)
    return found


EVERY = registered()
UNBIASED = [
    BoundEstimator(one, options)
    for one in EVERY
    if one.unbiased or one.exact_at
    for options in [dict(one.exact_at), *MORE_OPTIONS.get(one.name, [])]
]
BIASED = [BoundEstimator(one, {}) for one in EVERY if not one.unbiased] + [
    BoundEstimator(one, {"norm": "none"}) for one in EVERY if "norm" in one.options
]


def label(case: object) -> str | None:
    return (
        "-".join([case.estimator.name, *map(str, case.options.values())]) if isinstance(case, BoundEstimator) else None
    )


def at(case: BoundEstimator, gamma: float, **options: Any) -> BoundEstimator:
    return dataclasses.replace(case, options={**case.options, "gamma": gamma, **options})


def without_values(case: BoundEstimator) -> Any:
    return lambda rewards, *, states, values: case(rewards, states=states)


@pytest.fixture(scope="module")
def exact() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("enumeration")
    sys.modules.pop("enumeration", None)


@pytest.fixture(scope="module")
def processes(exact: ModuleType) -> dict[str, Any]:
    loop = exact.Process(
        logits=(0.4, -0.3),
        rewards=((0.2, -0.1), (0.5, 0.9)),
        outcomes=((((1.0, 1),), ((1.0, 0),)), (((1.0, None),), ((0.6, 0), (0.4, None)))),
        horizon=3,
    )
    return {
        "stop or go": exact.stop_or_go((0.3, -0.4, 0.2), (0.5, 0.3, 1.0), (0.2, 0.6, 0.0)),
        "terminal": exact.stop_or_go((-0.4, 0.1, 0.9), (0.0, 0.0, 1.0), (0.0, 0.0, 0.0)),
        "negative": exact.stop_or_go((1.0, -1.0, 0.0), (-0.3, 0.7, -0.2), (0.9, -0.5, 0.4)),
        "loop": loop,
        "random 1": exact.random_process(np.random.default_rng(1), most=9),
        "random 2": exact.random_process(np.random.default_rng(2), most=9),
    }


def with_other_values(paths: list[Any], draw: np.random.Generator) -> list[Any]:
    """The trajectories with another value for each state and time; 0 behind the end."""
    table = draw.normal(size=(10, 10))
    return [
        dataclasses.replace(path, values=(*(float(table[t, s]) for t, s in enumerate(path.states)), 0.0))
        for path in paths
    ]


def with_rollouts(paths: list[Any], spread: float) -> list[Any]:
    """Each trajectory with every combination of errors ±spread in the values of its states, as fresh rollouts have."""
    out = []
    for path in paths:
        count = len(path.rewards)
        for signs in np.ndindex(*[2] * count):
            values = (*(v + spread * (2 * s - 1) for v, s in zip(path.values, signs, strict=False)), 0.0)
            out.append(dataclasses.replace(path, probability=path.probability / 2**count, values=values))
    return out


def test_all_nine_are_there() -> None:
    assert set(NINE) <= set(ESTIMATORS)
    assert {name for name in NINE if ESTIMATORS[name].unbiased} == {"anchor", "return_to_go", "trajectory", "vine"}
    assert {name: ESTIMATORS[name].needs for name in NINE if ESTIMATORS[name].needs} == {
        "anchor": ("states",), "gigpo": ("states",), "gae": ("values",), "vine": ("values",),
    }  # fmt: skip


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize(("gamma", "size"), GAMMA_AND_SIZE)
@pytest.mark.parametrize("case", UNBIASED, ids=label)
def test_the_expected_gradient_is_the_gradient_of_the_objective(
    exact: ModuleType, processes: dict[str, Any], process: str, gamma: float, size: int, case: BoundEstimator
) -> None:
    paths = exact.paths(processes[process], gamma)
    got = exact.moments(paths, size, at(case, gamma)).mean
    np.testing.assert_allclose(got, exact.true_gradient(paths, gamma), atol=1e-9)


@pytest.mark.parametrize("process", ["stop or go", "loop"])
@pytest.mark.parametrize(("gamma", "size"), GAMMA_AND_SIZE[:3])
@pytest.mark.parametrize("case", BIASED, ids=label)
def test_what_is_not_called_unbiased_fails_that_test(
    exact: ModuleType, processes: dict[str, Any], process: str, gamma: float, size: int, case: BoundEstimator
) -> None:
    paths = exact.paths(processes[process], gamma)
    estimate = without_values(at(case, gamma)) if case.estimator.exact_at else at(case, gamma)
    truth = exact.true_gradient(paths, gamma)
    assert np.abs(exact.moments(paths, size, estimate).mean - truth).max() > 1e-5 * np.abs(truth).max()


@pytest.mark.parametrize("case", UNBIASED, ids=label)
def test_without_its_discount_weight_it_fails_too(
    exact: ModuleType, processes: dict[str, Any], case: BoundEstimator
) -> None:
    if "discount_weight" not in case.estimator.options or case.options.get("baseline") == "v0":
        assert case.estimator.name in {"trajectory", "return_to_go", "anchor", "test_centred"}
        return
    paths = exact.paths(processes["stop or go"], 0.7)
    got = exact.moments(paths, 3, at(case, 0.7, discount_weight="dropped")).mean
    np.testing.assert_allclose(got / exact.true_gradient(paths, 0.7), [1.0, 1 / 0.7, 1 / 0.49], rtol=1e-9)
    undiscounted = exact.paths(processes["stop or go"], 1.0)
    got = exact.moments(undiscounted, 3, at(case, 1.0, discount_weight="dropped")).mean
    np.testing.assert_allclose(got, exact.true_gradient(undiscounted, 1.0), atol=1e-9)


@pytest.mark.parametrize(
    ("name", "options", "gamma", "ratios"),
    [
        ("return_to_go", {}, 1.0, (1.0, 1.0, 1.0)),
        ("grpo_process", {"norm": "none"}, 1.0, (0.32, -0.63, 0.88)),
        ("mt_grpo", {"norm": "none"}, 1.0, (0.225, -0.70, 0.30)),
        ("return_to_go", {"discount_weight": "dropped"}, 0.7, (1.0, 1.43, 2.04)),
    ],
)
def test_the_table_of_the_stop_or_go_process(
    exact: ModuleType,
    processes: dict[str, Any],
    name: str,
    options: dict[str, Any],
    gamma: float,
    ratios: tuple[float, ...],
) -> None:
    paths = exact.paths(processes["stop or go"], gamma)
    got = exact.moments(paths, 4, BoundEstimator(ESTIMATORS[name], {"gamma": gamma, **options})).mean
    np.testing.assert_allclose(got / exact.true_gradient(paths, gamma), ratios, atol=0.005)


@pytest.mark.parametrize("name", ["grpo_process", "mt_grpo"])
def test_dividing_by_a_standard_deviation_leaves_the_wrong_sign(
    exact: ModuleType, processes: dict[str, Any], name: str
) -> None:
    paths = exact.paths(processes["stop or go"], 1.0)
    got = exact.moments(paths, 4, BoundEstimator(ESTIMATORS[name], {"gamma": 1.0})).mean
    assert (got / exact.true_gradient(paths, 1.0))[1] < 0


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_group_mean_is_exactly_a_multiple_of_the_gradient(
    exact: ModuleType, processes: dict[str, Any], size: int
) -> None:
    paths = exact.paths(processes["loop"], 0.9)
    got = exact.moments(paths, size, BoundEstimator(ESTIMATORS["trajectory"], {"gamma": 0.9, "baseline": "mean"})).mean
    np.testing.assert_allclose(got, (size - 1) / size * exact.true_gradient(paths, 0.9), atol=1e-9)


@pytest.mark.parametrize("process", ["stop or go", "loop"])
@pytest.mark.parametrize("gamma", [1.0, 0.8])
def test_values_need_not_be_right(exact: ModuleType, processes: dict[str, Any], process: str, gamma: float) -> None:
    paths = exact.paths(processes[process], gamma)
    truth = exact.true_gradient(paths, gamma)
    wrong = with_other_values(paths, np.random.default_rng(0))
    whole = BoundEstimator(ESTIMATORS["gae"], {"gamma": gamma, "lam": 1.0})
    np.testing.assert_allclose(exact.moments(wrong, 2, whole).mean, truth, atol=1e-9)
    one_step = BoundEstimator(ESTIMATORS["vine"], {"gamma": gamma})
    noisy = with_rollouts(paths, spread=0.7)
    np.testing.assert_allclose(exact.moments(noisy, 1, one_step).mean, truth, atol=1e-9)
    assert np.abs(exact.moments(wrong, 1, one_step).mean - truth).max() > 1e-3  # no rollouts of these states


@pytest.mark.parametrize("lam", [0.0, 0.6, 0.95])
def test_gae_is_as_biased_as_its_values_are_wrong(exact: ModuleType, processes: dict[str, Any], lam: float) -> None:
    paths = exact.paths(processes["stop or go"], 0.9)
    truth = exact.true_gradient(paths, 0.9)
    case = BoundEstimator(ESTIMATORS["gae"], {"gamma": 0.9, "lam": lam})
    np.testing.assert_allclose(exact.moments(paths, 2, case).mean, truth, atol=1e-9)
    by_group = exact.moments(paths, 4, without_values(case)).mean
    assert 0 < np.abs(by_group / truth - 1).max() <= 2.5 * (1 - lam)


@pytest.mark.parametrize("process", ["stop or go", "loop", "random 1"])
@pytest.mark.parametrize("gamma", [1.0, 0.8])
@pytest.mark.parametrize("case", UNBIASED, ids=label)
def test_potential_based_shaping_leaves_the_expected_gradient_alone(
    exact: ModuleType, processes: dict[str, Any], process: str, gamma: float, case: BoundEstimator
) -> None:
    potential = (0.7, -1.3, 0.4)
    shaped = []
    for path in exact.paths(processes[process], gamma):
        phi = [*(potential[s] for s in path.states), 0.0]
        rewards = tuple(r + gamma * phi[t + 1] - phi[t] for t, r in enumerate(path.rewards))
        shaped.append(
            dataclasses.replace(
                path, rewards=rewards, values=tuple(v - p for v, p in zip(path.values, phi, strict=True))
            )
        )
    truth = exact.true_gradient(exact.paths(processes[process], gamma), gamma)
    np.testing.assert_allclose(exact.moments(shaped, 3, at(case, gamma)).mean, truth, atol=1e-9)


def test_comparing_lowers_the_variance(exact: ModuleType, processes: dict[str, Any]) -> None:
    """Of the gradient, where the rewards are far from zero: nothing, whole returns, what came after, true values."""
    paths = exact.paths(processes["stop or go"], 1.0)
    ladder = [
        ("trajectory", {"baseline": "none"}),
        ("trajectory", {}),
        ("return_to_go", {}),
        ("vine", {}),
    ]
    found = [exact.moments(paths, 4, BoundEstimator(ESTIMATORS[n], {"gamma": 1.0, **o})).variance for n, o in ladder]
    assert found == sorted(found, reverse=True)
    assert found[0] > 2 * found[2]


def test_comparing_within_a_state_lowers_the_variance_where_states_differ(exact: ModuleType) -> None:
    end = ((1.0, None),)
    fork = exact.Process(
        logits=(0.0, 0.5, -0.5),
        rewards=((0.0, 0.0), (2.1, 1.9), (-0.2, 0.2)),
        outcomes=((((1.0, 1),), ((1.0, 2),)), (end, end), (end, end)),
        horizon=2,
    )
    paths = exact.paths(fork, 1.0)
    anchored, stepwise = (
        exact.moments(paths, 4, BoundEstimator(ESTIMATORS[name], {"gamma": 1.0})).variance
        for name in ("anchor", "return_to_go")
    )
    assert anchored < stepwise


def test_binding_names_what_is_wrong() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'return_to_go'"):
        bind("return_to_goo", gamma=1.0)
    with pytest.raises(ConfigError, match=r"'trajectory' has no option 'discount_weight'\. It has: 'baseline'\."):
        bind("trajectory", gamma=1.0, discount_weight="dropped")
    with pytest.raises(ConfigError, match=r"no option 'lamm'\. Did you mean 'lam'\?"):
        bind("gae", gamma=1.0, lamm=0.5)
    with pytest.raises(UnknownNameError, match="Did you mean 'step'"):
        bind("return_to_go", gamma=1.0, baseline="stp")
    with pytest.raises(ConfigError, match=r"lam must lie in \[0, 1\], got 1.5"):
        bind("gae", gamma=1.0, lam=1.5)
    with pytest.raises(ConfigError, match="gamma must lie in"):
        bind("return_to_go", gamma=2.0)
    with pytest.raises(ConfigError, match="omega must be"):
        bind("gigpo", gamma=1.0, omega=-1.0)


def test_what_is_bound_passes_what_is_needed() -> None:
    bound = bind("anchor", gamma=1.0, fallback="none")
    assert bound.needs == ("states",)
    rewards, states, values = [[1.0], [2.0]], [["a"], ["a"]], [[0.0, 0.0], [0.0, 0.0]]
    assert bound(rewards, states=states, values=values) == [[-1.0], [1.0]]
    with pytest.raises(ConfigError, match="needs states"):
        bound(rewards)
    assert bind("return_to_go", gamma=1.0)(rewards, states=states, values=values) == [[-1.0], [1.0]]
    assert bind("gae", gamma=1.0)(rewards) == [[-1.0], [1.0]]
    assert bind("gae", gamma=1.0)(rewards, values=[[1.0, 0.0], [1.0, 0.0]]) == [[0.0], [1.0]]


@pytest.mark.parametrize("name", NINE)
def test_a_biased_estimator_is_warned_of_when_it_is_chosen(name: str) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        bound = bind(name, gamma=0.9)
        bound([[1.0, 2.0], [0.5]], states=[[0, 1], [0]], values=[[0.0] * 3, [0.0] * 2])
    assert [w.category for w in seen] == [BiasWarning] * (name in {"gigpo", "grpo_process", "mt_grpo", "rebn"})
    assert all(name in str(w.message) and w.filename == __file__ for w in seen)
