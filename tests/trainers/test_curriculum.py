"""Stages are left when their mastery is shown, and not by luck; a killed training goes on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest
import yaml

from trajgym.cli import main
from trajgym.envs.base import ToolEnv
from trajgym.errors import ConfigError, DataError
from trajgym.trainers import curriculum
from trajgym.trainers.config import GRPOConfig, load_config
from trajgym.trainers.curriculum import (
    NotPromotedError,
    Promotion,
    load_curriculum,
    train_curriculum,
)
from trajgym.types import Step, Task


def _first(step: Step, task: Task, history: Sequence[Step]) -> float:
    return float(step.action.text.startswith(task.answer))


class CountedEnv(ToolEnv):
    """Say the digit you are shown; some of the digits only."""

    def __init__(self, digits: str = "0", **kwargs: Any) -> None:
        tasks = [Task(f"{digit}-{i}", digit, digit) for i in range(40) for digit in digits]
        super().__init__(tasks, **{"reward": {"accuracy": (_first, 1.0)}, "system": "", "max_turns": 1, **kwargs})


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    gymnasium.register("TestCounted-v0", entry_point=CountedEnv)
    yield
    gymnasium.registry.pop("TestCounted-v0")


PLAN: dict[str, Any] = {"stages": [{"digits": "1"}, {"digits": "0123"}], "exam_tasks": 40, "exam_split": ""}


def exams(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "curriculum.json").read_text())["exams"]  # type: ignore[no-any-return]


def test_more_exams_do_not_make_promotion_likelier() -> None:
    """A model as good as is asked for, and no better, is seldom promoted however often it tries."""
    rule, rng = Promotion(success=0.8, confidence=0.95), random.Random(0)
    promoted = 0
    for _ in range(400):
        rights = [sum(rng.random() < 0.8 for _ in range(200)) for _ in range(20)]
        promoted += any(rule.passes(right, 200, exam=k) for k, right in enumerate(rights, 1))
    assert promoted / 400 < 0.08
    rights = [[sum(rng.random() < 0.8 for _ in range(200)) for _ in range(20)] for _ in range(200)]
    careless = sum(any(rule.passes(right, 200, exam=1) for right in row) for row in rights)
    assert careless / 200 > 0.15, "the same without a share of the error for each exam"
    assert sum(rule.passes(sum(rng.random() < 0.95 for _ in range(200)), 200, exam=3) for _ in range(100)) > 95


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Runs and exams that only write down what they were asked for; ``rights`` are the results of the exams."""
    log = SimpleNamespace(rights=[], runs=[], exams=[])

    def train(config: GRPOConfig) -> Path:
        log.runs.append(config)
        run = config.output_dir / str(config.name)
        (run / "model").mkdir(parents=True)
        return run

    class HeldOut:
        def __init__(self, env: str, arguments: Any, *, limit: int, seed: int, turn_tokens: int) -> None:
            self.asked = (dict(arguments), limit, seed)

        def play(self, model: str, options: Any) -> Any:
            log.exams.append((model, *self.asked))
            return SimpleNamespace(success=SimpleNamespace(successes=log.rights.pop(0), trials=200))

    monkeypatch.setattr(curriculum, "train", train)
    monkeypatch.setattr(curriculum, "HeldOut", HeldOut)
    return log


def options(tmp_path: Path, **others: Any) -> GRPOConfig:
    values = {"updates": 3, "env": "ToolChoice-v0", "env_kwargs": {"reward": "sparse"}, "output_dir": str(tmp_path)}
    return load_config({**values, **others})


STAGES = {"stages": [{"tools_count": 3}, {"tools_count": 12}, {"tools_count": 60}], "rounds": 3}


