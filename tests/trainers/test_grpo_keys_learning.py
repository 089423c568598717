"""Every option of credit, loss, value model and adapters has an effect: one row for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import trajgym  # noqa: F401  # registers the environments
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.grpo import GRPOTrainer
from trajgym.trainers.learner import Learner
from trajgym.types import Action, Group, Observation, Step, Task, TokenStream, Trajectory

pytestmark = pytest.mark.usefixtures("frozen")

TWICE = {"env": "TestTwice-v0", "max_episode_tokens": 48}
"""Two turns, so that it matters which of them earned something."""
OFF = {"minibatches": 4, "learning_rate": 2e-2}
"""Steps on what an older policy has played, so that ratios are something else than 1."""
PPO = {"algorithm": "ppo", "updates": 2}
ADAPTED = {"use_lora": True}

# Options that decide what the weights become.
LEARNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "advantage_scale": ("group_std", {}),
    "baseline": ("none", {}),
    "cispo_cap": (1.0, OFF | {"objective": "cispo"}),
    "clip_range": (0.01, OFF),
    "clip_range_high": (0.01, OFF),
    "discount_weight": ("dropped", TWICE | {"gamma": 0.5}),
    "dual_clip": (1.1, OFF | {"objective": "dual_clip"}),
    "estimator": ("trajectory", TWICE),
    "estimator_options": ({"lam": 0.0}, TWICE | PPO),
    "gamma": (0.5, TWICE),
    "importance": ("trajectory", OFF),
    "kl_coef": (0.5, OFF),
    "kl_form": ("k2", OFF | {"kl_coef": 0.5}),
    "learning_rate": (1e-3, {}),
    "lora_alpha": (64, ADAPTED),
    "lora_rank": (2, ADAPTED),
    "lora_targets": (["gate_proj"], ADAPTED),
    "lr_schedule": ("linear", {}),
    "max_grad_norm": (1e-8, {}),
    "normalizer": ("sequence", {}),
    "objective": ("cispo", OFF),
    "overlong_buffer": (6, {"overlong_penalty": 1.0, "overlong_buffer": 2}),
    "overlong_penalty": (1.0, {"overlong_buffer": 4}),
    "reward_schedule": ({"first": [[0, 0], [1, 0]]}, TWICE),
    "token_lam": (0.5, PPO | {"value_levels": "bilevel"}),
    "truncated": ("drop", {}),
    "truncation_penalty": (0.1, {"truncated": "penalty", "truncation_penalty": 2.0}),
    "use_lora": (True, {}),
    "value_clip": (1e-6, PPO | {"value_epochs": 3, "value_learning_rate": 1e-3}),
    "value_epochs": (3, PPO),
    "value_learning_rate": (0.1, PPO),
    "value_levels": ("bilevel", PPO),
    "value_warmup": (1, PPO),
    "vine_rollouts": (1, TWICE | {"estimator": "vine"}),
    "warmup_ratio": (0.5, OFF),
    "weight_decay": (0.5, {}),
}

# Options that a test elsewhere is about.
SHOWN = {
    "kl_control": "test_algorithms.py::test_a_kl_coefficient_that_follows_the_kl",
    "share_prefix": "test_learner.py::test_shared_beginnings_are_processed_once",
}


def _differs(key: str) -> Callable[..., None]:
    def check(run: Any, **_: Any) -> None:
        assert run.differ("weights", key, *LEARNS[key])

    return check


def _shown(key: str) -> Callable[..., None]:
    return lambda shown_in, **_: shown_in(SHOWN[key], key)


def _sampler_weights(run: Any, **options: Any) -> torch.Tensor:
    """Return the gradient of two members, one of which another model has sampled."""
    learner = GRPOTrainer(run.config(**options)).learner
    rows = [TokenStream((1, 3, 4, 5), (0, 0, 1, 1), (-1, -1, 0, 0), (0.0, 0.0, p, p)) for p in (-9.0, -0.5)]
    task, steps = Task("t", "", ""), (Step(Action(""), Observation()),)
    group = Group(task, tuple(Trajectory(task, (), steps, (row,)) for row in rows))
    batch = learner.lay_out([group], [[[1.0], [1.0]]])
    sums = dict.fromkeys(("loss", "kl", "entropy", "clip", "gap", "capped"), 0.0)
    learner._add_gradients(batch.micro, [None] * len(batch.micro), batch.normalizer, sums, None)
    return torch.cat([p.grad.flatten() for p in learner.model.parameters()])


def _sampler_correction(run: Any, **_: Any) -> None:
    plain, weighed = _sampler_weights(run), _sampler_weights(run, sampler_correction=True)
    assert not torch.allclose(plain, weighed)
    for cap in (2.0, 4.0):  # the first member's weight is the cap, so its tokens count that often
        found = _sampler_weights(run, sampler_correction=True, sampler_cap=cap)
        assert torch.allclose(found, weighed) == (cap == 2.0)


def _microbatch_tokens(run: Any, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    sizes: list[int] = []
    plain = Learner.logprobs

    def logprobs(self: Learner, micro: Any) -> Any:
        sizes.append(micro.ids.numel())
        return plain(self, micro)

    monkeypatch.setattr(Learner, "logprobs", logprobs)
    run(share_prefix="off")
    assert max(sizes) > 60
    sizes.clear()
    run(share_prefix="off", microbatch_tokens=60)
    assert max(sizes) <= 60


def _gradient_checkpointing(run: Any, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    calls: list[int] = []
    plain = LlamaMLP.forward

    def forward(*args: Any) -> Any:
        calls.extend([1] * torch.is_grad_enabled())
        return plain(*args)

    monkeypatch.setattr(LlamaMLP, "forward", forward)
    for on in (False, True):
        calls.clear()
        run(gradient_checkpointing=on)
        assert len(calls) == 2 * (1 + on)  # each of the two layers once more


KEYS: dict[str, Callable[..., None]] = {
    **{key: _differs(key) for key in LEARNS},
    **{key: _shown(key) for key in SHOWN},
    "gradient_checkpointing": _gradient_checkpointing,
    "microbatch_tokens": _microbatch_tokens,
    "sampler_cap": _sampler_correction,
    "sampler_correction": _sampler_correction,
}


def test_there_is_a_row_for_every_key() -> None:
    names = list(GRPOConfig.model_fields)  # all others are in test_grpo_keys.py
    assert set(KEYS) == set(names[names.index("reward_schedule") : names.index("fault_alarm")])


@pytest.mark.parametrize(
    "key", sorted({check: key for key, check in KEYS.items()}.values())
)  # one of those that share a check
def test_it_has_an_effect(
    key: str, small_runs: Any, shown_in: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    KEYS[key](run=small_runs, shown_in=shown_in, monkeypatch=monkeypatch)
