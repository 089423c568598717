"""The chat template decides in which form calls are written; a mismatch ends a run before it begins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from trajgym.envs.arithmetic import ArithmeticEnv
from trajgym.errors import ConfigError, TemplateError, UnknownNameError
from trajgym.evaluation.records import read_trajectories
from trajgym.policies import tiny_path
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import GRPOTrainer, train

CALLS = {
    "qwen3_coder": (
        "<tool_call>\n<function={{ f.name }}>\n{% for key, value in f.arguments.items() %}<parameter={{ key }}>\n"
        "{{ value }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
    ),
    "nobody": "please run {{ f.name }} with {{ f.arguments | tojson }}",
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% set f = c.function %}CALL{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class FixedEnv(ArithmeticEnv):
    """Takes no arguments at all."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(difficulty=1)


gymnasium.register("TestFixed-v0", entry_point=FixedEnv)


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The embedded model with another chat template."""

    def make(calls: str) -> str:
        folder = tmp_path_factory.mktemp(calls)
        tokenizer = AutoTokenizer.from_pretrained(tiny_path())
        tokenizer.chat_template = TEMPLATE.replace("CALL", CALLS[calls])
        tokenizer.save_pretrained(folder)
        AutoModelForCausalLM.from_pretrained(tiny_path()).save_pretrained(folder)
        return str(folder)

    return make


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {
        "model": "tiny",
        "env_kwargs": {"difficulty": 1},
        "updates": 2,
        "groups_per_update": 2,
        "num_generations": 2,
        "slots": 4,
        "max_turn_tokens": 24,
        "max_episode_tokens": 600,
        "output_dir": str(tmp_path / "runs"),
        "monitors": (),
    }


def effective(folder: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")))


def systems(folder: Path) -> set[str]:
    return {t.prompt[0].content for t in read_trajectories(folder / "trajectories" / "all.parquet")}


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().split("\n")
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "efficiency/", "memory/"))}
        for line in lines
        if line
    ]


def system_of(protocol: str) -> str:
    env: Any = gymnasium.make("ArithmeticTool-v0", protocol=protocol).unwrapped
    return str(env.system)


def test_a_run_takes_the_templates_protocol_and_says_so(
    options: dict[str, Any], model_of: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    options["model"] = model_of("qwen3_coder")
    whole = train(load_config({**options, "name": "whole"}))
    assert effective(whole)["protocol"] == "qwen3_coder"
    assert systems(whole) == {system_of("qwen3_coder")}
    assert "Tool calls: qwen3_coder (protocol: auto), answered in tool messages" in capsys.readouterr().out

    part = {**options, "name": "part"}
    train(load_config({**part, "updates": 1}))
    resumed = train(load_config({**part, "resume": True}))
    assert effective(resumed)["protocol"] == "qwen3_coder"
    assert metrics(resumed) == metrics(whole)
    again = train(load_config({**options, "name": "again", "protocol": "qwen3_coder"}))
    assert metrics(again) == metrics(whole)


def test_the_embedded_model_trains_as_ever(options: dict[str, Any]) -> None:
    auto = train(load_config({**options, "name": "auto"}))
    named = train(load_config({**options, "name": "named", "env_kwargs": {"difficulty": 1, "protocol": "hermes"}}))
    assert effective(auto)["protocol"] == effective(named)["protocol"] == "hermes"
    assert systems(auto) == systems(named) == {system_of("hermes")}
    assert metrics(auto) == metrics(named)
    assert load_config(effective(named)).env_arguments == {"difficulty": 1, "protocol": "hermes"}


@pytest.mark.parametrize("where", ["option", "argument"])
def test_another_protocol_than_the_templates_is_refused_at_the_start(
    options: dict[str, Any], model_of: Callable[[str], str], where: str
) -> None:
    options["model"] = model_of("qwen3_coder")
    options |= {"protocol": "hermes"} if where == "option" else {"env_kwargs": {"protocol": "hermes"}}
    message = r"protocol 'hermes', .* writes them in 'qwen3_coder'.*protocol: auto.*protocol_mismatch='allow'"
    with pytest.raises(ConfigError, match=message):
        train(load_config(options))
    assert not Path(options["output_dir"]).exists()
    folder = train(load_config({**options, "protocol_mismatch": "allow"}))
    assert systems(folder) == {system_of("hermes")}
    assert (effective(folder)["protocol"], effective(folder)["protocol_mismatch"]) == ("hermes", "allow")


def test_a_form_that_nobody_reads_is_refused_at_the_start(
    options: dict[str, Any], model_of: Callable[[str], str]
) -> None:
    options["model"] = model_of("nobody")
    with pytest.raises(TemplateError, match=r"please run probe_tool .* no registered protocol reads"):
        train(load_config(options))
    with pytest.raises(UnknownNameError, match="Did you mean 'hermes'"):
        train(load_config({**options, "protocol": "hermse"}))
    assert not Path(options["output_dir"]).exists()
    folder = train(load_config({**options, "updates": 1, "protocol": "hermes", "protocol_mismatch": "allow"}))
    assert systems(folder) == {system_of("hermes")}


def test_without_tools_there_is_nothing_to_agree_on(
    options: dict[str, Any], model_of: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    options |= {"model": model_of("nobody"), "env": "Arithmetic-v0", "updates": 1}
    folder = train(load_config(options))
    assert effective(folder)["protocol"] == "auto"
    assert "Tool calls" not in capsys.readouterr().out


def test_an_environment_that_takes_no_protocol(options: dict[str, Any], model_of: Callable[[str], str]) -> None:
    options |= {"env": "TestFixed-v0", "env_kwargs": {}}
    assert GRPOTrainer(load_config(options)).config.protocol == "hermes"
    options |= {"model": model_of("qwen3_coder"), "name": "other"}
    with pytest.raises(ConfigError, match=r"TestFixed-v0 refuses an argument: .*protocol"):
        GRPOTrainer(load_config(options))
