"""The clipped objective and the KL: hand-computed numbers, gradients, and TRL as the oracle."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from trajgym.errors import UnknownNameError
from trajgym.trainers.advantages import scale, trajectory
from trajgym.trainers.batch import make_batch, normalizer_value
from trajgym.trainers.loss import kl_terms, policy_loss
from trajgym.trainers.models import token_logprobs
from trajgym.types import Action, Observation, Step, Task, TokenStream, Trajectory


def scalar_loss(ratio: float, advantage: float, **kwargs: float) -> float:
    logp = torch.tensor([math.log(ratio)])
    return policy_loss(logp, torch.zeros(1), torch.tensor([advantage]), normalizer=1.0, **kwargs).loss.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain"),
    [
        (1.0, 2.0, 2.0),
        (1.5, 1.0, 1.28),  # clipped above: nothing more to gain
        (1.5, -1.0, -1.5),  # a bad action that became likelier is not protected by the clip
        (0.5, 1.0, 0.5),
        (0.5, -1.0, -0.8),  # clipped below
    ],
)
def test_clip_for_both_signs_of_the_advantage(ratio: float, advantage: float, gain: float) -> None:
    assert scalar_loss(ratio, advantage) == pytest.approx(-gain)


def test_clipped_tokens_have_no_gradient_and_are_counted() -> None:
    logp = torch.tensor([math.log(1.5), 0.0, math.log(0.5)], requires_grad=True)
    parts = policy_loss(logp, torch.zeros(3), torch.tensor([1.0, 1.0, -1.0]), normalizer=2.0)
    parts.loss.backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == [0.0, -0.5, 0.0]
    assert int(parts.ratio_clipped) == 2


def test_weights_and_normalizer() -> None:
    logp, advantages = torch.zeros(2), torch.tensor([1.0, 3.0])
    parts = policy_loss(logp, logp, advantages, normalizer=4.0, weights=torch.tensor([0.5, 2.0]))
    assert parts.loss.item() == pytest.approx(-(0.5 + 6.0) / 4.0)


def test_kl_is_zero_for_equal_policies_and_positive_otherwise() -> None:
    logp = torch.randn(50, generator=torch.Generator().manual_seed(0))
    for form in ("k2", "k3", "k3_ratio"):
        assert kl_terms(logp, logp, form).abs().max() == 0.0
        assert (kl_terms(logp, logp + 0.3, form) > 0).all()
    with pytest.raises(UnknownNameError, match="kl_form"):
        kl_terms(logp, logp, "k1")


@pytest.mark.parametrize("form", ["k2", "k3_ratio"])
def test_the_expected_gradient_of_the_penalty_is_that_of_the_kl(form: str) -> None:
    """Exact expectation over a distribution with five outcomes."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
    ref = torch.log_softmax(torch.randn(5, generator=generator, dtype=torch.float64), -1)
    logp = torch.log_softmax(logits, -1)
    (logp.exp() * (logp - ref)).sum().backward()
    assert logits.grad is not None
    truth = logits.grad.clone()

    def expected(kind: str) -> Tensor:
        logits.grad = None
        lp = torch.log_softmax(logits, -1)
        # The sampling probabilities are constants: each outcome's penalty is differentiated as the trainer does it.
        (lp.detach().exp() * kl_terms(lp, ref, kind)).sum().backward()
        assert logits.grad is not None
        return logits.grad.clone()

    torch.testing.assert_close(expected(form), truth, atol=1e-12, rtol=1e-9)
    assert not torch.allclose(expected("k3"), truth, atol=1e-3)  # why plain k3 is not the default


def tiny_llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).double().eval()


def one_turn(prompt: list[int], completion: list[int], reward: float) -> Trajectory:
    ids = (*prompt, *completion)
    mask = (0,) * len(prompt) + (1,) * len(completion)
    turns = (-1,) * len(prompt) + (0,) * len(completion)
    row = TokenStream(ids, mask, turns, (0.0,) * len(ids))
    step = Step(Action(""), Observation(), reward=reward, terminated=True)
    return Trajectory(Task("t", "", ""), (), (step,), (row,))


