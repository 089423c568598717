"""Off-policy correction against exact gradients: where it repairs everything, and where a part."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("correction")
    sys.modules.pop("correction", None)


def bias(bench: ModuleType, length: int, noise: float, seed: int, kind: str) -> float:
    answers, table, sampler = bench.setting(length, noise, seed)
    truth = bench.true_gradient(answers, table)
    return float((bench.expected_gradient(answers, table, sampler, kind) - truth).norm() / truth.norm())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("length", [1, 2, 4])
def test_without_a_difference_there_is_nothing_to_correct(bench: ModuleType, length: int, seed: int) -> None:
    for kind in bench.KINDS:
        assert bias(bench, length, 0.0, seed, kind) < 1e-12


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0])
def test_for_one_token_the_weight_is_exact_and_without_it_the_gradient_is_not(
    bench: ModuleType, noise: float, seed: int
) -> None:
    assert bias(bench, 1, noise, seed, "uncapped") < 1e-12
    assert bias(bench, 1, noise, seed, "none") > 0.1 * noise


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.3, 1.0, 2.0])
def test_the_cap_costs_no_more_than_what_it_cuts(bench: ModuleType, noise: float, seed: int) -> None:
    answers, table, sampler = bench.setting(1, noise, seed)
    truth = bench.true_gradient(answers, table)
    capped = bench.expected_gradient(answers, table, sampler, "capped")
    logp, sampler_logp = answers.logp(table), answers.logp(sampler)
    excess = ((logp - sampler_logp).exp() - bench.CAP).clamp(min=0.0)[:, 0]
    chances = answers.chances(sampler)
    means = (chances * answers.rewards).view(bench.TASKS, -1).sum(-1) * bench.TASKS
    advantages = (answers.rewards.view(bench.TASKS, -1) - means[:, None]).flatten()
    scores = torch.nn.functional.one_hot(answers.words[:, 0], bench.WORDS) - table.softmax(-1)[answers.rows[:, 0]]
    bound = (chances * excess * advantages.abs() * scores.norm(dim=-1)).sum()
    assert (capped - truth).norm() <= bound + 1e-12
    if noise == 2.0:
        assert excess.max() > 0.0  # so that the bound says something
        assert bias(bench, 1, noise, seed, "capped") < bias(bench, 1, noise, seed, "none")


@pytest.mark.parametrize("length", [2, 4])
def test_for_answers_of_several_tokens_it_repairs_a_part_and_their_product_all(bench: ModuleType, length: int) -> None:
    """Each token's weight corrects for its own draw, not for the beginning before it nor for what follows."""
    found = {kind: [bias(bench, length, 0.3, seed, kind) for seed in range(8)] for kind in bench.KINDS}
    assert max(found["product"]) < 1e-12
    assert min(found["uncapped"]) > 0.01
    assert sum(found["uncapped"]) < 0.95 * sum(found["none"])


@pytest.mark.parametrize("seed", range(3))
def test_the_kl_is_corrected_alike(bench: ModuleType, seed: int) -> None:
    answers, table, sampler = bench.setting(1, 1.0, seed)
    leaf = table.clone().requires_grad_()
    logp = torch.log_softmax(leaf, -1)
    kl = (logp.exp() * (logp + torch.tensor(bench.WORDS).log())).sum() / bench.TASKS
    (truth,) = torch.autograd.grad(kl, leaf)
    torch.testing.assert_close(bench.kl_gradient(answers, table, sampler, "uncapped"), truth)
    assert (bench.kl_gradient(answers, table, sampler, "none") - truth).norm() > 0.1 * truth.norm()


def test_training_with_a_sampler_that_is_far_off_ends_closer_with_the_correction(bench: ModuleType) -> None:
    off = bench.SAMPLERS["logits off by 1"]
    ends = {kind: [bench.train(1, seed, off, kind) for seed in range(2)] for kind in ("none", "uncapped")}
    assert min(ends["uncapped"]) > 0.98
    assert all(a < b for a, b in zip(ends["none"], ends["uncapped"], strict=True))
    own = bench.SAMPLERS["the policy"]
    assert bench.train(1, 0, own, "none") == pytest.approx(bench.train(1, 0, own, "capped"), abs=1e-9)


def test_the_tables(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "UPDATES", 3)
    monkeypatch.setattr(bench, "LENGTHS", (1, 2))
    monkeypatch.setattr(bench, "RATES", {1: 4.0})
    assert bench.main(["--seeds", "1"]) == 0
    exact, trained = capsys.readouterr().out.strip().split("\n\n")
    rows = [line.split(" | ") for line in exact.splitlines()[2:]]
    assert len(rows) == 2 * len(bench.NOISE)
    assert all(row[4].startswith("0, 1.0000") for row in rows[: len(bench.NOISE)])
    assert len(trained.splitlines()) == 2 + len(bench.SAMPLERS)
    with pytest.raises(SystemExit):
        bench.main(["--seeds", "0"])


@pytest.mark.slow
def test_the_page_shows_what_the_command_prints(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "RATES", {})  # nothing is trained
    assert bench.main([]) == 0
    exact = capsys.readouterr().out.split("\n\n")[0].strip()
    page = (ROOT / "docs" / "overlap.md").read_text(encoding="utf-8")
    assert f"<!-- exact: python benchmarks/correction.py -->\n{exact}\n<!-- end -->" in page
