"""Options: every recipe loads, every mistake is named, every override counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.config import GRPOConfig, load_config, recipe_names, recipe_path


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_load_and_name_things_that_exist(name: str) -> None:
    config = load_config(name)
    env = gymnasium.make(config.env, **config.env_kwargs)
    assert env.unwrapped.tools  # type: ignore[attr-defined]
    assert load_config(yaml.safe_load(config.dump())) == config


def test_the_three_recipes_ship() -> None:
    assert set(recipe_names()) >= {"quickstart", "gsm8k_tool", "gsm8k_tool_smollm2"}
    founding = load_config("gsm8k_tool")
    assert founding.model == "Qwen/Qwen3-0.6B"
    assert (founding.use_lora, founding.lora_rank, founding.lora_alpha) == (True, 16, 32)
    assert (founding.epochs, founding.learning_rate, founding.warmup_ratio) == (3, 1e-5, 0.1)
    assert (founding.num_generations, founding.max_turn_tokens, founding.temperature) == (4, 512, 0.8)
    assert (founding.kl_coef, founding.clip_range) == (0.05, 0.2)


def test_command_line_overrides() -> None:
    config = load_config(
        "quickstart",
        ["--gamma", "0.5", "--env-kwargs", '{"difficulty": [2, 3]}', "--use-lora", "--lora-targets", "a", "b"],
    )
    assert config.gamma == 0.5
    assert config.env_kwargs == {"difficulty": [2, 3]}
    assert config.use_lora
    assert config.lora_targets == ("a", "b")
    assert load_config("quickstart", ["--updates", "None", "--epochs", "2"]).epochs == 2


def test_the_protocol_is_an_argument_of_the_environment() -> None:
    assert "protocol" not in load_config({"updates": 3}).env_arguments
    for options in ({"protocol": "react"}, {"env_kwargs": {"protocol": "react"}}):
        assert load_config({"updates": 3, **options}).env_arguments == {"protocol": "react"}
    assert load_config("quickstart", ["--protocol", "react"]).env_arguments["protocol"] == "react"


def test_unknown_options_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_config("quickstart", ["--gama", "0.5"])
    assert "--gamma" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gama": 1}, "Did you mean 'gamma'"),
        ({"gamma": 1.5}, "gamma: .* got 1.5"),
        ({"num_generations": 0}, "num_generations: .* got 0"),
        ({"temperature": 0}, "temperature"),
        ({"clip_range": 1.0}, "clip_range"),
        ({"kl_form": "k1"}, "kl_form"),
        ({"epochs": 2.0}, "either updates or epochs"),
        ({"updates": None}, "either updates or epochs"),
        ({"max_turn_tokens": 100, "max_episode_tokens": 100}, "smaller than max_episode_tokens"),
        ({"minibatches": 20, "groups_per_update": 4}, "cannot exceed groups_per_update"),
        ({"protocol": "react", "env_kwargs": {"protocol": "hermes"}}, "'react' and 'hermes' in env_kwargs"),
        ({"protocol_mismatch": "ignore"}, "protocol_mismatch: .* got 'ignore'"),
        ({"resume": True, "overwrite": True}, "exclude each other"),
        ({"updates": "many"}, "updates: .* got 'many'"),
        ({"lora_targets": []}, "lora_targets"),
        ({"fault_alarm": 5}, "fault_alarm: .* got 5"),
        ({"fault_alarm": -0.1}, "fault_alarm: .* got -0.1"),
        ({"fault_limit": 0}, "fault_limit: .* got 0"),
        ({"clip_range_high": 1e300}, "clip_range_high: .* got 1e\\+300"),
        ({"kl_coef": 1e300}, "kl_coef: .* got 1e\\+300"),
    ],
)
def test_bad_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config({"updates": 3, **values})


@pytest.mark.parametrize(
    ("name", "value", "where", "values"),
    [
        ("clip_range", 0.1, {"objective": "clip"}, {"objective": "cispo"}),
        ("clip_range_high", 0.1, {"objective": "dual_clip"}, {"objective": "cispo"}),
        ("cispo_cap", 3.0, {"objective": "cispo"}, {}),
        ("dual_clip", 2.0, {"objective": "dual_clip"}, {"objective": "cispo"}),
        ("sampler_cap", 3.0, {"sampler_correction": True}, {}),
        ("value_learning_rate", 1e-3, {"algorithm": "ppo"}, {}),
        ("value_clip", 0.1, {"algorithm": "ppo"}, {}),
        ("value_epochs", 2, {"algorithm": "ppo"}, {"estimator": "gae"}),
        ("value_warmup", 2, {"algorithm": "ppo"}, {}),
        ("value_levels", "bilevel", {"algorithm": "ppo"}, {}),
        ("worker_cpus", 2, {"rollout_workers": 1}, {}),
        ("truncation_penalty", 0.5, {"truncated": "penalty"}, {"truncated": "drop"}),
    ],
)
def test_options_that_would_have_no_effect_are_refused(
    name: str, value: Any, where: dict[str, Any], values: dict[str, Any]
) -> None:
    assert getattr(load_config({"updates": 1, **where, name: value}), name) == value
    with pytest.raises(ConfigError, match=name):
        load_config({"updates": 1, **values, name: value})


def test_a_penalty_of_nothing_is_none() -> None:
    with pytest.raises(ConfigError, match="truncation_penalty above 0"):
        load_config({"updates": 1, "truncated": "penalty"})


def test_bad_values_on_the_command_line_are_named_like_those_in_a_file() -> None:
    with pytest.raises(ConfigError, match=r"command line: gamma: .* got 1\.5"):
        load_config("quickstart", ["--gamma", "1.5"])
    with pytest.raises(ConfigError, match="either updates or epochs"):
        load_config("quickstart", ["--epochs", "2"])


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("updates: 2\ngamma: 0.9\n")
    assert load_config(file).gamma == 0.9
    file.write_text("updates: [")
    with pytest.raises(ConfigError, match="cannot be read as YAML"):
        load_config(file)
    file.write_text("- 1")
    with pytest.raises(ConfigError, match="mapping"):
        load_config(file)
    file.write_text("updates: 2\ngama: 0.9\n")
    with pytest.raises(UnknownNameError, match=r"mine\.yaml"):
        load_config(file)
    with pytest.raises(UnknownNameError, match="Did you mean 'quickstart'"):
        recipe_path("quikstart")
    with pytest.raises(ConfigError, match="no configuration file"):
        recipe_path(str(tmp_path / "absent.yaml"))


def test_every_option_is_documented() -> None:
    assert all(field.description for field in GRPOConfig.model_fields.values())


def test_ppo_from_the_command_line_needs_no_mention_of_its_estimator() -> None:
    assert load_config("quickstart", ["--algorithm", "ppo"]).estimator == "gae"
    with pytest.raises(ConfigError, match="takes the estimator gae"):
        load_config("quickstart", ["--algorithm", "ppo", "--estimator", "trajectory"])
