"""A whole run: each thing once and at its worst, proposals that agree, and nothing that makes the reading fail."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.trainers.config import GRPOConfig, load_config, recipe_names
from trajgym.trainers.diagnose import RULES, Severity, advise, diagnose, explain_error, look, rules_table
from trajgym.trainers.diagnose_history import History
from trajgym.types import to_json

ROOT = Path(__file__).parents[2]
EVERY = [rule for rules in RULES.values() for rule in rules]
METRICS = [
    "reward", "success", "kl", "entropy", "grad_norm", "loss", "calls", "no_signal_share", "fault_share", "eval_loss",
    "value_explained", "tokens_per_trajectory", "learning_rate", "reward/format", "reward_variance/a",
    "reward_variance/b", "time/tokens_per_second", "unreadable_share",
]  # fmt: skip


def kl_run(*values: float) -> list[dict[str, Any]]:
    return [{"update": i, "kl": kl} for i, kl in enumerate(values, start=1)]


def test_a_finding_comes_once_at_its_worst_with_when_it_was_seen() -> None:
    (finding, watch) = diagnose(kl_run(*[0.05] * 5, *[0.6] * 3, *[0.9] * 3, *[0.7] * 3), {})
    assert (finding.rule, finding.severity) == ("kl_explosion", Severity.SERIOUS)
    assert (finding.first, finding.last, finding.over) == (8, 14, False)
    assert "KL per token is 0.9" in finding.evidence
    assert (watch.rule, watch.over) == ("kl_watch", True)


def test_what_is_over_is_a_step_less_serious() -> None:
    (finding, *_) = diagnose(kl_run(*[0.7] * 5, *[0.05] * 5), {})
    assert (finding.severity, finding.over, finding.last) == (Severity.WARNING, True, 5)


def test_the_most_serious_comes_first_and_proposals_agree() -> None:
    rows = [{"update": i, "kl": 0.9, "reward": 0.5} for i in range(1, 41)]
    explosion, flat = look(History(rows), GRPOConfig(updates=1, learning_rate=1e-5, use_lora=True).plain())
    assert (explosion.rule, flat.rule) == ("kl_explosion", "reward_flat")
    assert {c.option: c.to for c in explosion.changes} == {"learning_rate": 2e-6, "kl_coef": 0.1, "max_grad_norm": 0.5}
    assert flat.changes == ()  # it would raise the rate and lower the coefficient
    alone = look(History({"update": i, "reward": 0.5} for i in range(1, 41)), {"learning_rate": 1e-5, "use_lora": True})
    assert [str(change) for change in alone[0].changes] == ["learning_rate 1e-05 → 5e-05"]


def test_a_healthy_run_is_left_alone() -> None:
    rows = [
        {
            "update": i, "reward": 0.2 + i / 100 + 0.03 * (-1) ** i, "success": 0.2 + i / 100, "kl": 0.0008 * i,
            "entropy": 0.6 - i / 200, "grad_norm": 0.4, "no_signal_share": 0.3, "fault_share": 0.0, "loss": 0.01,
            "calls": 1.5, "tool_error_share": 0.05, "unreadable_share": 0.02, "tokens_per_trajectory": 100.0 + i / 2,
            "truncated_share": 0.05, "time/tokens_per_second": 1000.0, "learning_rate": 1e-5,
            "efficiency/useful_token_share": 0.6,
        }
        for i in range(1, 61)
    ]  # fmt: skip
    assert diagnose(rows, load_config("gsm8k_tool").plain()) == []


def test_nothing_logged_is_nothing_found() -> None:
    assert diagnose([], {}) == []
    assert diagnose([{"update": 1}], {}) == []


VALUES = st.one_of(
    st.floats(-10, 10), st.sampled_from([math.nan, math.inf, 1e99, -1e99, 1e308, 0.0, 1.0, None, "x", True])
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(METRICS), VALUES), max_size=45), st.booleans())
def test_no_metrics_make_it_fail(metrics: list[dict[str, Any]], known: bool) -> None:
    options = GRPOConfig(updates=1).plain() if known else {"kl_coef": "much", "learning_rate": None, "temperature": []}
    for finding in diagnose([{"update": i, **row} for i, row in enumerate(metrics, start=1)], options):
        assert finding.text
        json.dumps(to_json(finding), allow_nan=False)


@pytest.mark.parametrize("recipe", recipe_names())
def test_our_own_recipes_are_wise(recipe: str) -> None:
    assert [f for f in advise(load_config(recipe)) if f.severity is not Severity.NOTE] == []


def test_advice_before_the_run() -> None:
    config = GRPOConfig(updates=1, model="Qwen/Qwen3-0.6B", learning_rate=1e-4, kl_coef=0.5, num_generations=2)
    found = advise(config)
    assert [f.rule for f in found] == ["rate_large", "kl_coef_large", "small_groups"]
    assert [str(c) for f in found for c in f.changes] == [
        "learning_rate 0.0001 → 2e-05", "kl_coef 0.5 → 0.25", "num_generations 2 → 4"
    ]  # fmt: skip
    assert [f.rule for f in advise({"learning_rate": 1e-3})] == ["rate_large"]
    assert advise({"learning_rate": 1e-3}, parameters=900_000) == []


class OutOfMemoryError(RuntimeError):
    """Called like the one of torch."""


@pytest.mark.parametrize(
    ("error", "rule"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore."), "out_of_memory"),
        (OutOfMemoryError(), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
            "out_of_memory",
        ),
        (ValueError("The gradient's norm is nan. Lower learning_rate"), "not_a_number"),
        (ValueError("The value model's gradient is inf."), "not_a_number"),
    ],
)
def test_errors_that_say_what_went_wrong(error: Exception, rule: str) -> None:
    finding = explain_error(error, GRPOConfig(updates=1).plain())
    assert finding is not None
    assert (finding.rule, finding.severity, finding.first) == (rule, Severity.SERIOUS, None)
    assert "\n" not in finding.text


def test_other_errors_are_not_explained() -> None:
    assert explain_error(KeyError("memory"), {}) is None


def test_what_to_do_when_memory_runs_out() -> None:
    options = {"num_generations": 8, "groups_per_update": 4, "max_turn_tokens": 512, "microbatch_tokens": 8192,
               "gradient_checkpointing": False, "dtype": "float32"}  # fmt: skip
    finding = explain_error(MemoryError(), options)
    assert finding is not None
    assert {change.option: change.to for change in finding.changes} == {
        "num_generations": 4, "groups_per_update": 2, "max_turn_tokens": 256, "microbatch_tokens": 4096,
        "gradient_checkpointing": True, "dtype": "bfloat16",
    }  # fmt: skip


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.name)
def test_rules_name_options_that_exist(rule: Any) -> None:
    named = set(re.findall(r"`(\w+)`", f"{rule.symptom} {rule.cause} {rule.remedy}"))
    assert named <= set(GRPOConfig.model_fields)
    assert all(text.endswith(".") for text in (rule.cause, rule.remedy))
    assert "|" not in rule.symptom + rule.cause + rule.remedy  # it would break the table


def test_the_page_has_the_rules_as_they_are() -> None:
    page = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    assert rules_table() in page, "replace the tables by the output of: trajgym diagnose --rules"


def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(code, "diagnosis.md", "exec"), {})
    assert capsys.readouterr().out.startswith("KL per token is 0.6")


def test_options_are_called_as_the_other_trainer_does() -> None:
    (finding,) = diagnose(kl_run(*[0.7] * 3), {"kl_coef": 0.05})
    other = finding.renamed({"kl_coef": "beta"})
    assert "`beta`" in other.remedy
    assert "`learning_rate`" in other.remedy
    assert [str(change) for change in other.changes] == ["beta 0.05 → 0.1"]
