"""The policy's loss: numbers by hand, gradients by finite differences, and what is refused."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from trajgym.errors import ConfigError, TrainingError, UnknownNameError
from trajgym.trainers.kl import KL_FORMS
from trajgym.trainers.loss import LEVELS, OBJECTIVES, LossParts, policy_loss, sampler_weights


def one_token(ratio: float, advantage: float, **options: Any) -> tuple[LossParts, float]:
    """The parts, and the gradient with respect to log π."""
    logp = torch.tensor([math.log(ratio)], requires_grad=True)
    parts = policy_loss(logp, torch.zeros(1), torch.tensor([advantage]), normalizer=1.0, **options)
    (gradient,) = torch.autograd.grad(parts.loss, logp)
    return parts, gradient.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "slope", "low", "high"),
    [
        (1.0, 2.0, 2.0, 2.0, 0, 0),
        (1.5, 1.0, 1.28, 0.0, 0, 1),  # nothing more to gain
        (1.5, -1.0, -1.5, -1.5, 0, 0),  # a bad action that became likelier is not protected by the clip
        (0.5, 1.0, 0.5, 0.5, 0, 0),
        (0.5, -1.0, -0.8, 0.0, 1, 0),
        (9.0, 0.0, 0.0, 0.0, 0, 0),
    ],
)
def test_clip_for_both_signs_of_the_advantage(
    ratio: float, advantage: float, gain: float, slope: float, low: int, high: int
) -> None:
    parts, gradient = one_token(ratio, advantage)
    assert (parts.loss.item(), gradient) == pytest.approx((-gain, -slope))
    assert (int(parts.clipped_low), int(parts.clipped_high), int(parts.ratio_clipped)) == (low, high, low + high)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "slope", "high"),
    [
        (2.9, -1.0, -2.9, -2.9, 0),
        (5.0, -1.0, -3.0, 0.0, 1),  # the loss of one bad token ends at c times its advantage
        (5.0, 1.0, 1.28, 0.0, 1),
        (1.1, 1.0, 1.1, 1.1, 0),
    ],
)
def test_dual_clip_bounds_the_loss_of_bad_tokens(
    ratio: float, advantage: float, gain: float, slope: float, high: int
) -> None:
    parts, gradient = one_token(ratio, advantage, objective="dual_clip", dual_clip=3.0)
    assert (parts.loss.item(), gradient) == pytest.approx((-gain, -slope))
    assert int(parts.clipped_high) == high


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(("ratio", "weight", "high"), [(0.1, 0.1, 0), (1.0, 1.0, 0), (1.9, 1.9, 0), (4.0, 2.0, 1)])
def test_cispo_caps_the_weight_and_keeps_every_gradient(
    advantage: float, ratio: float, weight: float, high: int
) -> None:
    parts, gradient = one_token(ratio, advantage, objective="cispo", cispo_cap=2.0)
    assert gradient == pytest.approx(-weight * advantage)
    assert parts.loss.item() == pytest.approx(-weight * advantage * math.log(ratio))
    assert (int(parts.clipped_low), int(parts.clipped_high)) == (0, high)


def test_weights_normalizer_and_range_of_the_ratio() -> None:
    logp, advantages = torch.tensor([math.log(1.1), math.log(0.9)]), torch.tensor([1.0, 3.0])
    parts = policy_loss(logp, torch.zeros(2), advantages, normalizer=4.0, weights=torch.tensor([0.5, 2.0]))
    assert parts.loss.item() == pytest.approx(-(0.5 * 1.1 + 2.0 * 2.7) / 4.0)
    assert (parts.ratio_min.item(), parts.ratio_max.item()) == pytest.approx((0.9, 1.1))
    assert parts.kl.item() == 0.0


def test_no_token_at_all_costs_nothing() -> None:
    nothing, spans = torch.zeros(0), torch.zeros(0, dtype=torch.long)
    for level in LEVELS:
        parts = policy_loss(nothing, nothing, nothing, normalizer=1.0, level=level, spans=spans)
        assert (parts.loss.item(), parts.ratio_min.item(), parts.ratio_max.item()) == (0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Tokens:
    """Ten tokens of two trajectories with two turns each, off-policy, good and bad ones in the same turn."""

    logp: list[float]
    old: list[float]
    ref: list[float]
    advantages: list[float]
    weights: list[float]
    kl_weights: list[float]
    turns: tuple[int, ...] = (0, 0, 0, 1, 1, 2, 2, 2, 3, 3)
    trajectories: tuple[int, ...] = (0, 0, 0, 0, 0, 1, 1, 1, 1, 1)

    def spans(self, level: str) -> tuple[int, ...]:
        return {"token": tuple(range(10)), "turn": self.turns, "trajectory": self.trajectories}[level]


def tokens(seed: int) -> Tokens:
    rng = random.Random(seed)

    def draw(low: float, high: float) -> list[float]:
        return [rng.uniform(low, high) for _ in range(10)]

    logp = draw(-2.0, -0.1)
    return Tokens(
        logp,
        old=[lp - rng.uniform(-1.0, 1.0) - (0.6 if i < 5 else -0.6) for i, lp in enumerate(logp)],
        ref=draw(-2.0, -0.1),
        advantages=draw(-2.0, 2.0),
        weights=draw(0.2, 2.0),
        kl_weights=draw(0.2, 2.0),
    )


OPTIONS: dict[str, float] = {
    "clip_low": 0.2,
    "clip_high": 0.28,
    "cispo_cap": 1.1,
    "dual_clip": 1.4,
    "kl_coef": 0.7,
    "normalizer": 3.0,
}


def by_hand(logp: list[float], data: Tokens, level: str, objective: str, form: str) -> float:
    """The loss in plain Python. What carries no gradient is computed from ``data.logp``, the rest from ``logp``."""
    spans, total = data.spans(level), 0.0
    low, high = 1 - OPTIONS["clip_low"], 1 + OPTIONS["clip_high"]
    for i, lp in enumerate(logp):
        span = [j for j in range(10) if spans[j] == spans[i]]
        mean = sum(data.logp[j] - data.old[j] for j in span) / len(span)
        frozen = math.exp(mean)
        ratio = frozen * math.exp(lp - data.logp[i])
        a = data.advantages[i]
        if objective == "cispo":
            gain = min(frozen, OPTIONS["cispo_cap"]) * a * lp
        else:
            gain = min(ratio * a, min(max(ratio, low), high) * a)
            if objective == "dual_clip" and a < 0:
                gain = max(gain, OPTIONS["dual_clip"] * a)
        d = data.ref[i] - lp
        k3 = math.exp(d) - d - 1
        kl = {"k2": d * d / 2, "k3": k3, "k3_ratio": math.exp(lp - data.old[i]) * k3, "k1_in_reward": 0.0}[form]
        total += -data.weights[i] * gain + OPTIONS["kl_coef"] * data.kl_weights[i] * kl
    return total / OPTIONS["normalizer"]


def ours(logp: Tensor, data: Tokens, level: str, objective: str, form: str) -> LossParts:
    def as_tensor(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return policy_loss(
        logp,
        as_tensor(data.old),
        as_tensor(data.advantages),
        level=level,
        spans=None if level == "token" else torch.tensor(data.spans(level)),
        objective=objective,
        weights=as_tensor(data.weights),
        ref_logp=as_tensor(data.ref),
        kl_form=form,
        kl_weights=as_tensor(data.kl_weights),
        **OPTIONS,
    )


@pytest.mark.parametrize(("level", "objective", "form"), [*itertools.product(LEVELS, OBJECTIVES, KL_FORMS)])
def test_value_and_gradient_of_every_combination(level: str, objective: str, form: str) -> None:
    clipped = 0
    for seed in range(3):
        data = tokens(seed)
        logp = torch.tensor(data.logp, dtype=torch.float64, requires_grad=True)
        parts = ours(logp, data, level, objective, form)
        clipped += int(parts.ratio_clipped)
        assert parts.loss.item() == pytest.approx(by_hand(data.logp, data, level, objective, form), rel=1e-12)
        (gradient,) = torch.autograd.grad(parts.loss, logp)
        step = 1e-6
        for i in range(10):
            around = [by_hand(moved(data.logp, i, s), data, level, objective, form) for s in (step, -step)]
            assert gradient[i].item() == pytest.approx((around[0] - around[1]) / (2 * step), rel=1e-6, abs=1e-8)
    assert 0 < clipped < 30


def moved(values: list[float], place: int, by: float) -> list[float]:
    return [v + by if i == place else v for i, v in enumerate(values)]


@pytest.mark.parametrize("level", ["turn", "trajectory"])
def test_a_ratio_of_many_tokens_keeps_the_credit_of_single_turns(level: str) -> None:
    """One good turn, one bad one: a ratio with the gradient of the whole span's mean would give both nothing."""
    logp = torch.tensor([-1.0, -0.5, -2.0, -0.1], requires_grad=True)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    spans = torch.tensor([0, 0, 1, 1]) if level == "turn" else torch.zeros(4, dtype=torch.long)
    parts = policy_loss(logp, logp.detach(), advantages, normalizer=1.0, level=level, spans=spans)
    (gradient,) = torch.autograd.grad(parts.loss, logp)
    assert gradient.tolist() == (-advantages).tolist()
    mean = (logp - logp.detach()).mean().exp()
    (averaged,) = torch.autograd.grad(-(mean * advantages).sum(), logp)
    assert averaged.abs().max() < 1e-7


