"""TRL's own loss as the oracle: equal gradients on equal tensors."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from trajgym.trainers.advantages import scale, trajectory
from trajgym.trainers.batch import MicroBatch, make_batch, normalizer_value
from trajgym.trainers.loss import policy_loss, sampler_weights
from trajgym.trainers.models import token_logprobs
from trajgym.types import Action, Observation, Step, Task, TokenStream, Trajectory

pytestmark = pytest.mark.filterwarnings("ignore")

LONGEST = 16  # tokens a completion counts as, for the constant normalizer
PROMPT = 5


@dataclass(frozen=True)
class Variant:
    """One loss in both libraries' words.

    ``trl`` and ``trl_args`` are set on the trainer and on its arguments. ``drift`` is how far π_old lies from π, in
    nats; ``per_turn`` gives each turn its own advantage instead of the group's.
    """

    name: str
    trl: dict[str, Any]
    normalizer: str
    ours: dict[str, Any] = field(default_factory=dict)
    trl_args: dict[str, Any] = field(default_factory=dict)
    drift: float = 0.5
    scaling: str = "group_std"
    per_turn: bool = False
    sampler: bool = False


SEQUENCE: dict[str, Any] = {"importance_sampling_level": "sequence"}
CISPO: dict[str, Any] = {"objective": "cispo", "cispo_cap": 1.2}
K3: dict[str, Any] = {"kl_coef": 0.3, "kl_form": "k3"}
K3_RATIO: dict[str, Any] = {"kl_coef": 0.3, "kl_form": "k3_ratio"}
VARIANTS = [
    Variant("grpo", {"loss_type": "grpo"}, "sequence", drift=0.0),
    Variant("dapo", {"loss_type": "dapo"}, "token", drift=0.0),
    Variant("dr_grpo", {"loss_type": "dr_grpo"}, "constant", drift=0.0, scaling="none"),
    Variant("clip", {"loss_type": "grpo"}, "sequence"),
    Variant("clip_higher", {"loss_type": "dapo", "epsilon_high": 0.28}, "token", {"clip_high": 0.28}),
    Variant("per_turn", {"loss_type": "dr_grpo"}, "constant", per_turn=True),
    Variant("cispo", {"loss_type": "cispo", "epsilon_high": 1.2}, "token", CISPO),
    Variant("cispo_per_turn", {"loss_type": "cispo", "epsilon_high": 1.2}, "token", CISPO, per_turn=True),
    Variant("delta", {"loss_type": "dapo"}, "token", {"objective": "dual_clip", "dual_clip": 1.4}, {"delta": 1.4}),
    Variant("gspo", {"loss_type": "grpo"} | SEQUENCE, "sequence", {"level": "trajectory"}, drift=0.9),
    Variant("gspo_token", {"loss_type": "dapo"} | SEQUENCE, "token", {"level": "trajectory"}, drift=0.9),
    Variant("k3", {"loss_type": "dapo", "beta": 0.3}, "token", K3, {"use_bias_correction_kl": False}),
    Variant("k3_mean", {"loss_type": "grpo", "beta": 0.3}, "sequence", K3, {"use_bias_correction_kl": False}),
    Variant("k3_ratio", {"loss_type": "dapo", "beta": 0.3}, "token", K3_RATIO, {"use_bias_correction_kl": True}),
    Variant(
        "k3_ratio_mean", {"loss_type": "grpo", "beta": 0.3}, "sequence", K3_RATIO, {"use_bias_correction_kl": True}
    ),
    Variant("sampler", {"loss_type": "dapo", "use_vllm": True}, "token", sampler=True),
]


def episode(spoken: list[tuple[int, int]], reward: float, generator: torch.Generator) -> Trajectory:
    """A prompt, then (sampled tokens, observation tokens) turn by turn, all in one row; the last turn is paid."""
    turns = [-1] * PROMPT
    for t, (said, seen) in enumerate(spoken):
        turns += [t] * said + [-1] * seen
    ids = torch.randint(3, 40, (len(turns),), generator=generator).tolist()
    row = TokenStream(tuple(ids), tuple(int(t >= 0) for t in turns), tuple(turns), (0.0,) * len(ids))
    last = len(spoken) - 1
    steps = tuple(Step(Action(""), Observation(), reward=reward if t == last else 0.0) for t in range(len(spoken)))
    return Trajectory(Task("t", "", ""), (), steps, (row,))


@pytest.fixture(scope="module")
def group() -> list[Trajectory]:
    generator = torch.Generator().manual_seed(3)
    shapes = [[(4, 2), (5, 0)], [(4, 0)], [(3, 1), (2, 3), (4, 0)], [(2, 2), (5, 0)]]
    return [episode(shape, r, generator) for shape, r in zip(shapes, (1.0, 1.0, 0.0, 0.8), strict=True)]


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).double().eval()


@pytest.fixture(scope="module")
def trl_trainer(model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from trajgym.policies.tiny import build_tokenizer

    args = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")), per_device_train_batch_size=4, num_generations=4, beta=0.0,
        max_completion_length=LONGEST, use_cpu=True, report_to=[], bf16=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model,  # type: ignore[arg-type]
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "x"}] * 4),
        processing_class=build_tokenizer(["x y z"], vocab_size=260),
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.eval()
    return trainer


def noise(size: float, phase: float, episode: int, token: int) -> float:
    """How far another policy's log-probability lies from π's, at the n-th sampled token of an episode."""
    return size * math.sin(phase + 7.0 * episode + 3.0 * token)


def credit(variant: Variant, group: list[Trajectory]) -> list[list[float]]:
    if variant.per_turn:
        return [[math.cos(5.0 * i + 2.0 * t) for t in range(len(e.steps))] for i, e in enumerate(group)]
    rewards = [e.rewards for e in group]
    advantages = trajectory(rewards, gamma=1.0, baseline="mean")
    return scale([advantages], variant.scaling, groups_rewards=[rewards])[0]


def our_gradient(model: torch.nn.Module, group: list[Trajectory], variant: Variant) -> Tensor:
    model.zero_grad()
    z, weights = normalizer_value(variant.normalizer, group, constant=LONGEST)
    batch = make_batch(group, credit(variant, group), normalizer=z, row_weights=weights, pad_id=0, max_tokens=40)
    assert len(batch.micro) > 1
    for micro in batch.micro:
        logp, _ = token_logprobs(model, micro, 1.0)
        old = logp.detach() + others(micro, variant.drift, 1.0)
        policy_loss(
            logp,
            old,
            micro.advantages.double(),
            normalizer=batch.normalizer,
            spans=micro.trajectories,
            ref_logp=logp.detach() + others(micro, 0.7, 2.0),
            weights=sampler_weights(old, old + others(micro, 1.5, 3.0)) if variant.sampler else None,
            kl_weights=micro.row_weights.double(),
            **({"clip_high": 0.2} | variant.ours),
        ).loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def others(micro: MicroBatch, size: float, phase: float) -> Tensor:
    counted: Counter[int] = Counter()
    out = []
    for i, _ in micro.places:
        out.append(noise(size, phase, i, counted[i]))
        counted[i] += 1
    return torch.tensor(out, dtype=torch.float64)


def trl_inputs(trainer: Any, group: list[Trajectory], variant: Variant) -> dict[str, Tensor]:
    rows = [e.rows[0] for e in group]
    width = max(len(row.ids) for row in rows) - PROMPT
    completions, present, mine = (torch.zeros(len(rows), width, dtype=torch.long) for _ in range(3))
    advantages, drift, gap, far = (torch.zeros(len(rows), width, dtype=torch.float64) for _ in range(4))
    for i, (row, turns) in enumerate(zip(rows, credit(variant, group), strict=True)):
        n = len(row.ids) - PROMPT
        completions[i, :n] = torch.tensor(row.ids[PROMPT:])
        present[i, :n] = 1
        mine[i, :n] = torch.tensor(row.mask[PROMPT:])
        for k, p in enumerate(mine[i].nonzero().flatten().tolist()):
            advantages[i, p] = turns[row.turns[PROMPT + p]]
            drift[i, p], gap[i, p] = noise(variant.drift, 1.0, i, k), noise(1.5, 3.0, i, k)
            far[i, p] = noise(0.7, 2.0, i, k)
    prompts = torch.tensor([row.ids[:PROMPT] for row in rows])
    ones = torch.ones_like(prompts)
    with torch.no_grad():
        logp, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model, torch.cat([prompts, completions], 1), torch.cat([ones, present], 1), width
        )
    if not variant.per_turn:
        advantages = torch.tensor([turns[0] for turns in credit(variant, group)], dtype=torch.float64)
    return {
        "prompt_ids": prompts,
        "prompt_mask": ones,
        "completion_ids": completions,
        "completion_mask": present,
        "tool_mask": mine,
        "advantages": advantages,
        "num_items_in_batch": mine.sum(),
        "old_per_token_logps": logp + drift,
        "ref_per_token_logps": logp + far,
        "importance_sampling_ratio": torch.exp(-gap).clamp(max=2.0),
    }


def trl_gradient(trainer: Any, inputs: dict[str, Tensor]) -> Tensor:
    trainer.model.zero_grad()
    trainer._compute_loss(trainer.model, inputs).backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


def set_up(trainer: Any, variant: Variant, patch: pytest.MonkeyPatch) -> None:
    for name, value in ({"epsilon_high": 0.2} | variant.trl).items():
        assert hasattr(trainer, name)
        patch.setattr(trainer, name, value)
    for name, value in variant.trl_args.items():
        assert hasattr(trainer.args, name)
        patch.setattr(trainer.args, name, value)


@pytest.mark.parametrize("variant", VARIANTS, ids=[v.name for v in VARIANTS])
def test_same_gradient_as_trl(
    variant: Variant, trl_trainer: Any, group: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(trl_trainer, variant, monkeypatch)
    theirs = trl_gradient(trl_trainer, trl_inputs(trl_trainer, group, variant))
    mine = our_gradient(trl_trainer.model, group, variant)
    assert float((mine - theirs).norm() / theirs.norm()) < 1e-6


def test_the_variants_are_not_all_the_same_loss(trl_trainer: Any, group: list[Trajectory]) -> None:
    """The bounds act on these tensors: each variant differs from its plain relative."""
    gradients = {v.name: our_gradient(trl_trainer.model, group, v) for v in VARIANTS}
    pairs = [("grpo", "clip"), ("dapo", "clip_higher"), ("clip_higher", "delta"), ("clip_higher", "k3")]
    pairs += [("clip", "gspo"), ("k3", "k3_ratio"), ("clip_higher", "sampler"), ("clip", "k3_mean"), ("dapo", "cispo")]
    for one, other in pairs:
        assert (gradients[one] - gradients[other]).norm() > 1e-3 * gradients[one].norm(), (one, other)


def test_where_turns_differ_the_sequence_ratio_of_trl_loses_their_credit(
    trl_trainer: Any, group: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On-policy every ratio is 1 and the policy gradient is the token-level one; TRL's sequence level is not."""
    plain = Variant("token", {"loss_type": "dapo"}, "token", drift=0.0, per_turn=True)
    long = Variant("gspo", {"loss_type": "dapo"} | SEQUENCE, "token", {"level": "trajectory"}, drift=0.0, per_turn=True)
    set_up(trl_trainer, plain, monkeypatch)
    truth = trl_gradient(trl_trainer, trl_inputs(trl_trainer, group, plain))
    set_up(trl_trainer, long, monkeypatch)
    theirs = trl_gradient(trl_trainer, trl_inputs(trl_trainer, group, long))
    mine = our_gradient(trl_trainer.model, group, long)
    assert (mine - truth).norm() < 1e-6 * truth.norm()
    assert (theirs - truth).norm() > 0.1 * truth.norm()
