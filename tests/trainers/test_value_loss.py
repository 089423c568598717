"""Loss of a value head, and advantages on two levels, by hand and by enumeration."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from trajgym.errors import ConfigError, RewardError, TrainingError, UnknownNameError
from trajgym.trainers.value_loss import bilevel_gae, value_loss


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "gradient"),
    [
        (1.0, 1.0, 3.0, 2.0, -2.0),  # within the clip: half the squared error
        (1.5, 1.0, 3.0, 0.5 * 1.8**2, 0.0),  # moved 0.5 towards the target: held at 1.2, no gradient
        (0.5, 1.0, 3.0, 0.5 * 2.5**2, -2.5),  # moved away from the target: pulled back
        (4.0, 1.0, 1.3, 0.5 * 2.7**2, 2.7),  # went past the target
    ],
)
def test_the_clip_stops_only_what_moved_towards_the_target(
    value: float, old: float, target: float, loss: float, gradient: float
) -> None:
    values = torch.tensor([value], requires_grad=True)
    out = value_loss(values, torch.tensor([old]), torch.tensor([target]), normalizer=1.0, clip=0.2)
    out.backward()  # type: ignore[no-untyped-call]
    assert out.item() == pytest.approx(loss)
    assert values.grad is not None
    assert values.grad.item() == pytest.approx(gradient)


def test_without_a_clip_weights_and_normalizer() -> None:
    values, zero = torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3)
    plain = value_loss(values, zero, zero, normalizer=4.0, clip=None, weights=torch.tensor([1.0, 0.5, 0.0]))
    assert plain.item() == pytest.approx(0.5 * (1.0 + 2.0) / 4.0)
    parts = [value_loss(values[i : i + 1], zero[:1], zero[:1], normalizer=4.0) for i in range(3)]
    whole = value_loss(values, zero, zero, normalizer=4.0)
    assert torch.stack(parts).sum().item() == pytest.approx(whole.item())


def test_bad_input_of_the_value_loss() -> None:
    one = torch.ones(2)
    for normalizer in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="normalizer"):
            value_loss(one, one, one, normalizer=normalizer)
    for clip in (0.0, -0.1, math.nan, math.inf):
        with pytest.raises(ConfigError, match="clip"):
            value_loss(one, one, one, normalizer=1.0, clip=clip)
    with pytest.raises(TrainingError, match=r"returns at 1 of 2"):
        value_loss(one, one, torch.tensor([0.0, math.nan]), normalizer=1.0)
    with pytest.raises(TrainingError, match="old_values has shape"):
        value_loss(one, one[:, None], one, normalizer=1.0)


def two_levels(
    rewards: list[float], turn_values: list[float], token_values: list[list[float]], **options: Any
) -> list[list[float]]:
    """The function under test, with the values of each turn's tokens in a list of their own."""
    flat = [value for turn in token_values for value in turn]
    shares = {"gamma": 1.0, "lam_turn": 1.0, "lam_token": 1.0}
    return bilevel_gae([len(turn) for turn in token_values], rewards, turn_values, flat, **(shares | options))


def test_two_levels_by_hand() -> None:
    """The last turn is cut and bootstraps from 2; the weight of the second turn is γ."""
    options = {"gamma": 0.9, "lam_turn": 0.5, "lam_token": 0.8}
    values = [[1.0, 2.0, 1.5], [3.0, 2.5]]
    second = 1.0 + 0.9 * 2.0 - 3.0  # −0.2
    first = 0.5 + 0.9 * 3.0 - 1.0 + 0.9 * 0.5 * second  # 2.11
    last_of_second = second + 3.0 - 2.5  # 0.3
    last_of_first = first + 1.0 - 1.5  # 1.61
    middle = 1.5 - 2.0 + 0.8 * last_of_first
    expected = [
        [2.0 - 1.0 + 0.8 * middle, middle, last_of_first],
        [2.5 - 3.0 + 0.8 * last_of_second, last_of_second],
    ]
    dropped = two_levels([0.5, 1.0], [1.0, 3.0, 2.0], values, discount_weight="dropped", **options)
    assert [pytest.approx(turn) for turn in expected] == dropped
    exact = two_levels([0.5, 1.0], [1.0, 3.0, 2.0], values, **options)
    assert [pytest.approx(expected[0]), pytest.approx([0.9 * a for a in expected[1]])] == exact


def test_a_turn_valued_at_its_last_token_hands_that_token_its_own_advantage() -> None:
    advantages = two_levels([0.0, 1.0], [0.3, 0.6, 0.0], [[0.1, 0.3], [0.6]], lam_turn=0.9, lam_token=0.7)
    second = 1.0 - 0.6
    assert [turn[-1] for turn in advantages] == pytest.approx([0.6 - 0.3 + 0.9 * second, second])