def test_on_policy_every_level_and_objective_is_the_policy_gradient() -> None:
    data = tokens(0)
    on_policy = replace(data, old=data.logp)
    for level, objective in itertools.product(LEVELS, OBJECTIVES):
        logp = torch.tensor(data.logp, dtype=torch.float64, requires_grad=True)
        parts = ours(logp, on_policy, level, objective, "k1_in_reward")
        (gradient,) = torch.autograd.grad(parts.loss, logp)
        expected = [-a * w / OPTIONS["normalizer"] for a, w in zip(data.advantages, data.weights, strict=True)]
        assert gradient.tolist() == pytest.approx(expected, rel=1e-12)
        assert (parts.ratio_min.item(), parts.ratio_max.item(), int(parts.ratio_clipped)) == (1.0, 1.0, 0)


def test_the_kl_is_reported_for_every_form() -> None:
    data = tokens(1)
    d = [r - lp for r, lp in zip(data.ref, data.logp, strict=True)]
    k3 = sum(math.exp(x) - x - 1 for x in d)
    for form in KL_FORMS:
        parts = ours(torch.tensor(data.logp, dtype=torch.float64), data, "token", "clip", form)
        assert parts.kl.item() == pytest.approx(k3)


def test_the_kl_needs_a_reference() -> None:
    one = torch.zeros(1)
    with pytest.raises(ConfigError, match="ref_logp"):
        policy_loss(one, one, one, normalizer=1.0, kl_coef=0.1)
    assert policy_loss(one, one, one, normalizer=1.0, kl_coef=0.1, kl_form="k1_in_reward").kl.item() == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["logp", "old_logp", "advantages", "weights", "ref_logp", "kl_weights"])
