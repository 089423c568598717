"""Every estimator, loss and way of sampling through the whole loop: each has the effect that its option promises."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trajgym.envs.base import ToolEnv
from trajgym.errors import RewardError, TrainingError
from trajgym.rollout import EnvPool
from trajgym.trainers.advantages import ESTIMATORS, BiasWarning, estimator
from trajgym.trainers.config import load_config
from trajgym.trainers.efficiency import PARTS
from trajgym.trainers.grpo import GRPOTrainer, train
from trajgym.trainers.interrupt import Interrupt


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "efficiency/", "memory/"))}
        for line in lines
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = sorted((folder / "checkpoints").glob("update-*"))[-1]
    return load_file(next((newest / "model").glob("*.safetensors")))


def moved(folder: Path, start: Path) -> bool:
    before = load_file(start / "model.safetensors")
    return any(not torch.equal(v, before[k]) for k, v in weights(folder).items())


def run(options: dict[str, Any], **changes: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiasWarning)
        return train(load_config({**options, **changes}))


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_every_estimator_trains(identity_options: dict[str, Any], digit_model: Path, name: str) -> None:
    # Two turns, so that estimators that look at states or later rewards have something to look at.
    two = {"env": "TestTwice-v0", "max_episode_tokens": 48, "estimator": name, "vine_rollouts": 2}
    folder = run(identity_options, **two)
    lines = metrics(folder)
    assert all(math.isfinite(v) for line in lines for v in line.values())
    assert lines[-1]["grad_norm"] > 0
    assert moved(folder, digit_model)


def test_a_biased_estimator_warns(identity_options: dict[str, Any]) -> None:
    with pytest.warns(BiasWarning, match="wrong sign"):
        GRPOTrainer(load_config({**identity_options, "estimator": "grpo_process"}))


def test_an_estimator_of_ones_own(identity_options: dict[str, Any], digit_model: Path) -> None:
    @estimator("own", unbiased=True)
    def own(rewards: Any, *, gamma: float, centre: float = 0.5) -> Any:
        return [[sum(row[t:]) - centre for t in range(len(row))] for row in rewards]

    try:
        folder = run(identity_options, estimator="own", estimator_options={"centre": 0.25})
        assert moved(folder, digit_model)
    finally:
        del ESTIMATORS._items["own"]


@pytest.mark.parametrize(
    "loss",
    [
        {"importance": "turn"},
        {"importance": "trajectory"},
        {"objective": "cispo"},
        {"objective": "dual_clip", "dual_clip": 1.1},
        {"objective": "cispo", "importance": "turn"},
        {"kl_form": "k2", "kl_coef": 0.5},
        {"kl_form": "k3", "kl_coef": 0.5},
        {"kl_form": "k1_in_reward", "kl_coef": 0.5},
        {"inner_epochs": 3, "minibatches": 1},
        {"advantage_scale": "ema_std"},
        {"truncated": "penalty", "truncation_penalty": 0.5},
        {"overlong_penalty": 1.0, "overlong_buffer": 4},
        {"clip_range": 0.01, "clip_range_high": 0.01},
    ],
    ids=lambda options: "-".join(f"{k}={v}" for k, v in options.items()),
)
def test_every_option_of_the_loss_acts(identity_options: dict[str, Any], loss: dict[str, Any]) -> None:
    # Off-policy steps, so that ratios are something else than 1.
    base = {**identity_options, "updates": 3, "minibatches": 4, "learning_rate": 2e-2}
    plain = run(base, name="plain", **({"kl_coef": loss["kl_coef"]} if "kl_coef" in loss else {}))
    changed = run(base, **loss, name="changed")
    again = run(base, **loss, name="again")
    left, right = weights(plain), weights(changed)
    assert any(not torch.equal(left[k], right[k]) for k in left)
    assert metrics(changed) == metrics(again)
    assert all(math.isfinite(v) for line in metrics(changed) for v in line.values())


def test_a_correction_for_the_sampler_is_nothing_where_it_is_exact(identity_options: dict[str, Any]) -> None:
    plain = run(identity_options, updates=3, name="plain")
    corrected = run(identity_options, updates=3, name="corrected", sampler_correction=True)
    for (k, a), b in zip(weights(plain).items(), weights(corrected).values(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4, msg=k)


def test_the_kl_in_the_reward_is_that_of_the_turns_tokens(identity_options: dict[str, Any]) -> None:
    trainer = GRPOTrainer(load_config({**identity_options, "kl_form": "k1_in_reward", "kl_coef": 0.1}))
    with Interrupt() as interrupt, trainer.pool:
        groups = trainer.gather(interrupt).groups
        assert trainer.kl_of_turns(groups) == [[[0.0] for _ in g.trajectories] for g in groups]
        with torch.no_grad():
            for p in trainer.learner.model.parameters():
                p.add_(0.05 * torch.randn_like(p))
        found = trainer.kl_of_turns(groups)
        assert found is not None
        member = groups[0].trajectories[0]
        (row,) = member.rows
        with torch.no_grad(), trainer.reference.active() as reference:  # type: ignore[union-attr]
            ids = torch.tensor([row.ids])
            gap = trainer.learner.model(ids).logits.log_softmax(-1) - reference(ids).logits.log_softmax(-1)
        sampled = [p for p, mine in enumerate(row.mask) if mine]
        want = sum(float(gap[0, p - 1, row.ids[p]]) for p in sampled)
        assert found[0][0] == [pytest.approx(want, abs=1e-5)]
        plain = [[t.rewards[0] for t in g.trajectories] for g in groups]
        assert trainer.crediting.rewards(groups, found)[0][0] == [pytest.approx(plain[0][0] - 0.1 * want, abs=1e-5)]


def test_dynamic_sampling_goes_on_until_groups_differ(identity_options: dict[str, Any]) -> None:
    options = {**identity_options, "num_generations": 2, "groups_per_update": 6}
    few = GRPOTrainer(load_config({**options, "name": "few"}))
    many = GRPOTrainer(load_config({**options, "name": "many", "dynamic_sampling": 30}))
    with Interrupt() as interrupt, few.pool, many.pool:
        less = few.gather(interrupt)
        first = less.trajectories
        telling = [g for g in less.groups if many.crediting.has_signal(g)]
        assert len(telling) < 6  # two answers of a random model are mostly wrong alike
        more = many.gather(interrupt)
        played, found = more.trajectories, more.groups
    assert found[: len(telling)] == telling
    assert len(found) == 6
    assert all(many.crediting.has_signal(g) for g in found)
    assert played[: len(first)] == first
    assert len(played) > len(first)
    assert len(played) % 12 == 0
    assert len({t.seed for t in played}) == len(played)
    line = metrics(run(options, name="run", dynamic_sampling=30, updates=1))[0]
    assert line["no_signal_share"] == 0.0
    assert line["env_steps"] == len(played)


def test_dynamic_sampling_gives_up_after_its_rounds(identity_options: dict[str, Any]) -> None:
    options = {**identity_options, "env_kwargs": {"reward": {}}, "dynamic_sampling": 2}
    trainer = GRPOTrainer(load_config({**options, "env": "TestNothing-v0", "env_kwargs": {}}))
    with Interrupt() as interrupt, trainer.pool:
        found = trainer.gather(interrupt)
    assert len(found.trajectories) == 3 * 4 * 8
    assert len(found.groups) == 4  # without a signal, but not without use: they count in Z and in the metrics


def test_fresh_rollouts_give_values_and_count_as_work(identity_options: dict[str, Any]) -> None:
    options = {**identity_options, "env": "TestTwice-v0", "max_episode_tokens": 48, "estimator": "vine"}
    trainer = GRPOTrainer(load_config({**options, "vine_rollouts": 3, "gamma": 0.5}))
    with Interrupt() as interrupt, trainer.pool:
        played = trainer.gather(interrupt)
        groups = played.groups
        own = sum(len(t.steps) for t in played.trajectories)
        assert played.extra_steps > own
        values = [played.values[t.seed] for g in groups for t in g.trajectories]
        members = [t for g in groups for t in g.trajectories]
        assert [len(v) for v in values] == [len(t.steps) + 1 for t in members]
        assert {v[0] for v in values[:8]} == {values[0][0]}  # one beginning, one value
        assert all(v[-1] == 0.0 for v in values)
        advantages = trainer.credit(groups, played.values)
    member, v, row = groups[0].trajectories[0], values[0], advantages[0][0]
    want = [0.5**t * (r + 0.5 * v[t + 1] - v[t]) for t, r in enumerate(member.rewards)]
    assert row == pytest.approx(want)
    first = metrics(run({**options, "vine_rollouts": 3, "gamma": 0.5}, name="run", updates=1))[0]
    assert first["env_steps"] == own + played.extra_steps


def test_states_of_which_nothing_is_known_leave_the_group(
    identity_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import trajgym.trainers.rollout_share as rollout_share
    from trajgym.trainers.vine import StateValues

    def half(policy: Any, pool: EnvPool, trajectories: Any, states: Any, **options: Any) -> StateValues:
        values: list[Any] = [None if i == 0 else [0.0] * (len(t.steps) + 1) for i, t in enumerate(trajectories)]
        return StateValues(values, {0: "its rollouts failed"}, 1, 7, 1)

    monkeypatch.setattr(rollout_share, "state_values", half)
    trainer = GRPOTrainer(load_config({**identity_options, "estimator": "vine"}))
    with Interrupt() as interrupt, trainer.pool:
        played = trainer.gather(interrupt)
    assert played.trajectories[0].fault == "StateUnknown: its rollouts failed"
    assert [len(g.trajectories) for g in played.groups] == [7, 8, 8, 8]
    assert len(trainer.credit(played.groups, played.values)) == 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "much", None])
def test_a_reward_that_is_no_number_stops_the_run_and_names_the_term(
    identity_options: dict[str, Any], bad: Any
) -> None:
    from trajgym.rewards import term

    @term
    def odd(step: Any, task: Any, history: Any) -> Any:
        return bad

    with pytest.raises(RewardError, match="odd"):
        run(identity_options, env_kwargs={"reward": {"odd": (odd, 1.0)}})


def test_groups_of_one_need_no_comparison(identity_options: dict[str, Any], digit_model: Path) -> None:
    folder = run(identity_options, num_generations=1, baseline="none", groups_per_update=32)
    assert metrics(folder)[0]["groups"] == 32
    assert moved(folder, digit_model)


def test_an_estimator_of_ones_own_that_compares_nobody_takes_groups_of_one(
    identity_options: dict[str, Any], digit_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ESTIMATORS, "_items", dict(ESTIMATORS._items))

    @estimator("centred_here", unbiased=True)
    def centred(rewards: Any, *, gamma: float, centre: float = 0.1) -> Any:
        return [[sum(row[t:]) - centre for t in range(len(row))] for row in rewards]

    folder = run(identity_options, num_generations=1, estimator="centred_here", groups_per_update=32)
    assert metrics(folder)[0]["groups"] == 32
    assert moved(folder, digit_model)


@pytest.mark.parametrize("scale", ["none", "group_std", "batch_std", "ema_std"])
def test_groups_that_are_all_equal_are_counted_and_harmless(identity_options: dict[str, Any], scale: str) -> None:
    # The mean of seven times 0.7 is not 0.7 in floats.
    paid = {"env_kwargs": {"reward": {"constant": (lambda step, task, history: 0.7, 1.0)}}, "num_generations": 7}
    folder = run(identity_options, weight_decay=0.0, advantage_scale=scale, **paid)
    assert [m["no_signal_share"] for m in metrics(folder)] == [1.0, 1.0]
    start = load_file(Path(identity_options["model"]) / "model.safetensors")
    assert all(torch.equal(v, start[k]) for k, v in weights(folder).items())


@pytest.mark.parametrize("options", [{"algorithm": "ppo"}, {"estimator": "vine"}, {"baseline": "none"}])
def test_a_group_that_faults_leave_one_of_has_no_spread(
    identity_options: dict[str, Any], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ToolEnv.reset
    calls = 0

    def reset(self: ToolEnv, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError("gone")
        return real(self, **kwargs)

    monkeypatch.setattr(ToolEnv, "reset", reset)
    folder = run(identity_options, **options, num_generations=2, advantage_scale="group_std", updates=1)
    assert metrics(folder)[0]["groups"] == 3


def test_values_are_for_whoever_asks(identity_options: dict[str, Any]) -> None:
    seen = []

    @estimator("asks", unbiased=True)
    def asks(rewards: Any, *, gamma: float, values: Any = None) -> Any:
        seen.append(values)
        return [[r - v for r, v in zip(row, own, strict=False)] for row, own in zip(rewards, values, strict=True)]

    try:
        run(identity_options, estimator="asks", updates=1, vine_rollouts=1)
        assert len(seen) == 2 + 4  # tried out on groups of two and of one
        assert all(len(row) == 2 and row[-1] == 0.0 for values in seen[2:] for row in values)
    finally:
        del ESTIMATORS._items["asks"]


def test_weights_that_are_no_numbers_are_not_saved(identity_options: dict[str, Any]) -> None:
    trainer = GRPOTrainer(load_config({**identity_options, "updates": 2, "save_every": 1}))
    real = trainer.learn

    def learn(*args: Any) -> Any:
        found = real(*args)
        if trainer.update == 1:
            with torch.no_grad():
                next(iter(trainer.learner.model.parameters())).fill_(float("inf"))
        return found

    trainer.learn = learn  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match="not saved"):
        trainer.run()
    assert [p.name for p in trainer.folder.complete()] == ["update-000001"]


def test_a_kl_coefficient_that_follows_the_kl(identity_options: dict[str, Any]) -> None:
    base = {"kl_coef": 0.05, "kl_control": "auto", "updates": 6, "save_every": 3}
    folder = run(identity_options, **base, name="auto")
    lines = metrics(folder)
    assert lines[0]["kl_coef"] == 0.05
    assert lines[1]["kl_coef"] < 0.05  # the first update's KL is 0, below the band
    assert all(0.01 < m["kl"] < 0.1 for m in lines[1:])
    assert {m["kl_coef"] for m in lines[1:]} == {lines[1]["kl_coef"]}  # within the band it stays
    run(identity_options, **{**base, "updates": 3}, name="cut")
    resumed = run(identity_options, **base, name="cut", resume=True)
    assert metrics(resumed) == lines
    in_reward = run(identity_options, **base, kl_form="k1_in_reward", name="paid")
    assert metrics(in_reward)[1]["kl_coef"] < 0.05


def test_what_an_update_costs_is_in_the_log(
    identity_options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(identity_options, kl_coef=0.05, minibatches=2)
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert 0 < line["efficiency/eta"] < 1
    assert 0 < line["efficiency/useful_token_share"] <= 1
    assert 0 < line["efficiency/mfu"] < 1
    assert line["memory/peak"] > 0
    parts = sum(line.get(f"time/{part}", 0.0) for part in PARTS)
    assert 0.5 * line["time/update"] < parts <= line["time/update"]
    assert "policy + reference = 2 models" in capsys.readouterr().out
