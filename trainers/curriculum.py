"""A training in stages: from an easy environment to a hard one, each left only when its mastery is shown.

After every round of training the model takes an exam on held-out tasks of the stage, new ones each time. It is promoted
when the lower bound of its success reaches what the stage asks for. A model that takes the exam again and again would
pass by luck sooner or later, so the k-th exam of a stage is judged with the error probability ``α/(k(k+1))``; these sum
to α over any number of exams.

Source: the bound, E. B. Wilson, JASA 22 (1927); that the exams share one α is the union bound.

>>> rule = Promotion(success=0.8, confidence=0.95)
>>> rule.passes(180, 200, exam=1), rule.passes(166, 200, exam=1)
(True, False)
>>> rule.bound(180, 200, exam=1) > rule.bound(180, 200, exam=9)
True
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

from pydantic import Field

from trajgym.errors import ConfigError, DataError, TrainingError
from trajgym.evaluation.measures import wilson
from trajgym.rollout import derive_seed
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.export import export
from trajgym.trainers.grpo import train
from trajgym.trainers.held_out import HeldOut
from trajgym.trainers.options import Options, read_options
from trajgym.trainers.runfolder import storage_errors

__all__ = [
    "CurriculumConfig",
    "Exam",
    "NotPromotedError",
    "Promotion",
    "load_curriculum",
    "train_curriculum",
]

RECORD = "curriculum.json"


class NotPromotedError(TrainingError):
    """A stage was not mastered within its rounds; the later ones were not begun."""


class CurriculumConfig(Options):
    """The stages of a training, and what lets a model pass from one to the next."""

    stages: list[dict[str, Any]] = Field(
        min_length=1, description="Arguments of the environment in each stage, over those of the recipe."
    )
    success: float = Field(0.8, gt=0, lt=1, description="Share of right answers that has to be shown.")
    confidence: float = Field(
        0.95, gt=0.5, lt=1, description="With which it has to be shown, over all exams of a stage."
    )
    exam_tasks: int = Field(200, ge=10, description="Held-out tasks of an exam.")
    exam_split: str = Field("test", description="Their split; empty where the environment has none.")
    rounds: int = Field(10, ge=1, description="Most rounds of training in a stage; each has the updates of the recipe.")


@dataclass(frozen=True)
class Promotion:
    """When an exam is passed.

    Args:
        success: Share of right answers that has to be shown.
        confidence: With which, over all exams of a stage.
    """

    success: float
    confidence: float

    def bound(self, right: int, tasks: int, *, exam: int) -> float:
        """Return the lower bound of the success.

        Args:
            right: Tasks that were solved.
            tasks: Out of how many.
            exam: Which exam of the stage it is, from 1.
        """
        error = (1.0 - self.confidence) / (exam * (exam + 1))
        return wilson(right, tasks, NormalDist().inv_cdf(1.0 - error))[0]

    def passes(self, right: int, tasks: int, *, exam: int) -> bool:
        """Whether the bound reaches what is asked for."""
        return self.bound(right, tasks, exam=exam) >= self.success


@dataclass(frozen=True)
class Exam:
    """One exam, as the record keeps it.

    Args:
        stage: Which stage, from 1.
        exam: Which exam of the stage, from 1; the first one is taken before any training in it.
        model: What took it.
        right: Tasks that were solved.
        tasks: Out of how many.
        bound: Lower bound of the success.
        passed: Whether the stage was left with it.
    """

    stage: int
    exam: int
    model: str
    right: int
    tasks: int
    bound: float
    passed: bool


def load_curriculum(source: str | Path | Mapping[str, Any]) -> CurriculumConfig:
    """Read the stages from a YAML file, or from the values themselves.

    Raises:
        ConfigError: For a key or a value that is not allowed.
    """
    return read_options(CurriculumConfig, source, command="train --curriculum")


def train_curriculum(config: GRPOConfig, plan: CurriculumConfig, *, name: str = "run") -> Path:
    """Train through all stages and return the folder of the whole.

    Each round is a run of its own, in a folder of its own, that begins with the weights of the round before and with a
    fresh optimiser. ``curriculum.json`` keeps every exam.

    Args:
        config: Options of each round. ``name`` is that of the whole; ``resume`` goes on behind the last exam.
        plan: The stages.
        name: Begins the name of the folder when ``config.name`` is unset.

    Raises:
        NotPromotedError: When a stage is not mastered within its rounds.
        ConfigError: For options that do not go together, or when the folder is taken.
        TrajgymError: Whatever a run or an exam raises.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("A curriculum trains on one process: its exams are not divided. Start it without a launcher.")
    folder = config.output_dir / (config.name or f"{name}-curriculum-seed{config.seed}")
    arguments = [{**config.env_arguments, **stage} for stage in plan.stages]
    for number, stage in enumerate(arguments):
        _exam_tasks(config, plan, stage, number, 0, limit=1)  # what is wrong with a late stage is said at once
    exams = _open(folder, config, plan)
    rule = Promotion(plan.success, plan.confidence)
    model = exams[-1].model if exams else config.model
    for number, stage in enumerate(arguments):
        taken = [exam for exam in exams if exam.stage == number + 1]
        while not (taken and taken[-1].passed):
            count = len(taken)
            if count > plan.rounds:
                raise NotPromotedError(_not_promoted(plan, taken, number, folder))
            if count:
                model = _round(config, stage, model, folder, number, count)
            found = _exam_tasks(config, plan, stage, number, count).play(model, config)
            right, tasks = found.success.successes, found.success.trials
            bound = rule.bound(right, tasks, exam=count + 1)
            taken.append(Exam(number + 1, count + 1, model, right, tasks, bound, bound >= plan.success))
            exams.append(taken[-1])
            _write(folder, plan, exams)
            print(_line(taken[-1], len(arguments), plan), flush=True)
    return folder


