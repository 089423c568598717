"""The classes of error on published completions, as docs/evaluation.md tells them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trajgym.envs.gsm8k_tasks import GSM8KTasks
from trajgym.evaluation.equations import equations
from trajgym.evaluation.faults import Fault, diagnose, distribution
from trajgym.rewards.answer import correct
from trajgym.types import Action, Observation, Step, StopReason, Trajectory

MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
EVERY = 8


@pytest.fixture(scope="module")
def found(gsm8k_data: Path) -> list[tuple[bool, bool, Fault | None]]:
    """For each completion whether it was graded as right, whether we call it right, and its class of error."""
    path = gsm8k_data / "gsm8k" / "example_model_solutions.jsonl"
    if not path.is_file():
        pytest.skip(f"there is no {path.name}")
    tasks = {task.question: task for task in GSM8KTasks("test", path=gsm8k_data / "gsm8k")}
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n")[::EVERY]:
        row = json.loads(line) if line else {"question": ""}
        task = tasks.get(row["question"])
        for model in MODELS if task is not None else ():
            assert task is not None
            text = row[model]["solution"]
            step = Step(Action(text), Observation(), terminated=True, stop_reason=StopReason.ANSWERED)
            right = correct(text, task.answer)
            rows.append((row[model]["is_correct"], right, diagnose(Trajectory(task, (), (step,)), right=right)))
    return rows


def test_every_wrong_answer_has_a_class_and_no_right_one(found: list[tuple[bool, bool, Fault | None]]) -> None:
    assert len(found) == 4 * 165
    for graded, right, fault in found:
        assert right == graded
        assert (fault is None) == right, "all of them end in a marked answer"


def test_the_shares_are_those_of_the_page(found: list[tuple[bool, bool, Fault | None]]) -> None:
    shares = {kind: share for kind, (_, share) in distribution(f.kind for _, _, f in found if f).items()}
    told = {"reasoning": 0.600, "comprehension": 0.329, "calculation": 0.045, "format": 0.001, "unclassified": 0.025}
    assert shares == pytest.approx(told, abs=0.05)


def test_hardly_any_published_demonstration_calculates_wrongly(gsm8k_data: Path) -> None:
    """An equation that is called wrong in one would be a mistake of ours, or one of the few in the prose."""
    tasks = list(GSM8KTasks("test", path=gsm8k_data / "gsm8k"))[::4]
    wrong = sum(any(e.wrong for e in equations(str(task.metadata["full_answer"]))) for task in tasks)
    assert wrong / len(tasks) < 0.01
