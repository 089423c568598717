"""Options of supervised fine-tuning: the recipes are the documented ones, every mistake is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.config import load_config, recipe_names
from trajgym.trainers.diagnose import advise
from trajgym.trainers.diagnose_rule import Severity
from trajgym.trainers.sft_config import SFTConfig, load_sft_config, sft_recipe_names

QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")


def test_the_standard_recipe() -> None:
    standard = load_sft_config("sft_gsm8k")
    assert (standard.epochs, standard.batch_size, standard.learning_rate) == (3, 4, 5e-5)
    assert (standard.use_lora, standard.lora_rank, standard.lora_alpha) == (True, 8, 16)
    assert standard.max_samples == 1000


def test_the_full_recipe() -> None:
    full = load_sft_config("sft_gsm8k_full")
    assert (full.model, full.dataset, full.max_samples) == ("Qwen/Qwen3-0.6B", "gsm8k", None)
    assert (full.batch_size, full.use_lora, full.lora_rank, full.lora_alpha, full.lora_targets) == (
        8, True, 16, 32, QKVO
    )  # fmt: skip
    assert (full.warmup_ratio, full.weight_decay, full.lr_schedule) == (0.1, 0.01, "linear")
    assert (full.save_every, full.log_every, full.eval_every) == (500, 100, 500)
    assert full.eval_samples  # or eval_every would mean nothing


def test_each_kind_of_run_has_its_own_recipes() -> None:
    assert {"sft_quickstart", "sft_gsm8k", "sft_gsm8k_full", "sft_gsm8k_tool"} <= set(sft_recipe_names())
    assert not set(sft_recipe_names()) & set(recipe_names())
    with pytest.raises(UnknownNameError, match="Known"):
        load_config("sft_gsm8k")
    with pytest.raises(UnknownNameError, match="Did you mean 'sft_gsm8k'"):
        load_sft_config("sft_gsm8")


@pytest.mark.parametrize("recipe", sft_recipe_names())
def test_recipes_are_wise_and_read_back(recipe: str) -> None:
    config = load_sft_config(recipe)
    assert [f for f in advise(config.plain()) if f.severity is not Severity.NOTE] == []
    path = Path(__file__).parents[2] / "trainers" / "recipes" / f"{recipe}.yaml"
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert load_sft_config(config.plain()) == config


def test_the_tool_recipe_starts_what_the_recipe_for_reinforcement_goes_on_with() -> None:
    before, after = load_sft_config("sft_gsm8k_tool"), load_config("gsm8k_tool")
    assert (before.model, before.env, before.lora_rank) == (after.model, after.env, after.lora_rank)
    assert before.env_kwargs["tools"] == after.env_kwargs["tools"]


def test_command_line() -> None:
    config = load_sft_config("sft_quickstart", ["--learning-rate", "1e-4", "--use-lora", "--env-kwargs", '{"a": 1}'])
    assert (config.learning_rate, config.use_lora, config.env_kwargs) == (1e-4, True, {"a": 1})


def test_unknown_options_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_sft_config("sft_quickstart", ["--learning-rat", "1"])
    printed = capsys.readouterr().err
    assert "--learning-rate" in printed
    assert "trajgym sft RECIPE" in printed


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lora_ranks": 8}, "Did you mean 'lora_rank'"),
        ({"algorithm": "grpo"}, "algorithm: .* got 'grpo'"),
        ({"epochs": 0}, "epochs: .* got 0"),
        ({"epochs": float("inf")}, "epochs"),
        ({"batch_size": 0}, "batch_size: .* got 0"),
        ({"learning_rate": -1}, "learning_rate: .* got -1"),
        ({"warmup_ratio": 1.0}, "warmup_ratio"),
        ({"lora_targets": []}, "lora_targets"),
        ({"lr_schedule": "step"}, "lr_schedule: .* got 'step'"),
        ({"max_samples": 0}, "max_samples: .* got 0"),
        ({"seed": -1}, "seed"),
        ({"resume": True, "overwrite": True}, "exclude each other"),
        ({"protocol": "react", "env_kwargs": {"protocol": "hermes"}}, "'react' and 'hermes' in env_kwargs"),
    ],
)
def test_bad_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_sft_config(values)


def test_every_option_is_documented() -> None:
    assert all(field.description for field in SFTConfig.model_fields.values())