def test_each_stage_goes_on_from_the_one_before(played: SimpleNamespace, tmp_path: Path) -> None:
    played.rights = [150, 170, 190, 199, 160, 195]
    folder = train_curriculum(options(tmp_path), load_curriculum(STAGES), name="x")
    assert [(e["stage"], e["exam"], e["passed"]) for e in exams(folder)] == [
        (1, 1, False), (1, 2, False), (1, 3, True), (2, 1, True), (3, 1, False), (3, 2, True),
    ]  # fmt: skip
    names = ["stage-1-round-1", "stage-1-round-2", "stage-3-round-1"]
    assert [run.name for run in played.runs] == names
    models = ["tiny", *(str(folder / name / "model") for name in names)]
    assert [run.model for run in played.runs] == models[:3]
    assert [model for model, *_ in played.exams] == [models[i] for i in (0, 1, 2, 2, 2, 3)]
    assert [run.env_kwargs for run in played.runs] == [{"reward": "sparse", "tools_count": n} for n in (3, 3, 60)]
    assert [asked["tools_count"] for _, asked, *_ in played.exams] == [3, 3, 3, 12, 60, 60]
    assert all(asked["split"] == "test" for _, asked, *_ in played.exams)
    assert len({run.seed for run in played.runs}) == 3, "a round meets other tasks than the one before"
    assert len({seed for *_, seed in played.exams}) == 6, "and an exam too"


def test_who_does_not_master_a_stage_is_told(played: SimpleNamespace, tmp_path: Path) -> None:
    played.rights = [170] * 4
    with pytest.raises(NotPromotedError, match="Stage 1 was not mastered in 3 rounds: at best 170 of 200"):
        train_curriculum(options(tmp_path), load_curriculum(STAGES))
    assert len(played.runs) == 3


def test_a_stopped_curriculum_goes_on_behind_its_last_exam(
    played: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.rights = [150, 199, 150]
    with pytest.raises(IndexError):  # no fourth result: stopped in the middle
        train_curriculum(options(tmp_path), load_curriculum(STAGES))
    before = [run.name for run in played.runs]
    assert before == ["stage-1-round-1", "stage-2-round-1"]
    with pytest.raises(ConfigError, match="--resume"):
        train_curriculum(options(tmp_path), load_curriculum(STAGES))
    other = {**STAGES, "success": 0.7}
    with pytest.raises(ConfigError, match="other stages"):
        train_curriculum(options(tmp_path, resume=True), load_curriculum(other))
    played.rights, played.runs = [199, 199], []
    (tmp_path / "run-curriculum-seed0" / "stage-2-round-1" / "model").rmdir()  # it had not come so far
    folder = train_curriculum(options(tmp_path, resume=True), load_curriculum(STAGES))
    assert [run.name for run in played.runs] == ["stage-2-round-1"]
    assert [e["stage"] for e in exams(folder)] == [1, 1, 2, 2, 3]
    (folder / "curriculum.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        train_curriculum(options(tmp_path, resume=True), load_curriculum(STAGES))
    played.rights = [199] * 3
    again = train_curriculum(options(tmp_path, overwrite=True), load_curriculum(STAGES))
    assert len(exams(again)) == 3


def test_what_is_wrong_is_said_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stages, message in [
        ({"stages": []}, "stages"),
        ({**STAGES, "succes": 0.8}, "succes"),
        ({**STAGES, "success": 1.5}, "success"),
        ({"stages": [{"tools_count": 3}, {"tools_count": 61}]}, "tools_count"),
        ({"stages": [{"tool_count": 3}]}, "tool_count"),
        ({"stages": [{"reward": {"call_valid": 1.0}}]}, "accuracy"),
    ]:
        with pytest.raises(ConfigError, match=message):
            train_curriculum(options(tmp_path), load_curriculum(stages))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="one process"):
        train_curriculum(options(tmp_path), load_curriculum(STAGES))
    assert list(tmp_path.iterdir()) == []


def test_the_command_trains_in_stages(
    identity_options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, stages = tmp_path / "identity.yaml", tmp_path / "stages.yaml"
    size = {"updates": 40, "groups_per_update": 8, "num_generations": 16, "slots": 128, "env": "TestCounted-v0"}
    recipe.write_text(yaml.safe_dump({**identity_options, **size, "monitors": [], "name": "staged"}))
    stages.write_text(yaml.safe_dump({**PLAN, "success": 0.8, "rounds": 4}))
    assert main(["train", str(recipe), "--curriculum", str(stages)]) == 0
    found = exams(tmp_path / "runs" / "staged")
    assert [e["passed"] for e in found if e["stage"] == 2][-1]
    assert sum(e["passed"] for e in found) == 2
    assert found[-1]["right"] == found[-1]["tasks"]
    assert "Stage 2 of 2, exam" in capsys.readouterr().out
    assert main(["train", str(recipe), "--curriculum"]) == 2
    assert "needs the path" in capsys.readouterr().err
