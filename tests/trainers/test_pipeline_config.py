"""Options of the chain: the document's values and files, overrides, and errors that name what is wrong."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.pipeline_config import load_pipeline_config, pipeline_recipe_names

DOCUMENT: dict[str, Any] = {
    "model": {"base_model": "Qwen/Qwen3-0.6B"},
    "data": {"max_samples": 1000},
    "sft": {"output_dir": "./models/sft_model", "num_epochs": 3, "batch_size": 8},
    "grpo": {"output_dir": "./models/grpo_model", "num_epochs": 3, "batch_size": 4},
    "eval": {"max_samples": 200, "sft_accuracy_threshold": 0.40},
    "monitoring": {"use_wandb": False, "use_tensorboard": True, "wandb_project": "agentic-rl-pipeline"},
}


def test_the_recipe_has_the_documents_values() -> None:
    config = load_pipeline_config("pipeline_gsm8k")
    sft = config.sft_config(Path("runs/x"))
    grpo = config.grpo_config(Path("runs/x"), "runs/x/sft/model", finite=True)
    assert config.model.base_model == sft.model == "Qwen/Qwen3-0.6B"
    assert config.data.max_samples == sft.max_samples == grpo.max_samples == 1000
    assert (sft.epochs, sft.batch_size) == (3, 8)
    assert (grpo.epochs, grpo.groups_per_update, grpo.num_generations) == (3, 4, 4)
    assert (config.eval.max_samples, config.eval.sft_accuracy_threshold) == (200, 0.40)
    assert sft.monitors == grpo.monitors == ("tensorboard",)
    assert (grpo.model, grpo.output_dir, grpo.name) == ("runs/x/sft/model", Path("runs/x"), "grpo")


def test_the_documents_file_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(DOCUMENT))
    config = load_pipeline_config(file)
    sft = config.sft_config(tmp_path / "run")
    assert (sft.output_dir, sft.name) == (Path("models"), "sft_model")
    assert config.grpo_config(tmp_path / "run", "m", finite=True).groups_per_update == 2, "4 × 4 answers in groups of 8"
    assert config.monitoring.wandb_project == "agentic-rl-pipeline"


@pytest.mark.parametrize("name", pipeline_recipe_names())
def test_every_recipe_makes_sense(name: str) -> None:
    config = load_pipeline_config(name)
    config.sft_config(Path("runs/x"))
    config.grpo_config(Path("runs/x"), "m", finite="arithmetic" not in config.data.env.lower())


def test_overrides() -> None:
    args = ["--sft.epochs", "1", "--grpo.learning-rate=1e-6", "--eval.max-samples", "50", "--seed", "3"]
    config = load_pipeline_config("pipeline_gsm8k", [*args, "--data.env-kwargs", '{"max_turns": 2}'])
    assert config.sft_config(Path("x")).epochs == 1, "also where the recipe has the document's name"
    assert config.grpo_config(Path("x"), "m", finite=True).learning_rate == 1e-6
    assert (config.eval.max_samples, config.seed, config.data.env_kwargs) == (50, 3, {"max_turns": 2})
    nothing = load_pipeline_config("pipeline_gsm8k", ["--sft", "null", "--data.max-samples", "None"])
    assert (nothing.sft, nothing.data.max_samples) == (None, None)


@pytest.mark.parametrize(
    ("args", "baseline", "lora"),
    [
        (["--eval.no-baseline", "--sft.use-lora", "--seed", "3"], False, True),
        (["--sft.no-use-lora", "--eval.baseline"], True, False),
        (["--eval.baseline", "false", "--sft.use-lora", "True"], False, True),
        (["--eval.baseline=true", "--sft.use-lora=false"], True, False),
    ],
)
def test_switches_need_no_value(args: list[str], baseline: bool, lora: bool) -> None:
    config = load_pipeline_config("pipeline_gsm8k", args)
    assert (config.eval.baseline, config.sft_config(Path("x")).use_lora) == (baseline, lora)


@pytest.mark.parametrize(
    ("values", "args", "message"),
    [
        ({"modle": {}}, [], "Did you mean 'model'"),
        ({"data": {"max_sample": 1}}, [], "Unknown option of data 'max_sample'. Did you mean 'max_samples'"),
        ({}, ["--eval.maxsamples", "1"], "Did you mean 'max_samples'"),
        ({}, ["--eval.max-samples", "0"], "eval.max_samples"),
        ({}, ["--sft.epochs"], "needs a value"),
        ({"eval": {"sft_accuracy_threshold": 1.5}}, [], "less than or equal to 1"),
    ],
)
def test_errors(values: dict[str, Any], args: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_pipeline_config(values, args)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("section", "given", "message"),
    [
        ("sft", {"epochz": 1}, "Unknown option of sft 'epochz'. Did you mean 'epochs'"),
        ("sft", {"model": "tiny"}, "Set model.base_model"),
        ("sft", {"resume": True}, "stages go on by themselves"),
        ("grpo", {"max_samples": 4}, "Set data.max_samples"),
        ("grpo", {"epochs": 1, "num_epochs": 2}, "twice"),
        ("grpo", {"batch_size": 3}, "batch_size to 4"),
    ],
)
def test_errors_in_the_options_of_a_stage(section: str, given: dict[str, Any], message: str) -> None:
    config = load_pipeline_config({section: given})
    grpo = functools.partial(config.grpo_config, Path("x"), "m", finite=True)
    read = functools.partial(config.sft_config, Path("x")) if section == "sft" else grpo
    with pytest.raises(ConfigError) as error:
        read()
    assert message in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'pipeline_gsm8k'"):
        load_pipeline_config("pipeline_gsm")
    with pytest.raises(ConfigError, match="no configuration file"):
        load_pipeline_config(tmp_path / "none.json")
    broken = tmp_path / "broken.json"
    for text, message in (("{", "cannot be read"), ("[1]", "must hold a mapping")):
        broken.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_pipeline_config(broken)
