"""The losses against closed forms and against TRL's own numbers."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

from trajgym.policies.render import Renderer
from trajgym.trainers.dpo import pair_rows, sequence_logprobs
from trajgym.trainers.interrupt import Interrupt
from trajgym.trainers.models import load_model
from trajgym.trainers.preference_config import load_dpo_config, load_reward_config
from trajgym.trainers.preference_loss import bradley_terry_loss, dpo_loss
from trajgym.trainers.preference_run import RunWatch
from trajgym.trainers.preference_trainers import MaskedPairs, dpo_trainer, reward_trainer
from trajgym.trainers.preferences import make_pair
from trajgym.trainers.runfolder import RunFolder

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of TRL, about transformers
CPU = torch.device("cpu")


def test_log_2_at_no_margin_and_less_the_clearer_the_order() -> None:
    zero = torch.zeros(3)
    assert bradley_terry_loss(zero, zero).item() == pytest.approx(math.log(2))
    losses = [bradley_terry_loss(zero + gap, zero).item() for gap in (-4.0, -1.0, 0.0, 1.0, 4.0)]
    assert losses == sorted(losses, reverse=True)
    assert losses == pytest.approx([math.log1p(math.exp(-gap)) for gap in (-4.0, -1.0, 0.0, 1.0, 4.0)])
    assert bradley_terry_loss(torch.tensor([1e4]), torch.tensor([-1e4])).item() == 0.0
    assert bradley_terry_loss(torch.tensor([-1e4]), torch.tensor([1e4])).item() == pytest.approx(2e4)


def test_a_margin_asks_for_more_and_the_centre_holds_scores() -> None:
    chosen, rejected = torch.tensor([2.0, 1.0]), torch.tensor([1.0, 1.0])
    margin = torch.tensor([1.0, 0.0])
    assert bradley_terry_loss(chosen, rejected, margin).item() == pytest.approx(math.log(2))
    plain = bradley_terry_loss(chosen, rejected).item()
    assert bradley_terry_loss(chosen, rejected, center=0.1).item() == pytest.approx(plain + 0.1 * (9 + 4) / 2)


def watched(kind: Any, folder: Path, **options: Any) -> tuple[Any, RunFolder, RunWatch]:
    config = kind({"output_dir": str(folder), "monitors": (), "device": "cpu", **options})
    run = RunFolder(config, "run")
    return config, run, RunWatch(config, run, Interrupt(), digest="")


@pytest.mark.parametrize(("use_margin", "center"), [(False, 0.0), (True, 0.0), (True, 0.02)])
def test_the_reward_loss_is_trls(digit_model: Path, tmp_path: Path, use_margin: bool, center: float) -> None:
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(digit_model, num_labels=1, dtype=torch.float32)
    _, tokenizer = load_model(str(digit_model))
    model.config.pad_token_id = tokenizer.pad_token_id
    with torch.no_grad():
        model.score.weight.mul_(20)
    rows = [
        {"chosen_ids": [1, 3, 2, 1, 4, 2], "rejected_ids": [1, 3, 2], "margin": 0.5},
        {"chosen_ids": [1, 5, 2], "rejected_ids": [1, 6, 6, 2], "margin": 2.0},
    ]
    if not use_margin:
        rows = [{k: v for k, v in row.items() if k != "margin"} for row in rows]
    config, run, watch = watched(load_reward_config, tmp_path, center=center, use_margin=use_margin)
    trainer = reward_trainer(config, model, tokenizer, rows, device=CPU, folder=run, watch=watch)
    theirs = trainer.compute_loss(trainer.model, trainer.data_collator(rows))

    def score(ids: list[int]) -> torch.Tensor:
        return model(input_ids=torch.tensor([ids])).logits[0, 0]

    chosen, rejected = (torch.stack([score(row[f"{s}_ids"]) for row in rows]) for s in ("chosen", "rejected"))
    margin = torch.tensor([row["margin"] for row in rows]) if use_margin else None
    assert theirs.item() == pytest.approx(bradley_terry_loss(chosen, rejected, margin, center).item(), rel=1e-5)


DIALOGUES = [
    make_pair(
        [{"role": "user", "content": "12"}],
        [
            {"role": "assistant", "content": "01"},
            {"role": "tool", "content": "333"},
            {"role": "assistant", "content": "2"},
        ],
        [{"role": "assistant", "content": "30"}],
    ),
    make_pair("3", "3", "012"),
]


def test_the_dpo_loss_is_the_closed_form_over_the_policys_own_tokens(digit_model: Path, tmp_path: Path) -> None:
    reference, tokenizer = load_model(str(digit_model))
    torch.manual_seed(1)
    policy = copy.deepcopy(reference)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    rows, long = pair_rows(DIALOGUES, Renderer(tokenizer), most=64)
    assert long == 0
    # the tool's three digits and the frame around them are given, not written
    assert sum(rows[0]["chosen_mask"]) == len("01") + 1 + len("2") + 1
    assert sum(rows[0]["rejected_mask"]) == len("30") + 1

    def gain(row: dict[str, list[int]], side: str, mask: list[int] | None = None) -> float:
        ids, mask = row[f"{side}_ids"], mask or row[f"{side}_mask"]
        return sequence_logprobs(policy, ids, mask) - sequence_logprobs(reference, ids, mask)

    beta = 0.7
    chosen = torch.tensor([gain(row, "chosen") for row in rows])
    rejected = torch.tensor([gain(row, "rejected") for row in rows])
    by_hand = [math.log1p(math.exp(-beta * (a - b))) for a, b in zip(chosen.tolist(), rejected.tolist(), strict=True)]
    assert dpo_loss(chosen, rejected, beta).item() == pytest.approx(sum(by_hand) / 2, rel=1e-5)

    config, run, watch = watched(load_dpo_config, tmp_path, beta=beta)
    trainer = dpo_trainer(config, policy, tokenizer, rows, reference=reference, device=CPU, folder=run, watch=watch)
    theirs = trainer.compute_loss(trainer.model, MaskedPairs(tokenizer.pad_token_id)(rows)).item()
    assert theirs == pytest.approx(dpo_loss(chosen, rejected, beta).item(), rel=1e-4)

    prompt = rows[0]["chosen_mask"].index(1)
    everything = [int(i >= prompt) for i in range(len(rows[0]["chosen_ids"]))]
    with_tools = torch.tensor([gain(rows[0], "chosen", everything), chosen[1].item()])
    assert theirs != pytest.approx(dpo_loss(with_tools, rejected, beta).item(), rel=1e-4)


def test_dpo_begins_at_log_2(digit_model: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(str(digit_model))
    rows, _ = pair_rows(DIALOGUES, Renderer(tokenizer), most=64)
    config, run, watch = watched(load_dpo_config, tmp_path)
    trainer = dpo_trainer(
        config, model, tokenizer, rows, reference=copy.deepcopy(model), device=CPU, folder=run, watch=watch
    )
    loss = trainer.compute_loss(trainer.model, MaskedPairs(tokenizer.pad_token_id)(rows))
    assert loss.item() == pytest.approx(math.log(2), rel=1e-6)
    loss.backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())
