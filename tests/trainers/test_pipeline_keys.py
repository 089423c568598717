"""Every option of the whole chain has an effect: one row for each, those of its sections as SECTION.KEY."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from trajgym.errors import ConfigError
from trajgym.trainers import export
from trajgym.trainers.pipeline import AgenticRLPipeline, GateNotMet
from trajgym.trainers.pipeline_config import (
    DataSection,
    DeploySection,
    EvalSection,
    ModelSection,
    MonitoringSection,
    PipelineConfig,
    load_pipeline_config,
)

SECTIONS: dict[str, type[BaseModel]] = {
    "data": DataSection,
    "deploy": DeploySection,
    "eval": EvalSection,
    "model": ModelSection,
    "monitoring": MonitoringSection,
}
ACCURACY = {"value": 0.5, "low": 0.4, "high": 0.6, "count": 10}


class Chains:
    """Reads the options of a chain, as far as nothing is computed."""

    def __init__(self, model: Path, place: Path) -> None:
        self.base: dict[str, Any] = {
            "model": {"base_model": str(model), "device": "cpu"},
            "data": {"env": "ArithmeticTool-v0", "env_kwargs": {"difficulty": 1, "max_turns": 2}, "max_samples": 6},
            "sft": {},
            "grpo": {
                "updates": 1,
                "groups_per_update": 1,
                "num_generations": 2,
                "max_episode_tokens": 1000,
                "slots": 8,
            },
            "eval": {"max_samples": 3},
            "deploy": {},
            "monitoring": {"use_tensorboard": False},
            "output_dir": str(place),
            "overwrite": True,
        }

    def __call__(self, **changes: Any) -> AgenticRLPipeline:
        return AgenticRLPipeline(self._changed(changes))

    def trainings(self, **changes: Any) -> tuple[Any, Any]:
        """Return the options that the two trainings are told, whose own tests say what they do."""
        config = load_pipeline_config(self._changed(changes))
        return config.sft_config(Path("x")), config.grpo_config(Path("x"), "m", finite=True)

    def _changed(self, changes: dict[str, Any]) -> dict[str, Any]:
        both = {k: {**self.base[k], **v} for k, v in changes.items() if isinstance(v, dict)}
        return {**self.base, **changes, **both}


@pytest.fixture
def chain(small_model: Path, tmp_path: Path) -> Chains:
    return Chains(small_model, tmp_path)


def _both(section: str, key: str, value: Any) -> Callable[..., None]:
    """The option is one of both trainings, and has its effect there."""

    def check(chain: Chains, **_: Any) -> None:
        for told, usual in zip(chain.trainings(**{section: {key: value}}), chain.trainings(), strict=True):
            assert getattr(told, key) == value != getattr(usual, key)

    return check


def _refused(message: str, **changes: Any) -> Callable[..., None]:
    def check(chain: Chains, tmp_path: Path, **_: Any) -> None:
        with pytest.raises(ConfigError, match=message):
            chain(**changes)
        assert not list(tmp_path.iterdir())

    return check


def _base_model(chain: Chains, **_: Any) -> None:
    assert chain.trainings(model={"base_model": "tiny"})[0].model == "tiny"
    assert chain(model={"base_model": "tiny"}).base != chain().base  # what the stages depend on


def _env(chain: Chains, **_: Any) -> None:
    _both("data", "env", "Arithmetic-v0")(chain)
    assert chain(data={"env": "Arithmetic-v0"})._arena.env == "Arithmetic-v0"


def _env_kwargs(chain: Chains, **_: Any) -> None:
    harder = {"difficulty": 4, "max_turns": 2}
    _both("data", "env_kwargs", harder)(chain)
    assert chain(data={"env_kwargs": harder}).problems.test[0].question != chain().problems.test[0].question


def _protocol(chain: Chains, **_: Any) -> None:
    _both("data", "protocol", "react")(chain)
    assert chain(data={"protocol": "react"})._arena.arguments["protocol"] == "react"


def _dataset(chain: Chains, tmp_path: Path, **_: Any) -> None:
    file = tmp_path / "talk.jsonl"
    talk = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "1"}]
    file.write_text(json.dumps({"messages": talk}) + "\n")
    assert chain(data={"dataset": str(file)}).problems.row_count == 1
    assert chain().problems.row_count is None  # the environment's demonstrations


def _max_samples(chain: Chains, **_: Any) -> None:
    _both("data", "max_samples", 4)(chain)
    assert len(chain(data={"max_samples": 4}).problems.train) == 4


def _eval_max_samples(chain: Chains, **_: Any) -> None:
    assert len(chain(eval={"max_samples": 5})._arena.tasks) == 5


def _split(chain: Chains, **_: Any) -> None:
    asked = [[task.question for task in chain(eval={"split": split})._arena.tasks] for split in ("train", "test")]
    assert asked[0] != asked[1]


def _measured(chain: Chains, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[str]:
    """Return which models are measured before GRPO."""
    pipeline = chain(**changes)
    monkeypatch.setattr(pipeline, "_require", lambda stage: {"model": stage})
    monkeypatch.setattr(pipeline, "_evaluation", lambda stage, models, earlier: models)
    return list(pipeline.stage3_sft_evaluation())


def _baseline(chain: Chains, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    assert _measured(chain, monkeypatch) == ["before", "sft"]
    assert _measured(chain, monkeypatch, eval={"baseline": False}) == ["sft"]


def _sft(chain: Chains, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    assert chain(sft={"learning_rate": 1e-3}).sft_options.learning_rate == 1e-3  # type: ignore[union-attr]
    assert _measured(chain, monkeypatch, sft=None) == ["before"]


def _grpo(chain: Chains, **_: Any) -> None:
    assert chain(grpo={"learning_rate": 1e-3}).grpo_options.learning_rate == 1e-3


def _threshold(chain: Chains, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    found = {"models": {"sft": {"measures": {"accuracy": ACCURACY}}}, "report": "report.html"}
    for asked in (0.5, 0.51):
        pipeline = chain(eval={"sft_accuracy_threshold": asked})
        monkeypatch.setattr(pipeline, "_require", lambda stage: found)
        if asked == 0.5:
            pipeline._gate()
            continue
        with pytest.raises(GateNotMet, match="asks for 51"):
            pipeline._gate()


def _deploy(chain: Chains, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    class Written(Exception):
        """Carries what is to be written, and how."""

    def write(source: str, target: Path, *, dtype: str, overwrite: bool) -> None:
        raise Written(source, dtype)

    monkeypatch.setattr(export, "export", write)
    for model, dtype in (("sft", "bfloat16"), ("grpo", None)):
        pipeline = chain(deploy={"model": model, "dtype": dtype})
        monkeypatch.setattr(pipeline, "_require", lambda stage: {"model": stage, "weights": stage})
        with pytest.raises(Written) as written:
            pipeline.stage6_deployment()
        assert written.value.args == (model, dtype or "float32")


def _monitors(chain: Chains, **_: Any) -> None:
    for section, names in (
        ({}, ()),
        ({"use_tensorboard": True}, ("tensorboard",)),
        ({"use_wandb": True}, ("wandb",)),
    ):
        assert {told.monitors for told in chain.trainings(monitoring=section)} == {names}


def _wandb_project(chain: Chains, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    for project, there in ((None, "mine"), ("the chain's", "the chain's")):
        pipeline = chain(monitoring={"wandb_project": project})
        assert pipeline._stage("data", {}, lambda _: {"project": os.environ["WANDB_PROJECT"]}) == {"project": there}


def _seed(chain: Chains, **_: Any) -> None:
    for told in chain.trainings(seed=3):
        assert told.seed == 3
    assert chain(seed=3).problems.fingerprints["test"] != chain().problems.fingerprints["test"]


def _places(chain: Chains, tmp_path: Path, **_: Any) -> None:
    assert chain(output_dir=str(tmp_path / "here"), name="mine").path == tmp_path / "here" / "mine"
    assert chain().path.name == "pipeline-seed0"


def _overwrite(chain: Chains, **_: Any) -> None:
    chain()._stage("data", {}, lambda _: {"known": True})
    assert chain(overwrite=False).folder.record("data") is not None
    assert chain(overwrite=True).folder.record("data") is None


KEYS: dict[str, Callable[..., None]] = {
    "algorithm": _refused("got 'grpo'", algorithm="grpo"),
    "data.dataset": _dataset,
    "data.env": _env,
    "data.env_kwargs": _env_kwargs,
    "data.max_samples": _max_samples,
    "data.protocol": _protocol,
    "deploy.dtype": _deploy,
    "deploy.model": _deploy,
    "eval.baseline": _baseline,
    "eval.max_samples": _eval_max_samples,
    "eval.sft_accuracy_threshold": _threshold,
    "eval.split": _split,
    "grpo": _grpo,
    "model.base_model": _base_model,
    "model.device": _both("model", "device", "auto"),
    "model.dtype": _both("model", "dtype", "bfloat16"),
    "model.thinking": _both("model", "thinking", True),
    "monitoring.use_tensorboard": _monitors,
    "monitoring.use_wandb": _monitors,
    "monitoring.wandb_project": _wandb_project,
    "name": _places,
    "output_dir": _places,
    "overwrite": _overwrite,
    "seed": _seed,
    "sft": _sft,
}


def test_there_is_a_row_for_every_key() -> None:
    inner = {f"{name}.{key}" for name, section in SECTIONS.items() for key in section.model_fields}
    assert set(KEYS) == inner | (set(PipelineConfig.model_fields) - set(SECTIONS))
    assert all(type(PipelineConfig.model_fields[name].default) is kind for name, kind in SECTIONS.items())


@pytest.mark.parametrize(
    "key", sorted({check: key for key, check in KEYS.items()}.values())
)  # one of those that share a check
def test_it_has_an_effect(key: str, chain: Chains, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KEYS[key](chain=chain, tmp_path=tmp_path, monkeypatch=monkeypatch)
