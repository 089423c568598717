"""Estimators: shapes, hand-computed numbers, and unbiasedness by exact enumeration of a small process."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError, RewardError, UnknownNameError
from trajgym.trainers.advantages import ESTIMATORS, return_to_go, returns, scale, trajectory

UNBIASED = [
    ("trajectory", "loo"),
    ("trajectory", "none"),
    ("return_to_go", "step"),
    ("return_to_go", "absorbing"),
    ("return_to_go", "v0"),
    ("return_to_go", "none"),
]

ragged = st.lists(
    st.lists(st.floats(-2, 2, allow_nan=False), min_size=1, max_size=5),
    min_size=2,
    max_size=5,
)


@dataclass(frozen=True)
class Path:
    """One trajectory of the stop-or-go process: probability, rewards, ∂log π/∂θ of each turn."""

    probability: float
    rewards: tuple[float, ...]
    scores: tuple[tuple[float, ...], ...]


def stop_or_go(theta: tuple[float, ...], go: tuple[float, ...], stop: tuple[float, ...]) -> list[Path]:
    """Enumerate a process in which each turn either goes on (paid go[t]) or stops (paid stop[t]).

    The policy has one logit per turn, P(go at t) = σ(θ_t); at the last turn both actions end the episode.
    """
    paths = []
    for length in range(1, len(theta) + 1):
        for last_goes in [False] if length < len(theta) else [False, True]:
            actions = [True] * (length - 1) + [last_goes]
            p, rewards, scores = 1.0, [], []
            for t, goes in enumerate(actions):
                sigma = 1 / (1 + math.exp(-theta[t]))
                p *= sigma if goes else 1 - sigma
                rewards.append(go[t] if goes else stop[t])
                score = [0.0] * len(theta)
                score[t] = (1 - sigma) if goes else -sigma
                scores.append(tuple(score))
            paths.append(Path(p, tuple(rewards), tuple(scores)))
    assert math.isclose(sum(path.probability for path in paths), 1.0)
    return paths


def true_gradient(paths: list[Path], gamma: float) -> np.ndarray:
    """∇J of J = E[Σ γ^t r_t], from ∇p = p·Σ_t score_t."""
    total = np.zeros(len(paths[0].scores[0]))
    for path in paths:
        value = sum(gamma**t * r for t, r in enumerate(path.rewards))
        total += path.probability * value * np.sum(path.scores, axis=0)
    return total


def expected_gradient(paths: list[Path], size: int, estimate: Callable[..., list[list[float]]]) -> np.ndarray:
    """E[(1/G)·Σ_i Σ_t A_{i,t}·score_{i,t}] over all groups of ``size`` independent trajectories."""
    total = np.zeros(len(paths[0].scores[0]))
    for group in itertools.product(paths, repeat=size):
        p = math.prod(path.probability for path in group)
        advantages = estimate([list(path.rewards) for path in group])
        for path, row in zip(group, advantages, strict=True):
            for a, score in zip(row, path.scores, strict=True):
                total += p * a * np.asarray(score) / size
    return total


PROCESSES = {
    "paper": ((0.2, -0.3, 0.5), (0.5, 0.3, 1.0), (0.2, 0.6, 0.0)),
    "terminal": ((-0.4, 0.1, 0.9), (0.0, 0.0, 1.0), (0.0, 0.0, 0.0)),
    "negative": ((1.0, -1.0, 0.0), (-0.3, 0.7, -0.2), (0.9, -0.5, 0.4)),
}


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.5, 0.0])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("name", "baseline"), UNBIASED)
def test_the_expected_gradient_is_the_gradient_of_the_objective(
    process: str, gamma: float, size: int, name: str, baseline: str
) -> None:
    paths = stop_or_go(*PROCESSES[process])
    got = expected_gradient(paths, size, lambda r: ESTIMATORS[name](r, gamma=gamma, baseline=baseline))
    np.testing.assert_allclose(got, true_gradient(paths, gamma), atol=1e-9)


@given(
    theta=st.tuples(*[st.floats(-2, 2)] * 3),
    go=st.tuples(*[st.floats(-1, 1)] * 3),
    stop=st.tuples(*[st.floats(-1, 1)] * 3),
    gamma=st.floats(0, 1),
)
def test_unbiased_on_random_processes(
    theta: tuple[float, ...], go: tuple[float, ...], stop: tuple[float, ...], gamma: float
) -> None:
    paths = stop_or_go(theta, go, stop)
    truth = true_gradient(paths, gamma)
    for name, baseline in UNBIASED:
        got = expected_gradient(paths, 3, lambda r, n=name, b=baseline: ESTIMATORS[n](r, gamma=gamma, baseline=b))
        np.testing.assert_allclose(got, truth, atol=1e-9)


def test_the_mean_baseline_is_exactly_a_multiple_of_the_gradient() -> None:
    paths = stop_or_go(*PROCESSES["paper"])
    for size in (2, 3, 4):
        got = expected_gradient(paths, size, lambda r: trajectory(r, gamma=0.9, baseline="mean"))
        np.testing.assert_allclose(got, (size - 1) / size * true_gradient(paths, 0.9), atol=1e-9)


def test_dropping_the_discount_weight_is_another_objective() -> None:
    paths = stop_or_go(*PROCESSES["paper"])
    got = expected_gradient(paths, 3, lambda r: return_to_go(r, gamma=0.7, discount_weight="dropped"))
    ratio = got / true_gradient(paths, 0.7)
    np.testing.assert_allclose(ratio, [1.0, 1 / 0.7, 1 / 0.49], rtol=1e-6)


def test_per_index_normalised_rewards_fail_the_same_test() -> None:
    """The published per-index form gets a sign wrong here; the test above would notice."""

    def per_index(rewards: list[list[float]]) -> list[list[float]]:
        depth = max(map(len, rewards))
        columns = [[r[t] for r in rewards if t < len(r)] for t in range(depth)]
        normal = [[0.0] * len(r) for r in rewards]
        for t, column in enumerate(columns):
            mean, std = np.mean(column), np.std(column)
            for i, r in enumerate(rewards):
                if t < len(r):
                    normal[i][t] = float((r[t] - mean) / (std + 1e-6))
        return [[sum(row[t:]) for t in range(len(row))] for row in normal]

    paths = stop_or_go(*PROCESSES["paper"])
    ratio = expected_gradient(paths, 4, per_index) / true_gradient(paths, 1.0)
    assert ratio[1] < 0


def test_worked_numbers() -> None:
    assert returns([0.1, 0.1, 0.2, 0.6], 1.0) == pytest.approx([1.0, 0.9, 0.8, 0.6])
    assert returns([0.1, 0.1, 0.2, 0.6], 0.9)[0] == pytest.approx(0.7894)
    relative = trajectory([[1.0], [1.0], [0.0], [0.8]], gamma=1.0, baseline="mean")
    assert [a for row in relative for a in row] == pytest.approx([0.3, 0.3, -0.7, 0.1])
    # Two trajectories; the second ends one turn earlier, so turn 1 of the first has nobody to be compared with.
    assert return_to_go([[1.0, 2.0], [4.0]], gamma=0.5) == [[2.0 - 4.0, 0.5 * 2.0], [4.0 - 2.0]]
    assert return_to_go([[1.0, 2.0], [4.0]], gamma=0.5, baseline="absorbing")[0][1] == 0.5 * 2.0


@given(ragged, st.floats(0, 1))
def test_v0_equals_trajectory_for_terminal_rewards(rewards: list[list[float]], gamma: float) -> None:
    terminal = [[0.0] * (len(r) - 1) + [r[-1]] for r in rewards]
    by_turn = return_to_go(terminal, gamma=1.0, baseline="v0")
    whole = trajectory(terminal, gamma=1.0, baseline="loo")
    for a, b in zip(by_turn, whole, strict=True):
        assert a == pytest.approx(b, abs=1e-9)


@given(ragged, st.floats(0, 1), st.sampled_from(UNBIASED))
def test_shape_and_homogeneity(rewards: list[list[float]], gamma: float, which: tuple[str, str]) -> None:
    estimate = ESTIMATORS[which[0]]
    advantages = estimate(rewards, gamma=gamma, baseline=which[1])
    assert [len(a) for a in advantages] == [len(r) for r in rewards]
    tripled = estimate([[3 * x for x in r] for r in rewards], gamma=gamma, baseline=which[1])
    for a, b in zip(advantages, tripled, strict=True):
        assert [3 * x for x in a] == pytest.approx(b, abs=1e-9)


@given(ragged, st.floats(0, 1), st.data())
def test_earlier_rewards_never_change_later_advantages(
    rewards: list[list[float]], gamma: float, data: st.DataObject
) -> None:
    i = data.draw(st.integers(0, len(rewards) - 1))
    k = data.draw(st.integers(0, len(rewards[i]) - 1))
    changed = [list(r) for r in rewards]
    changed[i][k] += 1.0
    before, after = (return_to_go(r, gamma=gamma) for r in (rewards, changed))
    assert before[i][k + 1 :] == after[i][k + 1 :]


@given(ragged, st.floats(0, 1), st.sampled_from(UNBIASED))
def test_a_baseline_never_depends_on_its_own_trajectory(
    rewards: list[list[float]], gamma: float, which: tuple[str, str]
) -> None:
    estimate = ESTIMATORS[which[0]]
    changed = [list(r) for r in rewards]
    changed[0] = [x + 1.0 for x in changed[0]]
    own = estimate(changed, gamma=gamma, baseline="none")[0]
    own_before = estimate(rewards, gamma=gamma, baseline="none")[0]
    after = estimate(changed, gamma=gamma, baseline=which[1])[0]
    before = estimate(rewards, gamma=gamma, baseline=which[1])[0]
    moved = [a - b for a, b in zip(after, before, strict=True)]
    assert moved == pytest.approx([a - b for a, b in zip(own, own_before, strict=True)], abs=1e-9)


@given(ragged)
def test_constants_at_the_end_and_at_each_step(rewards: list[list[float]]) -> None:
    plain = trajectory(rewards, gamma=1.0)
    at_end = trajectory([[*r[:-1], r[-1] + 2.0] for r in rewards], gamma=1.0)
    for a, b in zip(plain, at_end, strict=True):
        assert a == pytest.approx(b, abs=1e-9)
    each = trajectory([[x + 2.0 for x in r] for r in rewards], gamma=1.0)
    if len({len(r) for r in rewards}) > 1:  # a bonus per step favours long trajectories
        assert any(a != pytest.approx(b, abs=1e-6) for a, b in zip(plain, each, strict=True))


@given(ragged)
def test_baselines_do_not_add_variance_to_terminal_rewards(rewards: list[list[float]]) -> None:
    terminal = [[0.0] * 2 + [r[-1]] for r in rewards]
    raw = [r[-1] for r in terminal]
    centred = trajectory(terminal, gamma=1.0, baseline="mean")
    assert np.var([row[0] for row in centred]) <= np.var(raw) + 1e-12


@given(ragged, st.permutations(range(5)))
def test_members_may_come_in_any_order(rewards: list[list[float]], order: list[int]) -> None:
    order = [i for i in order if i < len(rewards)]
    shuffled = return_to_go([rewards[i] for i in order], gamma=0.9)
    straight = return_to_go(rewards, gamma=0.9)
    for place, i in enumerate(order):
        assert shuffled[place] == pytest.approx(straight[i], abs=1e-9)


def test_scales() -> None:
    rewards = [[[1.0], [0.0], [0.0], [1.0]], [[0.5], [0.5]]]
    advantages = [trajectory(r, gamma=1.0, baseline="mean") for r in rewards]
    assert scale(advantages, "none") == advantages
    by_group = scale(advantages, "group_std", groups_rewards=rewards)
    assert by_group[0][0][0] == pytest.approx(0.5 / (np.std([1, 0, 0, 1], ddof=1) + 1e-4))
    assert by_group[1] == [[0.0], [0.0]]
    by_batch = scale(advantages, "batch_std")
    values = [a for g in by_batch for r in g for a in r]
    assert np.mean(np.square(values)) == pytest.approx(1.0)
    with pytest.raises(UnknownNameError, match="group_std"):
        scale(advantages, "group_sdt")


def test_bad_input_is_named() -> None:
    with pytest.raises(ConfigError, match="gamma must lie in"):
        trajectory([[1.0], [0.0]], gamma=1.5)
    with pytest.raises(ConfigError, match="gamma"):
        trajectory([[1.0], [0.0]], gamma=float("nan"))
    with pytest.raises(ConfigError, match="num_generations"):
        return_to_go([[1.0]], gamma=1.0)
    with pytest.raises(UnknownNameError, match="Did you mean 'step'"):
        return_to_go([[1.0], [0.0]], gamma=1.0, baseline="stp")
    with pytest.raises(UnknownNameError, match="discount_weight"):
        return_to_go([[1.0], [0.0]], gamma=1.0, discount_weight="no")
    with pytest.raises(RewardError, match="trajectory 1, turn 0"):
        trajectory([[1.0], [float("inf")]], gamma=1.0)
    with pytest.raises(UnknownNameError, match="Did you mean 'return_to_go'"):
        ESTIMATORS["return_to_goo"]
