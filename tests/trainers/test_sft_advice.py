"""Advice on supervised fine-tuning: each rule speaks where it should, with a number, and proposes what is right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from trajgym.trainers.diagnose import advise, diagnose, explain_error, look
from trajgym.trainers.diagnose_history import History
from trajgym.trainers.diagnose_rule import Finding
from trajgym.trainers.sft_advice import SFT_ADVICE, SFT_GRADIENTS, sft_advice_table
from trajgym.trainers.sft_config import load_sft_config, sft_recipe_names

ROOT = Path(__file__).resolve().parents[2]
GOOD = load_sft_config("sft_gsm8k_full").plain() | {"samples": 7473, "samples_available": 7473, "device_memory": 24.0}
FULL = {"use_lora": False}


def advice(**options: Any) -> dict[str, Finding]:
    return {finding.rule: finding for finding in advise(GOOD | options)}


def test_good_options_need_no_advice() -> None:
    assert advice() == {}


@pytest.mark.parametrize(
    ("rule", "wrong", "says", "changes"),
    [
        ("sft_rate_slow", {"learning_rate": 1e-6}, "1e-06", ["learning_rate 1e-06 → 5e-06"]),
        ("sft_rate_diverges", {"learning_rate": 1e-3}, "0.001", ["learning_rate 0.001 → 0.0001"]),
        ("sft_rate_diverges", {"learning_rate": 1e-3, **FULL}, "0.001", ["learning_rate 0.001 → 5e-05"]),
        ("sft_few_epochs", {"epochs": 2.0}, "epochs is 2", []),
        ("sft_many_epochs", {"epochs": 11.0}, "epochs is 11", ["epochs 11 → 3"]),
        ("sft_few_samples", {"samples": 99, "samples_available": None}, "99 samples", []),
        ("sft_part_of_the_data", {"samples": 100}, "100 of 7,473 samples are used, 1.34%", []),
        ("sft_large_batch", {"batch_size": 4, "device_memory": 4.0}, "batch_size is 4", ["batch_size 4 → 2"]),
        ("sft_large_batch", {"batch_size": 16, "device_memory": 7.8}, "batch_size is 16", ["batch_size 16 → 8"]),
        ("sft_large_batch", {"batch_size": 32, "device_memory": 15.7}, "batch_size is 32", ["batch_size 32 → 16"]),
        ("sft_adapters", {"lora_rank": 2, "lora_alpha": 4}, "lora_rank is 2", []),
        ("sft_adapters", {"lora_rank": 128, "lora_alpha": 256}, "lora_rank is 128", []),
        ("sft_adapters", {"lora_alpha": 16}, "lora_alpha is 16", ["lora_alpha 16 → 32"]),
        ("sft_float32", {"dtype": "float32"}, "float32 on a GPU", ["dtype float32 → bfloat16"]),
    ],
)
def test_each_rule_speaks_where_it_should(rule: str, wrong: dict[str, Any], says: str, changes: list[str]) -> None:
    finding = advice(**wrong)[rule]
    assert says in finding.evidence
    assert [str(change) for change in finding.changes] == changes


@pytest.mark.parametrize(
    "right",
    [
        {"learning_rate": 1.1e-6}, {"learning_rate": 9e-4}, {"epochs": 3.0}, {"epochs": 10.0}, {"samples": 1495},
        {"batch_size": 2, "device_memory": 4.0}, {"batch_size": 8, "device_memory": 8.0},
        {"batch_size": 16, "device_memory": 16.0}, {"batch_size": 64, "device_memory": 80.0},
        {"batch_size": 64, "device_memory": None}, {"lora_rank": 4, "lora_alpha": 8},
        {"lora_rank": 64, "lora_alpha": 128}, {"lora_rank": 3, **FULL}, {"dtype": "float32", "device_memory": None},
    ],
)  # fmt: skip
def test_and_nowhere_else(right: dict[str, Any]) -> None:
    assert advice(**right) == {}


def test_a_toy_may_learn_fast_and_little() -> None:
    assert advice(model="tiny", learning_rate=1e-2, epochs=1.0, samples=50, samples_available=None) == {}


def test_the_remedy_for_small_models_stays_small() -> None:
    """All weights of a model under 1B parameters: a higher rate is proposed up to 1e-5 and no further."""
    flat = [{"update": i, "loss": 2.0 + 0.01 * (-1) ** i, "grad_norm": 1.0} for i in range(1, 41)]

    def proposal(**options: Any) -> str:
        (finding,) = (f for f in diagnose(flat, GOOD | options) if f.rule == "loss_flat")
        return str(finding.changes[0])

    assert proposal(learning_rate=5e-6, **FULL).startswith("learning_rate 5e-06 → 1e-05 (no more than 1e-05: all")
    assert proposal(learning_rate=1e-5) == "learning_rate 1e-05 → 5e-05"
    assert proposal(learning_rate=1e-5, model="Qwen/Qwen3-8B", **FULL) == "learning_rate 1e-05 → 5e-05"


@pytest.mark.parametrize(
    ("rule", "metrics"),
    [
        ("sft_grad_explodes", {"grad_norm": 101.0, "loss": 2.0}),
        ("sft_grad_vanishes", {"grad_norm": 0.009, "loss": 2.0}),
        (None, {"grad_norm": 10.0, "loss": 2.0}),
        (None, {"grad_norm": 0.1, "loss": 2.0}),
        (None, {"grad_norm": 0.001, "loss": 0.01}),
    ],
)
def test_gradients(rule: str | None, metrics: dict[str, float]) -> None:
    history = History([{"update": i, **metrics} for i in (1, 2, 3)])
    assert [finding.rule for finding in look(history, GOOD)] == ([] if rule is None else [rule])


def test_losses_that_rise_and_models_that_learn_by_heart() -> None:
    fall = [3.0 - 0.05 * i for i in range(40)]
    rises = [{"update": i, "loss": loss, "grad_norm": 1.0} for i, loss in enumerate(fall + [2.5] * 20, start=1)]
    assert "loss_rises" in {finding.rule for finding in diagnose(rises, GOOD)}
    heart = [
        {"update": i, "loss": loss, "grad_norm": 1.0, "eval_loss": 1.0 + abs(i - 10) / 50}
        for i, loss in enumerate(fall, start=1)
    ]
    assert "overfit" in {finding.rule for finding in diagnose(heart, GOOD)}


def test_out_of_memory() -> None:
    finding = explain_error(RuntimeError("CUDA out of memory."), GOOD)
    assert finding is not None
    assert finding.rule == "sft_out_of_memory"
    assert {str(change) for change in finding.changes} >= {"batch_size 8 → 4", "gradient_accumulation 1 → 2"}


def test_the_remedies_are_those_of_the_founding_document() -> None:
    def of(rule: str, losses: list[float], held_out: list[float | None], **options: Any) -> Finding:
        rows = zip(losses, held_out, strict=True)
        history = [{"update": i, "loss": a, "eval_loss": b, "grad_norm": 1.0} for i, (a, b) in enumerate(rows, start=1)]
        return {finding.rule: finding for finding in diagnose(history, GOOD | options)}[rule]

    fall, flat = [3.0 - 0.05 * i for i in range(40)], [2.0 + 0.01 * (-1) ** i for i in range(40)]
    broken = explain_error(RuntimeError("CUDA out of memory."), GOOD)
    assert broken is not None
    for finding, remedies, change in (
        (of("loss_flat", flat, [None] * 40, learning_rate=1e-5),
         ["raise `learning_rate`", "Print one training example", "more `epochs`"], "learning_rate 1e-05 → 5e-05"),
        (of("loss_rises", fall + [2.5] * 20, [None] * 60), ["Lower `learning_rate`"], "learning_rate 5e-05 → 1e-05"),
        (of("overfit", fall, [1.0 + abs(i - 10) / 50 for i in range(40)]),
         ["add `weight_decay`", "fewer `epochs`", "more data"], None),
        (broken, ["`batch_size`", "`max_length`", "`gradient_accumulation`", "smaller model"], "batch_size 8 → 4"),
        (advice(dtype="float32")["sft_float32"],
         ["larger `batch_size`", "larger `log_every`", "`dtype` to bfloat16"], "dtype float32 → bfloat16"),
    ):  # fmt: skip
        assert [words for words in remedies if words not in finding.remedy] == [], finding.rule
        assert next(map(str, finding.changes), None) == change


@pytest.mark.parametrize("rule", [*SFT_ADVICE, *SFT_GRADIENTS], ids=lambda rule: rule.name)
def test_rules_name_options_that_exist(rule: Any) -> None:
    named = set(re.findall(r"`(\w+)`", f"{rule.symptom} {rule.cause} {rule.remedy}"))
    assert named <= set(GOOD)
    assert all(text.endswith(".") for text in (rule.cause, rule.remedy))


def test_the_page_has_the_rules_as_they_are() -> None:
    assert sft_advice_table() in (ROOT / "docs" / "sft.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "sft.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(code, {"OUT": str(tmp_path)})
    assert capsys.readouterr().out.strip().endswith(str(tmp_path / "sft-seed0" / "model"))
    assert all(f"`{name}`" in page for name in sft_recipe_names())
