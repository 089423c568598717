"""The loss of supervised training: −Σ log P over what the assistant wrote, packed or not, and its schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from trajgym.errors import ConfigError
from trajgym.trainers.interrupt import Interrupt
from trajgym.trainers.models import load_model
from trajgym.trainers.runfolder import RunFolder
from trajgym.trainers.sft_config import SFTConfig, load_sft_config
from trajgym.trainers.sft_packing import require_apart
from trajgym.trainers.sft_rows import TokenRow
from trajgym.trainers.sft_trainer import RunSFTTrainer, make_trainer
from trajgym.trainers.sft_watch import Watch

START, END = 1, 2
# Two turns with something given between them; one turn; a turn that is nothing but its end.
ROWS: list[TokenRow] = [
    {"input_ids": [START, 3, END, START, 5, 6, END, START, 4, END, START, 3, END],
     "completion_mask": [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1]},
    {"input_ids": [START, 6, 4, END, START, 6, END], "completion_mask": [0, 0, 0, 0, 0, 1, 1]},
    {"input_ids": [START, 5, END, START, END], "completion_mask": [0, 0, 0, 0, 1]},
]  # fmt: skip


def trainer_of(model: Any, tokenizer: Any, folder: Path, rows: list[TokenRow] = ROWS, **options: Any) -> RunSFTTrainer:
    config: SFTConfig = load_sft_config(
        {"batch_size": 3, "device": "cpu", "output_dir": str(folder), "max_length": 64, "overwrite": True} | options
    )

    def none(total: int, first: int) -> Any:
        raise AssertionError("nothing is trained here")

    watch = Watch(config, none, Interrupt(), held_out=False, data="")
    return make_trainer(
        config, model, tokenizer, rows, [], device=torch.device("cpu"), folder=RunFolder(config, "loss"), watch=watch
    )


def by_hand(model: Any, rows: list[TokenRow]) -> tuple[torch.Tensor, int]:
    """−Σ log P(token | all before it) over trained tokens, and their number."""
    total, count = torch.zeros(()), 0
    for row in rows:
        logp = torch.log_softmax(model(input_ids=torch.tensor([row["input_ids"]])).logits[0], dim=-1)
        for t in range(1, len(row["input_ids"])):
            if row["completion_mask"][t]:
                total = total - logp[t - 1, row["input_ids"][t]]
                count += 1
    return total, count


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def step_loss(trainer: RunSFTTrainer) -> torch.Tensor:
    batches = list(trainer.get_train_dataloader())
    assert len(batches) == 1
    trainer.model.train()
    return torch.as_tensor(trainer.compute_loss(trainer.model, dict(batches[0])))


def test_the_loss_is_that_of_the_assistants_tokens_alone(digit_model: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(str(digit_model))
    expected, count = by_hand(model, ROWS)
    assert count == 8
    (expected / count).backward()  # type: ignore[no-untyped-call]
    wanted = gradients(model)
    model.zero_grad()
    loss = step_loss(trainer_of(model, tokenizer, tmp_path))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx((expected / count).item(), abs=1e-6)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, wanted[name], atol=1e-6, rtol=1e-4)


def test_with_a_mask_of_ones_it_is_the_loss_of_pretraining(digit_model: Path, tmp_path: Path) -> None:
    """−Σ log P(x_t | x_<t) over all tokens; the first one has nothing before it to be told from."""
    rows: list[TokenRow] = [
        {"input_ids": row["input_ids"], "completion_mask": [1] * len(row["input_ids"])} for row in ROWS
    ]
    model, tokenizer = load_model(str(digit_model))
    expected, count = by_hand(model, rows)
    assert count == sum(len(row["input_ids"]) - 1 for row in rows) == 22
    (expected / count).backward()  # type: ignore[no-untyped-call]
    wanted = gradients(model)
    model.zero_grad()
    loss = step_loss(trainer_of(model, tokenizer, tmp_path, rows))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx((expected / count).item(), abs=1e-6)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, wanted[name], atol=1e-6, rtol=1e-4)


def test_packed_rows_have_the_loss_and_the_gradient_of_rows_apart(digit_model: Path, tmp_path: Path) -> None:
    found = []
    for packing in (False, True):
        model, tokenizer = load_model(str(digit_model))
        trainer = trainer_of(model, tokenizer, tmp_path, packing=packing)
        (batch,) = list(trainer.get_train_dataloader())
        assert batch["input_ids"].shape == ((1, 25) if packing else (3, 13))
        loss = step_loss(trainer)
        loss.backward()  # type: ignore[no-untyped-call]
        found.append((loss.item(), gradients(model)))
    (apart, wanted), (packed, got) = found
    assert packed == pytest.approx(apart, abs=1e-6)
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, wanted[name], atol=1e-6, rtol=1e-4)


def test_packs_are_no_longer_than_max_length(digit_model: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(str(digit_model))
    trainer = trainer_of(model, tokenizer, tmp_path, packing=True, max_length=14, batch_size=1)
    lengths = [len(pack["input_ids"]) for pack in trainer.train_dataset]
    assert sorted(lengths) == [12, 13]  # 13, and 7 + 5
    labels = sorted(tuple(pack["labels"]) for pack in trainer.train_dataset)
    assert sum(label != -100 for pack in labels for label in pack) == 8  # nothing was cut


def test_a_model_that_lets_packed_rows_see_each_other_is_refused(digit_model: Path) -> None:
    model, _ = load_model(str(digit_model))
    require_apart(model, ROWS, pad_id=0)
    forward = model.forward

    def blind_to_positions(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **{k: v for k, v in kwargs.items() if k in ("input_ids", "use_cache")})

    model.forward = blind_to_positions
    with pytest.raises(ConfigError, match="packing: false"):
        require_apart(model, ROWS, pad_id=0)


def test_what_was_given_gets_no_gradient_and_the_end_of_a_turn_does(digit_model: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(str(digit_model))
    trainer = trainer_of(model, tokenizer, tmp_path, rows=ROWS[:1], batch_size=1)
    seen: list[torch.Tensor] = []

    def keep(module: Any, inputs: Any, output: torch.Tensor) -> None:
        output.retain_grad()
        seen.append(output)

    model.model.norm.register_forward_hook(keep)  # its output at t decides the token at t + 1, and nothing else
    step_loss(trainer).backward()  # type: ignore[no-untyped-call]
    gradient = seen[0].grad
    assert gradient is not None
    touched = [bool(row.abs().max() > 0) for row in gradient[0]]
    assert touched == [bool(m) for m in ROWS[0]["completion_mask"][1:]] + [False]
    assert [i for i, t in enumerate(touched) if t and ROWS[0]["input_ids"][i + 1] == END] == [5, 11]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {0: 0.0, 1: 0.1, 5: 0.5, 10: 1.0, 55: 0.5, 99: 1 / 90, 100: 0.0}),
        ({"warmup_ratio": 0.0}, {0: 1.0, 50: 0.5, 100: 0.0}),
        ({"lr_schedule": "constant"}, {0: 0.0, 10: 1.0, 100: 1.0}),
        ({"lr_schedule": "cosine"}, {0: 0.0, 10: 1.0, 55: 0.5, 100: 0.0}),
    ],
)
def test_the_rate_rises_and_falls(
    digit_model: Path, tmp_path: Path, options: dict[str, Any], expected: dict[int, float]
) -> None:
    model, tokenizer = load_model(str(digit_model))
    trainer = trainer_of(model, tokenizer, tmp_path, learning_rate=2e-3, **options)
    trainer.create_optimizer_and_scheduler(num_training_steps=100)
    rates = []
    for _ in range(101):
        rates.append(trainer.lr_scheduler.get_last_lr()[0] / 2e-3)
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    assert {step: pytest.approx(rates[step], abs=1e-12) for step in expected} == expected
    assert max(rates) == 1.0