def our_gradient(model: torch.nn.Module, group: list[Trajectory], z: str, how: str, constant: int) -> list[Tensor]:
    model.zero_grad()
    rewards = [t.rewards for t in group]
    advantages = scale([trajectory(rewards, gamma=1.0, baseline="mean")], how, groups_rewards=[rewards])[0]
    normalizer, weights = normalizer_value(z, group, constant=constant)
    batch = make_batch(group, advantages, normalizer=normalizer, row_weights=weights, pad_id=0, max_tokens=60)
    assert len(batch.micro) > 1
    for micro in batch.micro:
        logp, _ = token_logprobs(model, micro, 1.0)
        policy_loss(logp, logp.detach(), micro.advantages, normalizer=batch.normalizer, clip_high=0.2).loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def trl_gradient(
    model: torch.nn.Module, group: list[Trajectory], loss_type: str, how: str, constant: int, tmp: Path
) -> list[Tensor]:
    """TRL's own loss on the same tokens and rewards."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from trajgym.policies.tiny import build_tokenizer

    size = len(group)
    args = GRPOConfig(
        output_dir=str(tmp), per_device_train_batch_size=size, num_generations=size, beta=0.0, loss_type=loss_type,
        max_completion_length=constant, use_cpu=True, report_to=[], bf16=False, scale_rewards=how != "none",
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model,  # type: ignore[arg-type]
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "x"}] * size),
        processing_class=build_tokenizer(["x y z"], vocab_size=260),
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.eval()
    longest = max(sum(t.rows[0].mask) for t in group)
    width = max(len(t.rows[0].ids) - sum(t.rows[0].mask) for t in group)

    def padded(values: list[int], length: int, left: bool) -> list[int]:
        fill = [0] * (length - len(values))
        return fill + values if left else values + fill

    prompts, completions = [], []
    for t in group:
        n = len(t.rows[0].ids) - sum(t.rows[0].mask)
        prompts.append(list(t.rows[0].ids[:n]))
        completions.append(list(t.rows[0].ids[n:]))
    rewards = torch.tensor([t.total_reward for t in group], dtype=torch.float64)
    advantages = rewards - rewards.mean()
    if how == "group_std":
        advantages = advantages / (rewards.std() + 1e-4)
    inputs = {
        "prompt_ids": torch.tensor([padded(p, width, True) for p in prompts]),
        "prompt_mask": torch.tensor([padded([1] * len(p), width, True) for p in prompts]),
        "completion_ids": torch.tensor([padded(c, longest, False) for c in completions]),
        "completion_mask": torch.tensor([padded([1] * len(c), longest, False) for c in completions]),
        "advantages": advantages,
        "num_items_in_batch": torch.tensor(sum(map(len, completions))),
    }
    model.zero_grad()
    trainer._compute_loss(trainer.model, inputs).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("loss_type", "z", "how"),
    [("grpo", "sequence", "group_std"), ("dapo", "token", "group_std"), ("dr_grpo", "constant", "none")],
)
@pytest.mark.filterwarnings("ignore")
def test_same_gradient_as_trl(loss_type: str, z: str, how: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    draw = lambda n: torch.randint(3, 40, (n,), generator=generator).tolist()  # noqa: E731
    group = [one_turn(draw(p), draw(c), r) for p, c, r in [(5, 9, 1.0), (5, 4, 1.0), (5, 12, 0.0), (5, 7, 0.8)]]
    model = tiny_llama()
    ours = our_gradient(model, group, z, how, constant=16)
    theirs = trl_gradient(model, group, loss_type, how, 16, tmp_path)
    assert len(ours) == len(theirs) > 0
    flat_ours, flat_theirs = (torch.cat([g.flatten() for g in gradients]) for gradients in (ours, theirs))
    assert float((flat_ours - flat_theirs).norm() / flat_theirs.norm()) < 1e-6
