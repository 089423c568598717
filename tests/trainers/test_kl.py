"""Forms of the KL, by exact expectation over a distribution with five outcomes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trajgym.errors import ConfigError, RewardError, UnknownNameError
from trajgym.trainers.kl import KL_FORMS, kl_in_reward, kl_terms


def logits(seed: int) -> Tensor:
    return torch.randn(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


THETA, REF, OLD = logits(1), torch.log_softmax(logits(2), -1), torch.log_softmax(logits(3), -1)


def gradient_of_kl(*, reverse: bool = True) -> Tensor:
    """∇KL(π‖π_ref), or ∇KL(π_ref‖π)."""
    theta = THETA.clone().requires_grad_()
    logp = torch.log_softmax(theta, -1)
    kl = (logp.exp() * (logp - REF)).sum() if reverse else (REF.exp() * (REF - logp)).sum()
    (gradient,) = torch.autograd.grad(kl, theta)
    return gradient


def expected_gradient(form: str, *, old: Tensor | None = None) -> Tensor:
    """Expectation over y ~ π_old of the gradient that the loss takes at y; π_old = π when left out."""
    theta = THETA.clone().requires_grad_()
    logp = torch.log_softmax(theta, -1)
    sampled_from = logp.detach() if old is None else old
    terms = logp - REF if form == "k1" else kl_terms(logp, REF, form, ratio=(logp - sampled_from).exp())
    (gradient,) = torch.autograd.grad((sampled_from.exp() * terms).sum(), theta)
    return gradient


@pytest.mark.parametrize(("form", "old"), [("k2", None), ("k3_ratio", None), ("k3_ratio", OLD)])
def test_k2_and_k3_ratio_have_the_gradient_of_the_kl(form: str, old: Tensor | None) -> None:
    torch.testing.assert_close(expected_gradient(form, old=old), gradient_of_kl(), atol=1e-12, rtol=1e-9)


def test_off_policy_only_the_ratio_keeps_the_gradient_right() -> None:
    assert not torch.allclose(expected_gradient("k2", old=OLD), gradient_of_kl(), atol=1e-3)


def test_plain_k3_has_the_gradient_of_the_other_kl() -> None:
    torch.testing.assert_close(expected_gradient("k3"), gradient_of_kl(reverse=False), atol=1e-12, rtol=1e-9)
    assert not torch.allclose(expected_gradient("k3"), gradient_of_kl(), atol=1e-3)


def test_k1_as_a_loss_does_nothing_and_is_refused() -> None:
    assert expected_gradient("k1").abs().max() < 1e-12
    assert gradient_of_kl().abs().max() > 0.1
    with pytest.raises(UnknownNameError, match="expected gradient of zero") as caught:
        kl_terms(THETA, REF, "k1")
    assert "k1_in_reward" in str(caught.value)
    with pytest.raises(UnknownNameError, match="kl_form 'k9'"):
        kl_terms(THETA, REF, "k9")


def test_k1_in_the_reward_has_the_gradient_of_reward_less_kl() -> None:
    beta, rewards = 0.3, [0.1, -0.4, 1.0, 0.0, 0.7]
    theta = THETA.clone().requires_grad_()
    logp = torch.log_softmax(theta, -1)
    objective = (logp.exp() * (torch.tensor(rewards) - beta * (logp - REF))).sum()
    (truth,) = torch.autograd.grad(objective, theta, retain_graph=True)
    gaps = (logp.detach() - REF).tolist()
    paid = [kl_in_reward([reward], [gap], beta)[0] for reward, gap in zip(rewards, gaps, strict=True)]
    (score,) = torch.autograd.grad((logp.detach().exp() * torch.tensor(paid, dtype=torch.float64) * logp).sum(), theta)
    torch.testing.assert_close(score, truth, atol=1e-7, rtol=1e-7)
    assert kl_terms(logp, REF, "k1_in_reward").tolist() == [0.0] * 5


@pytest.mark.parametrize("form", [form for form in KL_FORMS if form != "k1_in_reward"])
def test_equal_policies_have_no_kl_and_different_ones_a_positive_one(form: str) -> None:
    logp = logits(4)
    assert kl_terms(logp, logp, form).abs().max() == 0.0
    assert (kl_terms(logp, logp + 0.3, form) > 0).all()
    assert (kl_terms(logp, logp - 0.3, form) > 0).all()


def test_the_kl_of_a_turn_is_taken_from_that_turns_reward() -> None:
    assert kl_in_reward([1.0, 2.0, 3.0], [0.25, 0.0, 0.5], 0.1) == pytest.approx([1.0 - 0.025, 2.0, 3.0 - 0.05])


def test_bad_input_of_the_kl_in_the_reward() -> None:
    for rewards, kl in [([0.0, math.nan], [0.0, 0.0]), ([0.0, 0.0], [0.0, math.inf])]:
        with pytest.raises(RewardError, match="Turn 1 has the reward"):
            kl_in_reward(rewards, kl, 0.1)
    with pytest.raises(RewardError, match="2 rewards, but the KL of 1"):
        kl_in_reward([0.0, 1.0], [0.0], 0.1)
    for beta in (-0.1, math.nan, math.inf):
        with pytest.raises(ConfigError, match="kl_coef"):
            kl_in_reward([0.0], [0.0], beta)