def test_an_input_that_is_not_finite_is_named_and_counted(name: str, bad: float) -> None:
    inputs: dict[str, Any] = {
        n: torch.zeros(3) for n in ("logp", "old_logp", "advantages", "weights", "ref_logp", "kl_weights")
    }
    inputs[name] = torch.tensor([0.0, bad, bad])
    with pytest.raises(TrainingError, match=f"{name} at 2 of 3 tokens"):
        policy_loss(**inputs, normalizer=1.0)


@pytest.mark.parametrize("name", ["old_logp", "advantages", "weights", "ref_logp", "kl_weights", "spans"])
def test_an_input_of_another_shape_is_named(name: str) -> None:
    inputs: dict[str, Any] = {
        n: torch.zeros(3) for n in ("logp", "old_logp", "advantages", "weights", "ref_logp", "kl_weights")
    }
    inputs |= {"spans": torch.zeros(3, dtype=torch.long), name: torch.zeros(3, 1)}
    with pytest.raises(TrainingError, match=f"{name} has shape"):
        policy_loss(**inputs, normalizer=1.0)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_ratio_too_large_for_a_number_is_an_error_and_not_nan(objective: str) -> None:
    far = torch.tensor([-200.0])
    for advantage in (1.0, 0.0, -1.0):
        with pytest.raises(TrainingError, match="ratio at 1 of 1"):
            policy_loss(torch.zeros(1), far, torch.tensor([advantage]), normalizer=1.0, objective=objective)
    with pytest.raises(TrainingError, match="kl at 1 of 1"):
        policy_loss(far, far, torch.ones(1), normalizer=1.0, ref_logp=torch.zeros(1), kl_coef=0.1)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("normalizer", (0.0, -1.0, math.nan, math.inf)),
        ("clip_low", (-0.1, 1.0, math.nan)),
        ("clip_high", (-0.1, math.nan, math.inf)),
        ("cispo_cap", (0.99, 0.0, math.nan, math.inf)),
        ("dual_clip", (1.0, 0.5, math.nan, math.inf)),
        ("kl_coef", (-0.1, math.nan, math.inf)),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(name: str, values: tuple[float, ...]) -> None:
    for value in values:
        options: dict[str, Any] = {"normalizer": 1.0} | {name: value}
        with pytest.raises(ConfigError, match=f"^{name} must be"):
            policy_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), **options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"level": "sequence"}, "undoes the credit"),
        ({"objective": "ppo"}, "'clip'"),
        ({"kl_form": "k1"}, "expected gradient of zero"),
        ({"kl_form": "k4"}, "Unknown kl_form"),
    ],
)
def test_names_that_are_not_offered_say_why(options: dict[str, str], reason: str) -> None:
    one = torch.zeros(1)
    with pytest.raises(UnknownNameError, match=reason):
        policy_loss(one, one, one, normalizer=1.0, **options)  # type: ignore[arg-type]