def _round(config: GRPOConfig, stage: Mapping[str, Any], model: str, folder: Path, number: int, count: int) -> str:
    """Train a round and return the folder of its model."""
    round_name = f"stage-{number + 1}-round-{count}"
    begun = (folder / round_name).is_dir()
    options = {
        **dict(config),
        "model": model,
        "env_kwargs": {**config.env_kwargs, **stage},
        "seed": derive_seed(config.seed, "curriculum", number, count) >> 32,
        "output_dir": folder,
        "name": round_name,
        "resume": begun and (folder / round_name / "checkpoints").is_dir(),
        "overwrite": begun and not (folder / round_name / "checkpoints").is_dir(),
    }
    run = train(GRPOConfig(**options))
    out = run / "model"
    if not out.is_dir():
        export(
            run, out
        )  # whole weights, an adapter merged into them, so that the next round has what it was trained on
    return str(out)


def _exam_tasks(
    config: GRPOConfig, plan: CurriculumConfig, stage: Mapping[str, Any], number: int, count: int, limit: int = 0
) -> HeldOut:
    split = {"split": plan.exam_split} if plan.exam_split else {}
    seed = derive_seed(config.seed, "exam", number, count) >> 32
    turn = config.max_turn_tokens
    return HeldOut(config.env, {**stage, **split}, limit=limit or plan.exam_tasks, seed=seed, turn_tokens=turn)


def _open(folder: Path, config: GRPOConfig, plan: CurriculumConfig) -> list[Exam]:
    """Make the folder, or read what was done in it."""
    record = folder / RECORD
    if folder.exists() and not config.resume:
        if not (config.overwrite and record.is_file()):
            raise ConfigError(f"{folder} is there already. Go on with --resume, choose another --name, or --overwrite.")
        shutil.rmtree(folder)
    if not record.is_file():
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return []
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
        exams, before = [Exam(**exam) for exam in known["exams"]], known["plan"]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{record} is damaged: {error}. Begin again with --overwrite.") from error
    if before != plan.plain():
        raise ConfigError(f"{record} belongs to other stages. Go on with the same file, or choose another --name.")
    return exams


def _write(folder: Path, plan: CurriculumConfig, exams: list[Exam]) -> None:
    text = json.dumps({"plan": plan.plain(), "exams": [asdict(exam) for exam in exams]}, indent=1)
    partial = folder / f"{RECORD}.partial"
    with storage_errors(folder):
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / RECORD)


def _line(exam: Exam, stages: int, plan: CurriculumConfig) -> str:
    verdict = "passed" if exam.passed else "not yet"
    return (
        f"Stage {exam.stage} of {stages}, exam {exam.exam}: {exam.right} of {exam.tasks} right, at least "
        f"{exam.bound:.0%} (asked for: {plan.success:.0%}): {verdict}"
    )


def _not_promoted(plan: CurriculumConfig, taken: list[Exam], number: int, folder: Path) -> str:
    best = max(taken, key=lambda exam: exam.right)
    return (
        f"Stage {number + 1} was not mastered in {plan.rounds} rounds: at best {best.right} of {best.tasks} right, and "
        f"{plan.success:.0%} has to be shown. Raise rounds or updates, lower success, or put an easier stage before "
        f"it; all exams are in {folder / RECORD}."
    )
