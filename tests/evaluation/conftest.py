"""Samples that need no model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trajgym.evaluation.evaluate import Evaluation
from trajgym.evaluation.samples import Sample, samples_of
from trajgym.types import Action, Message, Observation, Step, StopReason, Task, Trajectory

MakeEvaluation = Callable[..., Evaluation]


def evaluation(answers: list[str], *, attempts: int = 1, truth: str = "72", difficulty: int | None = 3) -> Evaluation:
    """Play one answer after the other, ``attempts`` of them at each task."""
    played = []
    for i, answer in enumerate(answers):
        task = Task(f"t-{i // attempts}", f"{i // attempts}: 48 + 24?", truth, difficulty=difficulty)
        right = float(answer == truth)
        step = Step(
            Action(f"48 + 24 = 72\n#### {answer}"),
            Observation(),
            right,
            {"accuracy": right},
            terminated=True,
            stop_reason=StopReason.ANSWERED,
        )
        played.append(Trajectory(task, (Message("user", task.question),), (step,)))
    return Evaluation(tuple(played), attempts, tuple(0.5 for _ in played))


@pytest.fixture(scope="session")
def make_evaluation() -> MakeEvaluation:
    return evaluation


@pytest.fixture
def make_samples() -> Callable[..., list[Sample]]:
    return lambda answers, **options: samples_of(evaluation(answers, **options))