def test_at_lambda_one_every_token_has_its_return_less_its_value() -> None:
    rng = random.Random(0)
    for gamma in (0.0, 0.7, 1.0):
        rewards = [rng.uniform(-1, 1) for _ in range(4)]
        turn_values = [rng.uniform(-1, 1) for _ in range(4)] + [0.0]
        token_values = [[rng.uniform(-1, 1) for _ in range(n)] for n in (3, 1, 0, 2)]
        advantages = two_levels(rewards, turn_values, token_values, gamma=gamma, discount_weight="dropped")
        for t, values in enumerate(token_values):
            to_go = sum(gamma ** (k - t) * rewards[k] for k in range(t, 4))
            assert advantages[t] == pytest.approx([to_go - value for value in values])


def test_one_token_per_turn_is_plain_gae() -> None:
    rewards, values = [0.1, -0.3, 0.8], [0.5, -0.2, 0.4, 0.0]
    advantages = two_levels(
        rewards, values, [[v] for v in values[:3]], gamma=0.9, lam_turn=0.6, lam_token=0.3, discount_weight="dropped"
    )
    deltas = [r + 0.9 * later - now for r, now, later in zip(rewards, values, values[1:], strict=False)]
    expected = [sum((0.9 * 0.6) ** (k - t) * deltas[k] for k in range(t, 3)) for t in range(3)]
    assert [turn[0] for turn in advantages] == pytest.approx(expected)


@pytest.mark.parametrize(("gamma", "discount_weight"), [(1.0, "exact"), (0.6, "exact"), (0.6, "dropped")])
def test_at_lambda_one_the_expected_gradient_is_that_of_the_objective(gamma: float, discount_weight: str) -> None:
    """Two turns of two binary tokens each, all sixteen dialogues, arbitrary values of every prefix."""
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    prefixes = {p: n for n, p in enumerate(p for k in range(4) for p in itertools.product((0, 1), repeat=k))}
    theta, rewards, values = draw(len(prefixes), 2).requires_grad_(), draw(2, 16).tolist(), draw(len(prefixes)).tolist()
    logp = torch.log_softmax(theta, -1)
    objective = surrogate = torch.zeros((), dtype=torch.float64)
    for number, tokens in enumerate(itertools.product((0, 1), repeat=4)):
        chosen = [logp[prefixes[tokens[:k]], tokens[k]] for k in range(4)]
        probability = torch.stack(chosen).sum().exp()
        paid = [rewards[0][number // 4], rewards[1][number]]  # the first turn is paid for its own tokens alone
        objective = objective + probability * (paid[0] + gamma * paid[1])
        before = [values[prefixes[tokens[:k]]] for k in range(4)]
        credit = two_levels(
            paid,
            [before[0], before[2], 0.0],
            [before[:2], before[2:]],
            gamma=gamma,
            discount_weight=discount_weight,
        )
        advantages = torch.tensor(credit, dtype=torch.float64).flatten()
        surrogate = surrogate + probability.detach() * (advantages * torch.stack(chosen)).sum()
    (truth,) = torch.autograd.grad(objective, theta, retain_graph=True)
    (ours,) = torch.autograd.grad(surrogate, theta)
    assert truth.norm() > 0.1
    assert torch.allclose(ours, truth, atol=1e-12, rtol=1e-9) == (discount_weight == "exact")


@pytest.mark.parametrize("name", ["gamma", "lam_turn", "lam_token"])
@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_shares_outside_zero_to_one_are_refused_by_name(name: str, share: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must lie"):
        two_levels([1.0], [0.0, 0.0], [[0.0]], **{name: share})


def test_an_unknown_discount_weight_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="discount_weight"):
        two_levels([1.0], [0.0, 0.0], [[0.0]], discount_weight="half")


@pytest.mark.parametrize(
    ("counts", "rewards", "turn_values", "token_values", "message"),
    [
        ([1], [math.nan], [0.0, 0.0], [0.0], r"rewards\[0\] is nan"),
        ([1], [1.0], [0.0], [0.0], "turn_values has 1 entries, but 2"),
        ([1], [1.0], [0.0, math.inf], [0.0], r"turn_values\[1\] is inf"),
        ([], [1.0], [0.0, 0.0], [], "token_counts has 0 entries, but 1"),
        ([-1], [1.0], [0.0, 0.0], [], "token_counts must be at least 0"),
        ([1, 2], [1.0, 1.0], [0.0] * 3, [0.0, 0.0], "token_values has 2 entries, but 3"),
        ([2], [1.0], [0.0, 0.0], [0.0, math.nan], r"token_values\[1\] is nan"),
    ],
)
def test_numbers_that_do_not_fit_are_named(
    counts: list[int], rewards: list[float], turn_values: list[float], token_values: list[float], message: str
) -> None:
    with pytest.raises(RewardError, match=message):
        bilevel_gae(counts, rewards, turn_values, token_values, 1.0, 1.0, 1.0)
