"""What is wrong with GRPO's options is told before any stage begins."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import trajgym  # noqa: F401  # registers the environments
from trajgym.errors import ConfigError, TemplateError, TrajgymError
from trajgym.trainers.config import load_config
from trajgym.trainers.pipeline import AgenticRLPipeline
from trajgym.trainers.pipeline_checks import check_grpo

GOOD: dict[str, Any] = {"updates": 1, "num_generations": 2, "max_episode_tokens": 1000, "max_turn_tokens": 8}

HERMES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for call in m.tool_calls or [] %}"
    "<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A chat template that writes calls."""

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"estimator": "nonsense"}, "estimator 'nonsense'"),
    ({"estimator_options": {"centre": 1}}, "no option 'centre'"),
    ({"updates": None, "epochs": 2}, "makes up tasks without end"),
    ({"reward_schedule": {"nothing": [[0, 1]]}}, "nothing"),
    ({"use_lora": True, "lora_targets": ["query"]}, "lora_targets .*q_proj"),
    ({"max_episode_tokens": 5000}, "max_episode_tokens.*5000 exceeds"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_options(small_model: Path, options: dict[str, Any], message: str) -> None:
    config = load_config({**GOOD, "model": str(small_model), **options})
    with pytest.raises(ConfigError, match=message):
        check_grpo(config)


@pytest.mark.parametrize("options", [{}, {"use_lora": True}, {"algorithm": "ppo"}, {"estimator": "vine"}])
@pytest.mark.parametrize("model", ["tiny", "small"])
def test_right_options(small_model: Path, model: str, options: dict[str, Any]) -> None:
    check_grpo(load_config({**GOOD, "model": "tiny" if model == "tiny" else str(small_model), **options}))


def test_what_is_not_installed(small_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for options, message in (
        ({"sampler": "vllm", "sampler_correction": True}, "needs vLLM"),
        ({"rollout_workers": 1}, "needs Ray"),
        ({"quantization": "8bit", "use_lora": True}, "needs bitsandbytes"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_grpo(load_config({**GOOD, "model": str(small_model), **options}))


def test_a_model_that_cannot_be_had_without_its_weights_is_left_to_the_run(small_model: Path, tmp_path: Path) -> None:
    copied(small_model, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "nobody-knows"}')
    check_grpo(load_config({**GOOD, "model": str(tmp_path)}))
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(TemplateError, match="no chat template"):
        check_grpo(load_config({**GOOD, "model": str(tmp_path)}))


@pytest.mark.parametrize("sampler", ["hf", "vllm"])
@pytest.mark.parametrize(
    ("missing", "options", "error", "message"),
    [
        ("chat_template.jinja", {}, TemplateError, "no chat template"),
        ("tokenizer.json", {}, ConfigError, "Cannot load the tokenizer"),
        ("", {"protocol": "react"}, ConfigError, "'react', but the policy's chat template writes them in 'hermes'"),
    ],
    ids=["no template", "no tokenizer", "another form of calls"],
)
def test_a_template_that_cannot_be_played_with(
    small_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sampler: str,
    missing: str,
    options: dict[str, Any],
    error: type[TrajgymError],
    message: str,
) -> None:
    monkeypatch.setattr("trajgym.trainers.pipeline_checks.installed", lambda: True)
    copied(small_model, tmp_path, missing)
    if not missing:
        (tmp_path / "chat_template.jinja").write_text(HERMES)
    engine = {"sampler": sampler, "sampler_correction": sampler == "vllm"}
    with pytest.raises(error, match=message):
        check_grpo(load_config({**GOOD, **engine, "env": "ArithmeticTool-v0", "model": str(tmp_path), **options}))


def copied(model: Path, folder: Path, missing: str = "") -> None:
    for file in model.iterdir():
        if file.name != missing:
            (folder / file.name).write_bytes(file.read_bytes())


@pytest.mark.parametrize(("options", "message"), WRONG[:3])
def test_the_chain_does_not_begin(small_model: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    grpo = {key: value for key, value in {**GOOD, **options}.items() if value is not None}
    values = {"model": {"base_model": str(small_model), "device": "cpu"}, "grpo": grpo, "output_dir": str(tmp_path)}
    data = {"env": "ArithmeticTool-v0", "max_samples": 4}
    with pytest.raises(ConfigError, match=message):
        AgenticRLPipeline({**values, "data": data, "monitoring": {"use_tensorboard": False}})
    assert list(tmp_path.iterdir()) == []