def test_spans_are_needed_and_must_be_numbers_of_spans() -> None:
    one = torch.zeros(2)
    with pytest.raises(ConfigError, match="needs spans"):
        policy_loss(one, one, one, normalizer=1.0, level="turn")
    for spans in (torch.tensor([0, -1]), torch.tensor([0.0, 1.0])):
        with pytest.raises(TrainingError, match="integers from 0"):
            policy_loss(one, one, one, normalizer=1.0, level="turn", spans=spans)


def test_sampler_weights_are_capped_ratios_without_gradient() -> None:
    old = torch.tensor([-1.0, -1.0, -1.0, -100.0, -1.0], requires_grad=True)
    weights = sampler_weights(old, torch.tensor([-1.0, -1.5, -3.0, -1.0, -200.0]))
    assert weights.tolist() == pytest.approx([1.0, math.exp(0.5), 2.0, math.exp(-99.0), 2.0])
    assert not weights.requires_grad
    assert sampler_weights(old, old - 3.0, cap=1.0).tolist() == [1.0] * 5


def test_bad_input_of_the_sampler_weights() -> None:
    one = torch.zeros(2)
    for cap in (0.9, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="cap"):
            sampler_weights(one, one, cap=cap)
    with pytest.raises(TrainingError, match="sampler_logp at 1 of 2"):
        sampler_weights(one, torch.tensor([0.0, -math.inf]))
    with pytest.raises(TrainingError, match="sampler_logp has shape"):
        sampler_weights(one, torch.zeros(1))
